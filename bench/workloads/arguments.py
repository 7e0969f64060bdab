"""Arguments of a workload's calls: shapes, arrays from a seed, keywords, and the shapes of the results."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.bench.workloads.workload import PACKED, PATTERN, Workload
from attention_conformance.impls.operators import OPERATORS

Shape = tuple[int, ...]

#: LayerNorm's epsilon, PyTorch's default.
EPSILON = 1e-5

#: Places by which a fresh set is moved: a prime, so that its multiples repeat late in arrays of any size.
STEP = 7919

#: Input sets that are rotated, so that no call finds its own inputs in the nearest cache.
SETS = 3

#: Parameters of a layer.  A model has the same in all calls, and a library may prepare them once, as torch's modules
#: hold them in a form of their own: so a new input set has new x and gradients, but the same parameters.
PARAMETERS = frozenset(("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "gamma", "beta"))

#: Names of the results of a pass with a cache of past keys (impls.operators); the past and the new, joined.
PRESENT = {"present_key": "k", "present_value": "v"}


def shapes(w: Workload) -> dict[str, Shape]:
    """Shapes of everything that is drawn in the dtype of the call, by name: arguments first, then keywords."""
    if w.kind == "merge":
        rows = (w.other, w.batch, w.heads, w.length)
        return {"outputs": (*rows, w.width), "lses": rows}
    if w.kind in PACKED:
        return _packed(w)
    found: dict[str, Shape] = _layer(w) if w.kind in ("mha", "sublayer") else _heads(w)
    if w.has_bias:
        found["bias"] = (1, w.heads, w.length, w.keys)
    return found


def _heads(w: Workload) -> dict[str, Shape]:
    new = w.keys - w.past
    found: dict[str, Shape] = {
        "q": (w.batch, w.heads, w.length, w.width),
        "k": (w.batch, w.kv_heads, new, w.width),
        "v": (w.batch, w.kv_heads, new, w.value_width),
    }
    if w.is_gradient:
        found["grad_output"] = (w.batch, w.heads, w.length, w.value_width)
    if w.past:
        found["past_key"] = (w.batch, w.kv_heads, w.past, w.width)
        found["past_value"] = (w.batch, w.kv_heads, w.past, w.value_width)
    return found


def _packed(w: Workload) -> dict[str, Shape]:
    found: dict[str, Shape] = {"q": (w.tokens, w.heads, w.width)}
    keys, values = (w.kv_heads, w.width), (w.kv_heads, w.value_width)
    if w.kind == "varlen":
        return found | {"k": (w.tokens, *keys), "v": (w.tokens, *values)}
    pages = sum(_pages(w))
    return found | {"k_cache": (pages, w.page, *keys), "v_cache": (pages, w.page, *values)}


def _pages(w: Workload) -> list[int]:
    """Pages of each sequence."""
    return [-(-keys // w.page) for _, keys in w.sequences]


def structure(w: Workload) -> dict[str, np.ndarray]:
    """Arguments that describe the layout: boundaries of packed sequences, tables of pages, and lengths."""
    if w.kind not in PACKED:
        return {}
    rows, keys = np.array(w.sequences, np.int32).T
    bounds = {"cu_seqlens_q": np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)}
    if w.kind == "varlen":
        return bounds | {"cu_seqlens_k": bounds["cu_seqlens_q"].copy()}
    counts = _pages(w)
    order = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)  # as they are once some pages were freed
    table = np.zeros((w.batch, max(counts)), np.int32)
    for row, own in zip(table, np.split(order, np.cumsum(counts)[:-1]), strict=True):
        row[: len(own)] = own
    return bounds | {"block_table": table, "kv_lengths": np.ascontiguousarray(keys)}


def block_mask(w: Workload) -> np.ndarray:
    """Blocks that take part in a workload in blocks: bool (1, H, n, n); n blocks cover all rows, the last may be short.

    Every head has its own random blocks from between the ends; all have equally many.
    """
    n, ends = -(-w.length // w.page), PATTERN["ends"]
    places = np.arange(n)
    outer = (places < ends) | (places >= n - ends)
    mask = np.broadcast_to(abs(places[:, None] - places) <= PATTERN["beside"], (1, w.heads, n, n)).copy()
    mask |= outer | outer[:, None]
    generator = np.random.default_rng(0)
    for row in mask.reshape(-1, n):
        rest = np.flatnonzero(~row)
        row[generator.choice(rest, min(PATTERN["random"], len(rest)), replace=False)] = True
    return mask


def _layer(w: Workload) -> dict[str, Shape]:
    columns = w.heads * w.width
    found: dict[str, Shape] = {"x_q": (w.batch, w.length, columns)}
    found |= dict.fromkeys(("w_q", "w_k", "w_v"), (columns, columns))
    if w.is_gradient:
        found["grad_output"] = found["x_q"]
    found["w_o"] = (columns, columns)
    found |= dict.fromkeys(("b_q", "b_k", "b_v", "b_o"), (columns,))
    if w.kind == "sublayer":
        found |= dict.fromkeys(("gamma", "beta"), (columns,))
    return found


def options(w: Workload) -> dict[str, Any]:
    """The keywords other than arrays of the call's dtype; default values are left out, as a user would."""
    found: dict[str, Any] = {}
    if w.kind in ("mha", "sublayer"):
        found["heads"] = w.heads
    if w.kind == "sublayer":
        found["epsilon"] = EPSILON
    if w.is_causal:
        found["is_causal"] = True
    if w.window is not None:
        found["window"] = (w.window, 0)
    if w.softcap is not None:
        found["softcap"] = float(w.softcap)
    if w.is_padded:
        found["kv_lengths"] = np.array(w.kv_lengths, np.int64)
    if w.kind == "blocks":
        found |= {"block_mask": block_mask(w), "block_size": (w.page, w.page)}
    if w.kind in PACKED:
        rows, keys = zip(*w.sequences, strict=True)
        found |= {"max_seqlen_q": max(rows), "max_seqlen_k": max(keys)}
    return found


