"""(BLOCK-1 to 5, TREE-1 to 4) Cases of block masks, and of trees of draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    SMALL,
    TILES,
    Maker,
    Rng,
    Shape,
    bottom_right,
    ends,
    lengths,
    numbered,
    random_bias,
    random_mask,
)
from attention_conformance.conformance.cases.sinks import per_head
from attention_conformance.conformance.spec.inputs import Inputs

#: Two blocks of 16 rows and three of 16 keys, the last of each cut off; and as many rows as keys.
BLOCKS = Shape(sq=19, sk=37, d=16, dv=16)
SELF = replace(BLOCKS, sq=37)
#: Six draft tokens after five keys.
TREE = replace(SMALL, sq=6, sk=11)

#: Changes a table (…, ⌈Sq / bq⌉, ⌈Sk / bk⌉).
Change = Callable[[np.ndarray], None]


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _blocks()
    yield from _inside_calls()
    yield from _empty()
    yield from _trees()
    yield from _tree_options()
    yield from _invalid()


def table(size: tuple[int, int], axes: str = "bh", change: Change | None = None) -> dict[str, Any]:
    """The options of a case of a block mask."""
    return {"block_mask": random_blocks(size, axes, change), "block_size": size, "data": numbered}


def random_blocks(size: tuple[int, int], axes: str = "bh", change: Change | None = None) -> Maker:
    """A random block mask with blocks of a size, different along each of the ``axes``; every row has a block."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        blocks = tuple(-(-n // of) for n, of in zip((s.sq, s.sk), size, strict=True))
        found = rng.random((s.b if "b" in axes else 1, s.hq if "h" in axes else 1, *blocks)) < 0.5
        some = rng.integers(0, blocks[1], found.shape[:3])[..., None]
        np.put_along_axis(found, some, True, axis=3)
        np.put_along_axis(found, (some + 1) % blocks[1], blocks[1] == 1, axis=3)  # and lacks one
        if change is not None:
            change(found)
        return found if axes else found[0, 0]

    return make


def _blocks() -> Iterator[Case]:
    yield case("block", "BLOCK-1", "Blocks of 16, two by three, another table for each batch and head.", BLOCKS, dtypes=ALL_DTYPES, stays="the ordinary block mask, in every dtype", **table((16, 16)))
    yield case("block-self", "BLOCK-1", "As many rows as keys, and a table that is not symmetric.", SELF, stays="as many rows as keys", **table((16, 16)), needs="Sq = Sk")
    yield case("block-whole", "BLOCK-1", "Lengths that blocks of 16 divide.", replace(BLOCKS, sq=32, sk=48), **table((16, 16)), stays="no block is cut off")
    yield case("block-wide", "BLOCK-2", "Blocks of 8 rows and 16 keys.", BLOCKS, stays="blocks with more keys than rows", **table((8, 16)))
    yield case("block-tall", "BLOCK-2", "Blocks of 16 rows and 8 keys.", SELF, stays="blocks with more rows than keys", **table((16, 8)))
    yield case("block-one", "BLOCK-2", "Blocks of one row and one key are a mask.", **table((1, 1)))
    yield case("block-one-key", "BLOCK-1 BLOCK-4", "One query and one key, which some heads have not.", replace(SMALL, sq=1, sk=1), block_mask=_one_of_two, block_size=(1, 1), data=numbered, stays="a mask of one key")
    yield case("block-three", "BLOCK-2", "Blocks of 3 rows and 5 keys.", BLOCKS, **table((3, 5)), stays="sizes that are no power of two")
    yield case("block-five", "BLOCK-2", "Blocks of 5 rows and 7 keys.", BLOCKS, **table((5, 7)), stays="other sizes that are no power of two")
    yield case("block-64", "BLOCK-2", "Blocks of 64; the second has one key.", TILES, dtypes=("float32", *HALVES), stays="a size in use, in half precision", **table((64, 64)))
    yield case("block-128", "BLOCK-2", "One block of 128, larger than the lengths: True for one head, False for the other.", TILES, block_mask=_alternating, block_size=(128, 128), data=numbered)
    yield case("block-shared", "BLOCK-1", "One table (2, 3) for all batches and heads.", BLOCKS, **table((16, 16), axes=""))
    yield case("block-by-head", "BLOCK-1", "A table for each head, for all batches.", BLOCKS, stays="one way to broadcast", **table((16, 16), axes="h"))
    yield case("block-by-batch", "BLOCK-1", "A table for each batch, for all heads.", BLOCKS, stays="one way to broadcast", **table((16, 16), axes="b"))
    yield case("block-grouped", "BLOCK-1 SDPA-17", "A table for each query head, with grouped heads.", replace(GROUPED, sq=9, sk=11), stays="a table for each query head of a group", **table((4, 4)))
    yield case("block-one-query", "BLOCK-1", "One query over blocks of keys, as in decoding.", replace(BLOCKS, sq=1), **table((1, 16)))
    yield case("block-last", "BLOCK-2", "Only the last block of keys, which is cut off.", BLOCKS, stays="one block, which is cut off", **table((16, 16), change=_only_last))
    yield case("block-not-first", "BLOCK-1 SDPA-14", "The first block of keys takes no part.", BLOCKS, stays="a masked first tile", **table((16, 16), change=_not_first))
    yield case("block-weights", "BLOCK-1 SDPA-18", "Weights are 0 in a block that is False.", BLOCKS, return_weights=True, stays="a block mask with weights", **table((16, 16)))


