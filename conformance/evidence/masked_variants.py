"""Honest variants of block masks, of trees and of latent attention: correct ways that programs use.

A block mask and a tree are masks of sdpa, whose variants round as variants.py says.  ``dense`` uses one mask instead,
and ``gathered`` gathers the allowed keys; both find the allowed keys in other ways than the reference does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.evidence import variants
from attention_conformance.conformance.faults.models.latent import Latent
from attention_conformance.conformance.faults.models.sdpa import Array, Attention
from attention_conformance.conformance.faults.models.tiles import Tiled
from attention_conformance.impls.contract import DTYPES, Profile
from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.numpy.latent import latent
from attention_conformance.impls.numpy.parts import working_dtype

_WIDE = dict.fromkeys(DTYPES, Profile.WIDE)


@dataclass(frozen=True)
class Honest:
    """A correct function of a form: the dtypes that it takes, and its profile in each."""

    function: Callable[..., Any]
    profiles: Mapping[str, Profile]


def _of_sdpa(*names: str) -> dict[str, Honest]:
    """Variants of sdpa by name, in the dtypes and profiles that they declare."""
    found = {name: getattr(variants, name) for name in names}
    return {n: Honest(each, {d: Profile(each.profiles[d]) for d in each.dtypes}) for n, each in found.items()}


# Block masks and trees.


def allowed(q: Array, k: Array, **options: Any) -> Array:
    """Allowed keys, boolean (B, Hq, Sq, Sk), by all options that restrict them, element by element."""
    parents, size, offset = (options.get(name) for name in ("tree_parents", "block_size", "causal_offset"))
    rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    place = rows + np.reshape(0 if offset is None else offset, (-1, 1, 1, 1))
    found = np.ones((*q.shape[:3], k.shape[2]), bool)
    if options.get("mask") is not None:
        found &= options["mask"]
    if options.get("is_causal"):
        found &= keys <= place
    left, right = options.get("window") or (None, None)
    if left is not None:
        found &= place - keys <= left
    if right is not None:
        found &= keys - place <= right
    if options.get("kv_lengths") is not None:
        found &= keys < np.reshape(options["kv_lengths"], (-1, 1, 1, 1))
    if size is not None:
        found &= options["block_mask"][..., rows // size[0], keys // size[1]]
    if parents is not None:
        found &= _ancestors(np.broadcast_to(parents, (len(q), q.shape[2])), place[:, 0, 0, 0], k.shape[2])[:, None]
    return found


def _ancestors(parents: Array, starts: Array, keys: int) -> Array:
    """The keys before each tree and those of ancestors, (B, Sq, keys), by powers of the parent matrix."""
    batch, count = parents.shape
    follows = (parents[:, :, None] == np.arange(count)).astype(np.int64) + np.eye(count, dtype=np.int64)
    for _ in range(count.bit_length()):
        follows = np.minimum(follows @ follows, 1)
    found = np.zeros((batch, count, keys), bool)
    for b, start in enumerate(np.broadcast_to(starts, batch).tolist()):
        found[b, :, :start] = True
        found[b, :, start : start + count] = follows[b][:, : keys - start]
    return found


#: The options that ``allowed`` replaces.
MASKS = ("mask", "is_causal", "causal_offset", "window", "kv_lengths", "block_mask", "block_size", "tree_parents")


def dense(q: Array, k: Array, v: Array, **options: Any) -> Any:
    """One mask in full shape instead of all options that mask."""
    rest = {name: value for name, value in options.items() if name not in MASKS}
    return attention(q, k, v, mask=allowed(q, k, **options), **rest)


def gathered(q: Array, k: Array, v: Array, **options: Any) -> Any:
    """Each row by itself, reading only the keys that it attends to; weights are scattered back to their places."""
    rest = {name: value for name, value in options.items() if name not in (*MASKS, "bias", "sinks")}
    mask, group = allowed(q, k, **options), q.shape[1] // k.shape[1]
    found: dict[str, Array] = {
        "output": np.zeros((*q.shape[:3], v.shape[3]), q.dtype),
        "weights": np.zeros(mask.shape, q.dtype),
        "lse": np.zeros(q.shape[:3], working_dtype(q.dtype)),
    }
    rest |= {"return_weights": True, "return_lse": True}
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = np.flatnonzero(mask[b, h, i])
        own = dict(rest)
        if options.get("bias") is not None:
            own["bias"] = np.broadcast_to(options["bias"], mask.shape)[b : b + 1, h : h + 1, i : i + 1, keys]
        if options.get("sinks") is not None:
            own["sinks"] = options["sinks"][h : h + 1]
        one = (array[b : b + 1, h // group : h // group + 1, keys] for array in (k, v))
        output, weights, lse = attention(q[b : b + 1, h : h + 1, i : i + 1], *one, **own)
        found["output"][b, h, i], found["lse"][b, h, i] = output[0, 0, 0], lse[0, 0, 0]
        found["weights"][b, h, i, keys] = weights[0, 0, 0]
    asked = ["output", *(name for name in ("weights", "lse") if options.get(f"return_{name}"))]
    return tuple(found[name] for name in asked) if len(asked) > 1 else found["output"]


_EAGER = {"eager": Honest(attention, _WIDE), "dense": Honest(dense, _WIDE), "gathered": Honest(gathered, _WIDE)}


# Latent attention.


class LatentInTiles(Latent):
    """Absorbed, by an online softmax over tiles of tokens."""

    attention = Tiled


def _through_storage(array: Array, dtype: np.dtype) -> Array:
    """The array rounded to a storage dtype, and back in the working dtype."""
    return array.astype(dtype).astype(working_dtype(dtype))


def _wide(arrays: tuple[Array, ...]) -> Iterator[Array]:
    return (array.astype(working_dtype(array.dtype)) for array in arrays)


def _options(arrays: tuple[Array, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of sdpa: the scale of both parts of the queries (MLA-4), and always lse."""
    options = {name: value for name, value in given.items() if value is not None}
    return {"scale": (arrays[0].shape[3] + arrays[1].shape[3]) ** -0.5} | options | {"return_lse": True}


