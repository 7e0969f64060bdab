"""Properties of block masks and of trees of draft tokens, each with its clause."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from attention_conformance.conformance.properties import transform
from attention_conformance.conformance.properties.form_property import follows
from attention_conformance.conformance.properties.properties import AS_DRAWN
from attention_conformance.conformance.properties.trial import Answer, Trial, constant
from attention_conformance.conformance.spec.inputs import Inputs

#: Keywords that problems of the two forms have.
_BLOCKS, _TREE = ("block_mask", "block_size"), ("tree_parents",)


@follows("blocks", "BLOCK-1", needs="block_mask block_size")
@follows("trees", "TREE-1", needs="tree_parents")
def agrees_with_reference(trial: Trial) -> None:
    """The results with random options are those of the reference, within the bound of the declared profile."""
    for name, result in trial.call(trial.inputs, AS_DRAWN).results.items():
        trial.equal(name, result, constant(result.exact))


# Block masks.


@follows("blocks", "BLOCK-1", needs="block_mask block_size mask")
def as_dense_mask(trial: Trial) -> None:
    """A block mask gives the same as a mask with its value at every row and key."""
    x = trial.inputs
    bq, bk = x.keywords["block_size"]
    rows, keys = np.arange(x.q.shape[2]) // bq, np.arange(x.k.shape[2]) // bk
    dense = x.keywords["block_mask"][..., rows, :][..., keys]
    one = trial.call(_masked(_without(x, *_BLOCKS), dense), "a dense mask in the place of its blocks")
    trial.same(trial.call(x, AS_DRAWN), one)


@follows("blocks", "BLOCK-1", needs="block_mask block_size", is_causal="", window="", kv_lengths="")
def blocks_permuted(trial: Trial) -> None:
    """Whole blocks of rows and of keys in another order, with the table, give the same rows in that order."""
    x = trial.inputs
    (rows, row_blocks), (keys, key_blocks) = (
        _another_order(trial, n, size)
        for n, size in zip((x.q.shape[2], x.k.shape[2]), x.keywords["block_size"], strict=True)
    )
    table = np.take(np.take(x.keywords["block_mask"], row_blocks, axis=-2), key_blocks, axis=-1)
    one = trial.call(x, AS_DRAWN)
    moved = transform.given(transform.rows(transform.keys(x, keys), rows), block_mask=table)
    two = trial.call(moved, f"its blocks of rows in the order {row_blocks}, of keys in the order {key_blocks}")
    _same_rows(trial, two, one, rows, keys)


@follows("blocks", "BLOCK-2", needs="block_mask block_size")
def smaller_blocks(trial: Trial) -> None:
    """Blocks cut into smaller ones of the same value give the same."""
    x = trial.inputs
    size = x.keywords["block_size"]
    divisors = [[n for n in range(1, each + 1) if each % n == 0] for each in size]
    smaller = tuple(trial.draw(st.sampled_from(each)) for each in divisors)
    hypothesis.assume(smaller != size)
    table = x.keywords["block_mask"]
    for axis, length in ((-2, x.q.shape[2]), (-1, x.k.shape[2])):
        table = np.repeat(table, size[axis] // smaller[axis], axis=axis)
        table = np.take(table, range(-(-length // smaller[axis])), axis=axis)
    one = trial.call(transform.given(x, block_mask=table, block_size=smaller), f"in blocks of {smaller}")
    trial.same(trial.call(x, AS_DRAWN), one)


@follows("blocks", "BLOCK-3", needs="block_mask block_size")
def every_block(trial: Trial) -> None:
    """A table that is True everywhere changes nothing."""
    x = trial.inputs
    one = trial.call(_without(x, *_BLOCKS), "without a block mask")
    table = np.ones_like(x.keywords["block_mask"])
    trial.same(trial.call(transform.given(x, block_mask=table), "with a table that is True everywhere"), one)


@follows("blocks", "BLOCK-1", needs="block_mask block_size", is_causal="causal_offset", window="causal_offset")
def rows_of_a_block_alone(trial: Trial) -> None:
    """A block of rows alone, with its row of the table, gives the same as among the others."""
    x = trial.inputs
    size, length = x.keywords["block_size"][0], x.q.shape[2]
    count = -(-length // size)
    hypothesis.assume(count > 1)
    n = trial.draw(st.integers(0, count - 1)) if not trial.few else count - 1
    rows = range(n * size, min(length, (n + 1) * size))
    part = transform.with_offset(transform.rows(x, rows), -n * size)
    part = transform.given(part, block_mask=x.keywords["block_mask"][..., n : n + 1, :])
    one = trial.call(part, f"its block of rows {n} alone")
    two = trial.call(x, AS_DRAWN)
    for name in one.results:
        trial.equal(name, two[name][:, :, rows.start : rows.stop], one[name])


@follows("blocks", "BLOCK-1", needs="block_mask block_size", is_causal="", window="", kv_lengths="")
def block_of_no_row(trial: Trial) -> None:
    """A block of keys that is False for every row can be left out."""
    x = trial.inputs
    size, length = x.keywords["block_size"][1], x.k.shape[2]
    count = -(-length // size)
    hypothesis.assume(count > 1)
    n = trial.draw(st.integers(0, count - 1)) if not trial.few else 0
    rest = [j for j in range(length) if j // size != n]
    table = x.keywords["block_mask"].copy()
    table[..., n] = False
    fewer = transform.given(transform.keys(x, rest), block_mask=np.delete(table, n, axis=-1))
    one = trial.call(fewer, f"without its block of keys {n}")
    two = trial.call(transform.given(x, block_mask=table), f"its block of keys {n} False for every row")
    trial.same(two, one, "output", "lse")
    if "weights" in two.results:
        trial.equal("weights", two["weights"][..., rest], one["weights"])


@follows("blocks", "BLOCK-1", needs="block_mask block_size")
def head_alone(trial: Trial) -> None:
    """A query head of a batch alone, with its own table, is that head among the others."""
    x = trial.inputs
    hypothesis.assume(x.q.shape[:2] != (1, 1))
    b, h = (trial.draw(st.integers(0, n - 1)) for n in x.q.shape[:2])
    one = trial.call(transform.head(transform.batch(x, b), h), f"its query head {h} of batch {b} alone")
    two = trial.call(x, AS_DRAWN)
    for name in one.results:
        trial.equal(name, two[name][b : b + 1, h : h + 1], one[name])


# Trees.


@follows("trees", "TREE-1", needs="tree_parents mask")
def as_mask_of_ancestors(trial: Trial) -> None:
    """A tree gives the same as a mask that allows the keys before it, and those of each row and its ancestors."""
    x = trial.inputs
    keys, dense = x.k.shape[2], np.zeros((x.q.shape[0], 1, x.q.shape[2], x.k.shape[2]), bool)
    for b, (parents, start) in enumerate(zip(*_trees(x), strict=True)):
        dense[b, 0, :, :start] = True
        for row in range(x.q.shape[2]):
            dense[b, 0, row, [start + node for node in _path(parents, row) if start + node < keys]] = True
    plain = _without(x, *_TREE, "is_causal", "causal_offset")
    one = trial.call(_masked(plain, dense), "a mask of ancestors in the place of its tree")
    trial.same(trial.call(x, AS_DRAWN), one)


@follows("trees", "TREE-1", needs="tree_parents", block_mask="")
def path_alone(trial: Trial) -> None:
    """A row and its ancestors alone, as a chain, give the same as in their tree."""
    x, parents, start = _one_batch(trial)
    row = trial.draw(st.integers(0, x.q.shape[2] - 1)) if not trial.few else x.q.shape[2] - 1
    path = _path(parents, row)
    alone, keys = _nodes(x, parents, path, start)
    one = trial.call(alone, f"row {row} and its ancestors alone, {path}")
    two = trial.call(x, "one batch with its tree")
    for name in one.results:
        part = two[name][:, :, path]
        trial.equal(name, part[..., keys] if name == "weights" else part, one[name])


@follows("trees", "TREE-1", needs="tree_parents", block_mask="", kv_lengths="")
def nodes_in_another_order(trial: Trial) -> None:
    """The rows of a tree in another order that has parents first, with their keys, give the same in that order."""
    x, parents, start = _one_batch(trial)
    count = x.q.shape[2]
    place = trial.draw(st.permutations(range(count)))
    order: list[int] = []
    while len(order) < count:
        ready = [row for row in range(count) if row not in order and parents[row] in (-1, *order)]
        order.append(min(ready, key=place.__getitem__))
    hypothesis.assume(order != sorted(order))
    moved, keys = _nodes(x, parents, order, start)
    one = trial.call(x, "one batch with its tree")
    _same_rows(trial, trial.call(moved, f"its rows in the order {order}"), one, order, keys)


@follows("trees", "TREE-2", needs="tree_parents is_causal")
def chain_is_causal(trial: Trial) -> None:
    """A tree in which each row follows the one before gives the same as is_causal."""
    x = trial.inputs
    one = trial.call(transform.given(_without(x, *_TREE), is_causal=True), "is_causal in the place of its tree")
    chain = np.broadcast_to(np.arange(x.q.shape[2]) - 1, x.keywords["tree_parents"].shape).copy()
    two = trial.call(transform.given(_without(x, "is_causal"), tree_parents=chain), "a chain in the place of its tree")
    trial.same(two, one)


@follows("trees", "TREE-2", needs="tree_parents")
def batch_alone(trial: Trial) -> None:
    """A batch alone, with its own tree, is that batch among the others."""
    x = trial.inputs
    hypothesis.assume(x.q.shape[0] > 1)
    b = trial.draw(st.integers(0, x.q.shape[0] - 1))
    one = trial.call(transform.batch(x, b), f"its batch {b} alone")
    two = trial.call(x, AS_DRAWN)
    for name in one.results:
        trial.equal(name, two[name][b : b + 1], one[name])


@follows("trees", "DEC-2", needs="tree_parents past_key past_value")
def tree_behind_a_past(trial: Trial) -> None:
    """The keys before a tree, given as a past, give the same as with an offset."""
    x = trial.inputs
    start = x.keywords.get("causal_offset", 0)
    hypothesis.assume(isinstance(start, int))
    one = trial.call(x, AS_DRAWN)
    past = transform.with_past(_without(x, "causal_offset"), start)
    trial.same(trial.call(past, f"its first {start} keys as a past"), one, "output", "weights", "lse")


# Parts of inputs.


def _without(x: Inputs, *names: str) -> Inputs:
    """The inputs without some keywords."""
    return Inputs(x.q, x.k, x.v, {name: value for name, value in x.keywords.items() if name not in names})


def _masked(x: Inputs, dense: np.ndarray) -> Inputs:
    """The inputs with this mask added, in full shape."""
    return transform.given(x, mask=np.ascontiguousarray(transform.full(x, "mask", True) & dense))


def _another_order(trial: Trial, length: int, size: int) -> tuple[list[int], list[int]]:
    """Rows or keys with whole blocks in another order, and the order of the blocks; a partial block stays last."""
    blocks = [*trial.draw(st.permutations(range(length // size))), *([length // size] if length % size else [])]
    return [n for block in blocks for n in range(block * size, min(length, (block + 1) * size))], blocks


def _same_rows(trial: Trial, got: Answer, wanted: Answer, rows: list[int], keys: list[int]) -> None:
    """Check that results are those of some rows, and weights those of some keys."""
    for name in got.results:
        part = wanted[name][:, :, rows]
        trial.equal(name, got[name], part[..., keys] if name == "weights" else part)


def _trees(x: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The parents of each batch, (B, Sq), and the key at which its tree begins, (B,)."""
    shape = (x.q.shape[0], x.q.shape[2])
    starts = np.reshape(x.keywords.get("causal_offset", 0), -1)
    return np.broadcast_to(x.keywords["tree_parents"], shape), np.broadcast_to(starts, shape[:1])