def keywords(w: Workload) -> frozenset[str]:
    """The features that an implementation needs."""
    operator = OPERATORS[w.operator]
    return (frozenset(shapes(w)) - set(operator.arguments) | frozenset(options(w))) - set(operator.always)


def results(w: Workload) -> dict[str, Shape]:
    """Shapes of the results, in the order in which they are returned."""
    given = shapes(w)
    found: dict[str, Shape] = {}
    if w.kind == "merge":
        return {"output": given["outputs"][1:], "lse": given["lses"][1:]}
    for name in OPERATORS[w.operator].returned({*given, *options(w)}):
        if name == "output":
            found[name] = given["x_q"] if "x_q" in given else (*given["q"][:-1], w.value_width)
        elif name in PRESENT:
            batch, heads, _, width = given[PRESENT[name]]
            found[name] = (batch, heads, w.keys, width)
        else:
            found[name] = given[name.removeprefix("grad_")]
    return found


def dtype_of(name: str, dtype: str) -> str:
    """The dtype of an array or result of a call in ``dtype``: log-sum-exps are at least in float32."""
    return "float32" if name in ("lse", "lses") and dtype != "float64" else dtype


def make(w: Workload, dtype: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arguments and keywords; equal seeds give equal ones.

    Numbers are normal: standard for q, k, v, inputs, biases and gradients; weights keep the size of what they
    multiply, and gamma is around 1.
    """
    generator = np.random.default_rng([seed, zlib.crc32(w.name.encode())])
    drawn = {name: _draw(generator, name, shape, dtype_of(name, dtype)) for name, shape in shapes(w).items()}
    arguments, known = OPERATORS[w.operator].arguments, drawn | structure(w)
    rest = {name: array for name, array in drawn.items() if name not in arguments}
    return {name: known[name] for name in arguments}, rest | options(w)


def fresh(
    w: Workload, arrays: Mapping[str, np.ndarray], keywords: Mapping[str, Any], number: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Another set with the same numbers at other places: as good as drawn again, at the cost of a copy.

    Equal numbers give equal sets; different ones differ, as long as they are fewer than the elements of an array.  The
    parameters of a layer are the same in all.
    """
    drawn = shapes(w).keys() - PARAMETERS

    def moved(given: Mapping[str, Any]) -> dict[str, Any]:
        return {n: np.roll(value, STEP * (number + 1)) if n in drawn else value for n, value in given.items()}

    return moved(arrays), moved(keywords)


def _draw(generator: np.random.Generator, name: str, shape: Shape, dtype: str) -> np.ndarray:
    numbers: np.ndarray = generator.standard_normal(shape, dtype=np.float32)
    if name.startswith("w_"):
        numbers /= np.sqrt(np.float32(shape[0]))
    elif name == "gamma":
        numbers = 1 + numbers / 4
    return numbers.astype(np.dtype(dtype))