def _inside_calls() -> Iterator[Case]:
    small: dict[str, Any] = table((4, 4))
    shape = replace(SMALL, sq=9, sk=9)
    yield case("block-mask", "BLOCK-3", "A mask inside of the blocks.", BLOCKS, mask=random_mask(0.5), **table((16, 16)))
    yield case("block-mask-small", "BLOCK-3", "A mask inside of blocks of 4.", shape, mask=random_mask(0.5), **small)
    yield case("block-causal", "BLOCK-3 SDPA-9", "Causal inside of the blocks on the diagonal.", SELF, is_causal=True, **table((16, 16), change=_diagonal))
    yield case("block-causal-wide", "BLOCK-3 SDPA-9", "Causal, with blocks of 8 rows and 16 keys.", SELF, is_causal=True, **table((8, 16), change=_all))
    yield case("block-causal-empty", "BLOCK-4 SDPA-9", "Causal, and only blocks behind the diagonal: the first rows have no key.", shape, is_causal=True, **table((4, 4), change=_upper))
    yield case("block-window", "BLOCK-3 SDPA-11", "A window that crosses blocks.", shape, window=(3, 2), stays="a block mask and a window", **small)
    yield case("block-lengths", "BLOCK-3 SDPA-12", "Lengths that end inside of blocks.", BLOCKS, kv_lengths=lengths(37, 21, of=37), stays="a block mask and lengths", **table((16, 16), change=_all))
    yield case("block-bias", "BLOCK-3 SDPA-6", "A bias inside of the blocks.", shape, bias=random_bias(2.0), **small)
    yield case("block-softcap", "BLOCK-3 SDPA-5", "Softcap, which brings no masked block back.", shape, softcap=2.0, stays="a block mask and a softcap", **small)
    yield case("block-sinks", "BLOCK-4 SDPA-38", "A sink, and rows without a block.", shape, sinks=per_head(1.0), stays="a sink and rows without a block", **table((4, 4), change=_no_first_rows))
    yield case("block-sinks-one-key", "BLOCK-4 SDPA-38", "One query and one key, which some heads have not, and a sink.", replace(SMALL, sq=1, sk=1), sinks=per_head(1.0), block_mask=_one_of_two, block_size=(1, 1), data=numbered, stays="a mask of one key and a sink")
    yield case("block-past", "BLOCK-1 DEC-1", "Blocks of past and new keys together.", BLOCKS, past=18, stays="a block mask over a past", **table((16, 16)))


def _empty() -> Iterator[Case]:
    yield case("block-empty-first", "BLOCK-4", "The first block of rows has no block of keys: zeros.", BLOCKS, dtypes=("float32", *HALVES), stays="rows without a block, in half precision", **table((16, 16), change=_no_first_rows), needs="Sq > 16")
    yield case("block-empty-lse", "BLOCK-4 SDPA-19", "lse is −inf in rows without a block.", BLOCKS, return_lse=True, **table((16, 16), change=_no_first_rows), needs="Sq > 16")
    yield case("block-empty-all", "BLOCK-4", "No block at all: zeros everywhere.", BLOCKS, zeros=True, stays="no key anywhere", **table((16, 16), change=_none))
    yield case("block-empty-all-lse", "BLOCK-4 SDPA-19", "No block at all: lse is −inf everywhere.", BLOCKS, return_lse=True, zeros=True, stays="lse without a key anywhere", **table((16, 16), change=_none))
    yield case("block-empty-batch-lse", "BLOCK-4 SDPA-19", "A batch without a block.", BLOCKS, return_lse=True, stays="lse of a batch without a key", **table((16, 16), change=_no_last_batch), needs="B > 1")
    yield case("block-empty-constant", "BLOCK-4", "Rows without a block among values of a head and a batch each: neither a mean nor the rows before.", replace(BLOCKS, sq=48), return_lse=True, **table((16, 16), change=_no_middle_rows), needs="Sq > 32")