def _one_batch(trial: Trial) -> tuple[Inputs, list[int], int]:
    """A batch alone, the parents of its rows, and the key at which its tree begins."""
    b = trial.draw(st.integers(0, trial.inputs.q.shape[0] - 1)) if not trial.few else 0
    x = transform.batch(trial.inputs, b)
    (parents,), (start,) = _trees(x)
    return x, parents.tolist(), int(start)


def _path(parents: Any, row: int) -> list[int]:
    """A row and its ancestors, in order."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path


def _nodes(x: Inputs, parents: list[int], rows: list[int], start: int) -> tuple[Inputs, list[int]]:
    """Some rows of a tree, each behind its parent, with their keys, and the keys that are left."""
    keys = [*range(start), *(start + row for row in rows), *range(start + len(parents), x.k.shape[2])]
    part = transform.rows(transform.keys(x, keys), rows)
    if "kv_lengths" in x.keywords:  # the keys are in order, so that those within the length stay the first
        part = transform.given(part, kv_lengths=np.array([np.sum(np.array(keys) < x.keywords["kv_lengths"][0])]))
    own = [rows.index(parents[row]) if parents[row] >= 0 else -1 for row in rows]
    tree = np.array(own, np.int64).reshape((1, -1) if np.ndim(x.keywords["tree_parents"]) == 2 else -1)
    return transform.given(part, tree_parents=tree), keys