def _with_rotary_key(array: Array, rope: Array) -> Array:
    """Projected keys with the rotary key, which all heads share, appended."""
    return np.concatenate([array, np.broadcast_to(rope[:, None], (*array.shape[:3], rope.shape[2]))], axis=3)


def expanded(*arrays: Array, return_lse: bool = False, **given: Any) -> Any:
    """Keys and values of every head are projected and stored, as between two operators."""
    dtype = arrays[0].dtype
    q, q_rope, c, rope, w_uk, w_uv = _wide(arrays)
    keys, values = (_through_storage(c[:, None] @ w, dtype) for w in (w_uk, w_uv))
    queries = np.concatenate([q, q_rope], axis=3)
    output, lse = attention(queries, _with_rotary_key(keys, rope), values, **_options(arrays, given))
    return (output.astype(dtype), lse) if return_lse else output.astype(dtype)


def head_by_head(*arrays: Array, return_lse: bool = False, **given: Any) -> Any:
    """Expanded, one head and one batch after the other."""
    q, q_rope, c, rope, w_uk, w_uv = arrays
    output, lse = np.zeros((*q.shape[:3], w_uv.shape[2]), q.dtype), np.zeros(q.shape[:3], working_dtype(q.dtype))
    for b, h in np.ndindex(*q.shape[:2]):
        batch, head = slice(b, b + 1), slice(h, h + 1)
        own = {n: value[batch] if np.ndim(value) else value for n, value in given.items()}
        own_arrays = (q[batch, head], q_rope[batch, head], c[batch], rope[batch], w_uk[head], w_uv[head])
        (output[b, h],), (lse[b, h],) = (each[0] for each in expanded(*own_arrays, return_lse=True, **own))
    return (output, lse) if return_lse else output


def absorbed(*arrays: Array, return_lse: bool = False, **given: Any) -> Any:
    """Queries are multiplied by w_uk and the output by w_uv; arrays between the three products are stored."""
    dtype = arrays[0].dtype
    q, q_rope, c, rope, w_uk, w_uv = _wide(arrays)
    queries = np.concatenate([_through_storage(q @ w_uk.swapaxes(1, 2), dtype), q_rope], axis=3)
    cache = np.concatenate([c, rope], axis=2)[:, None]
    output, lse = attention(queries, cache, c[:, None], **_options(arrays, given))
    output = (_through_storage(output, dtype) @ w_uv).astype(dtype)
    return (output, lse) if return_lse else output


def _around_attention(model: Attention, form: str) -> Callable[..., Any]:
    """One of the forms around an attention that takes arrays in the storage dtype and decides itself what it stores."""

    def computed(*arrays: Array, return_lse: bool = False, **given: Any) -> Any:
        dtype = arrays[0].dtype
        q, q_rope, c, rope, w_uk, w_uv = _wide(arrays)
        if form == "expanded":
            keys, values = _with_rotary_key(c[:, None] @ w_uk, rope), c[:, None] @ w_uv
            queries = np.concatenate([q, q_rope], axis=3)
        else:
            keys, values = np.concatenate([c, rope], axis=2)[:, None], c[:, None]
            queries = np.concatenate([q @ w_uk.swapaxes(1, 2), q_rope], axis=3)
        operands = (array.astype(dtype) for array in (queries, keys, values))
        output, lse = model(*operands, **_options(arrays, given))
        if form == "absorbed":
            output = (output.astype(working_dtype(dtype)) @ w_uv).astype(dtype)
        return (output, lse) if return_lse else output

    return computed


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of six arrays with the operator's names for them."""

    @functools.wraps(function)
    def named(q: Array, q_rope: Array, latents: Array, k_rope: Array, w_uk: Array, w_uv: Array, **given: Any) -> Any:
        return function(q, q_rope, latents, k_rope, w_uk, w_uv, **given)

    return named


_HALVES = dict.fromkeys(variants.HALVES, Profile.STORAGE)

#: The variants of each form, by name.
MASKED: dict[str, dict[str, Honest]] = {
    "blocks": _EAGER | _of_sdpa("tiles", "split_keys", "base_two", "flash", "storage"),
    "trees": _EAGER | _of_sdpa("tiles", "split_keys", "base_two", "flash", "storage"),
    "latent": {
        "once_rounded": Honest(latent, _WIDE),
        "in_tiles": Honest(LatentInTiles(), _WIDE),
        "expanded": Honest(_by_name(expanded), _WIDE),
        "head_by_head": Honest(_by_name(head_by_head), _WIDE),
        "absorbed": Honest(_by_name(absorbed), _WIDE),
        "expanded_storage": Honest(_by_name(_around_attention(variants.storage, "expanded")), _HALVES),
        "absorbed_storage": Honest(_by_name(_around_attention(variants.storage, "absorbed")), _HALVES),
    },
}