def _trees() -> Iterator[Case]:
    behind: dict[str, Any] = {"causal_offset": bottom_right, "data": numbered}
    yield case("tree", "TREE-1", "Two children for each node, behind a prefix of five keys.", TREE, tree_parents=_binary, dtypes=ALL_DTYPES, **behind)
    yield case("tree-chain", "TREE-2 TREE-1", "A chain is causal.", TREE, tree_parents=_chain, stays="the tree that is causal", **behind)
    yield case("tree-star", "TREE-2 TREE-1", "Draft tokens that follow none: each sees the prefix and itself.", TREE, tree_parents=_star, stays="roots alone", **behind)
    yield case("tree-drawn", "TREE-1 TREE-2", "A drawn tree for each batch.", replace(TREE, sq=9, sk=14), tree_parents=_random_parents, **behind, needs="B > 1")
    yield case("tree-tiles", "TREE-1", "Seventeen nodes behind 48 keys.", TILES, tree_parents=_random_parents, dtypes=("float32", *HALVES), stays="a tree over several tiles, in half precision", **behind)
    yield case("tree-deep", "TREE-2", "Forty nodes in three branches.", replace(TREE, sq=40, sk=45), tree_parents=_three_branches, **behind)
    yield case("tree-deep-drawn", "TREE-2", "A drawn tree of forty nodes.", replace(TREE, sq=40, sk=45), tree_parents=_random_parents, **behind)
    yield case("tree-no-prefix", "TREE-1", "No prefix: the offset is 0.", replace(TREE, sq=7, sk=7), tree_parents=_binary, data=numbered)
    yield case("tree-one-query", "TREE-1", "A tree of one node.", replace(TREE, sq=1), tree_parents=_star, **behind)
    yield case("tree-behind", "TREE-1", "Keys behind the tree, as in a cache of fixed size, take no part.", TREE, tree_parents=_binary, causal_offset=_half_way, data=numbered, needs="Sk > Sq")
    yield case("tree-offsets", "TREE-1 SDPA-10", "A prefix of another length for each batch.", TREE, tree_parents=_binary, causal_offset=ends(11, 8, of=11), data=numbered, needs="B > 1")
    yield case("tree-offsets-lse", "TREE-1 SDPA-10 SDPA-19", "lse with a prefix of another length for each batch.", TREE, tree_parents=_binary, causal_offset=ends(11, 8, of=11), return_lse=True, data=numbered, stays="lse of trees at several places", needs="B > 1")
    yield case("tree-grouped", "TREE-1 SDPA-17", "One tree for all heads, which are grouped.", replace(GROUPED, sq=6, sk=11), tree_parents=_binary, stays="a tree with grouped heads", **behind)
    yield case("tree-lse", "TREE-1 SDPA-19", "lse over the nodes seen.", TREE, tree_parents=_binary, return_lse=True, stays="lse of a tree", **behind)
    yield case("tree-past", "TREE-1 DEC-2", "Behind a past the tree begins at the new keys.", TREE, past=5, tree_parents=_binary, data=numbered, stays="one tree for all batches behind a past")
    yield case("tree-past-drawn", "TREE-1 DEC-2", "A drawn tree for each batch behind a past.", replace(TREE, sq=8, sk=12), past=4, tree_parents=_random_parents, data=numbered)


def _tree_options() -> Iterator[Case]:
    behind: dict[str, Any] = {"causal_offset": bottom_right, "data": numbered, "tree_parents": _binary}
    yield case("tree-mask", "TREE-3", "A mask hides some of the prefix and of the nodes.", TREE, mask=random_mask(0.5), **behind)
    yield case("tree-bias", "TREE-3 SDPA-6", "A bias on prefix and nodes.", TREE, bias=random_bias(2.0), stays="a tree and a bias", **behind)
    yield case("tree-causal", "TREE-3 SDPA-9", "Causal in addition, which changes nothing and replaces nothing.", TREE, is_causal=True, **behind)
    yield case("tree-causal-drawn", "TREE-3 SDPA-9", "Causal in addition, with a drawn tree.", TREE, is_causal=True, **behind | {"tree_parents": _random_parents})
    yield case("tree-lengths", "TREE-3 SDPA-12 DEC-5", "A cache of fixed size: another prefix for each batch, and lengths that end with the tree.", TREE, kv_lengths=lengths(11, 8, of=11), **behind | {"causal_offset": ends(11, 8, of=11)}, needs="B > 1")
    yield case("tree-blocks", "TREE-3 BLOCK-1", "A block mask in addition, which hides blocks of the prefix.", TREE, **table((3, 4)) | behind)


def _invalid() -> Iterator[Case]:
    yield case("block-invalid-size", "BLOCK-5", "A block mask without a block size.", BLOCKS, invalid=True, edit=_with(block_size=None), **table((16, 16)))
    yield case("block-invalid-count", "BLOCK-5", "A block mask for fewer blocks of keys than there are.", BLOCKS, invalid=True, edit=_with(block_mask=lambda a: a[..., :-1]), **table((16, 16)))
    yield case("block-invalid-heads", "BLOCK-5", "A block mask for one head more than there are.", BLOCKS, invalid=True, edit=_with(block_mask=lambda a: np.concatenate([a, a[:, :1]], 1)), **table((16, 16)))
    tree: dict[str, Any] = {"causal_offset": bottom_right, "data": numbered, "tree_parents": _random_parents, "invalid": True}
    yield case("tree-invalid-rows", "TREE-4", "A tree with one node less than there are queries.", TREE, edit=_with(tree_parents=lambda a: a[:, :-1]), **tree)
    yield case("tree-invalid-batch", "TREE-4", "Trees for one batch more than there are.", TREE, edit=_with(tree_parents=lambda a: np.concatenate([a, a[:1]])), **tree)


def _alternating(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    shape = (1, s.hq, -(-s.sq // 128), -(-s.sk // 128))
    return np.broadcast_to(np.arange(s.hq)[:, None, None] % 2 == 0, shape).copy()


def _one_of_two(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.broadcast_to(np.arange(s.hq)[:, None, None] % 2 == 0, (1, s.hq, s.sq, s.sk)).copy()


def _change(place: tuple[Any, ...], value: bool) -> Change:
    def change(blocks: np.ndarray) -> None:
        blocks[(..., *place)] = value

    return change


_all, _none = _change((), True), _change((), False)
_not_first, _no_first_rows = _change((0,), False), _change((0, slice(None)), False)
_no_middle_rows = _change((1, slice(None)), False)


def _no_last_batch(blocks: np.ndarray) -> None:
    blocks[-1:] = False


def _only_last(blocks: np.ndarray) -> None:
    blocks[..., :-1], blocks[..., -1] = False, True


def _diagonal(blocks: np.ndarray) -> None:
    rows, keys = np.ogrid[: blocks.shape[2], : blocks.shape[3]]
    blocks |= rows == keys


def _upper(blocks: np.ndarray) -> None:
    blocks[:] = np.triu(np.ones(blocks.shape[2:], bool), 1)
    blocks[..., -1, 0] = True


def _half_way(rng: Rng, s: Shape, dtype: np.dtype) -> int:
    return (s.sk - s.sq) // 2


def _chain(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.arange(s.sq) - 1


def _binary(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return (np.arange(s.sq) - 1) // 2


def _star(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.full(s.sq, -1, np.int64)


def _three_branches(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.maximum(np.arange(s.sq) - 3, -1)


def _random_parents(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return rng.integers(-1, np.arange(s.sq), (s.b, s.sq))


def _with(**changes: Any) -> Callable[[Inputs], Inputs]:
    """An edit of options: by option, a function of its value, or None to leave it out."""

    def edit(inputs: Inputs) -> Inputs:
        new = {name: None if change is None else change(inputs.keywords[name]) for name, change in changes.items()}
        kept = {name: value for name, value in (inputs.keywords | new).items() if value is not None}
        return replace(inputs, keywords=kept)

    return edit
