"""Costs of a workload: floating-point operations by a printed formula per operator, bytes to move, and intensity.

    bytes      what must be read once + the results written once
    intensity  floating-point operations ÷ bytes
    limit      min(matmul peak, intensity · memory bandwidth)

A call must read the keys of k and v that at least one row sees, once for all query heads of their group; the rows of q
and grad_output that see at least one key; the pairs of a bias that are allowed in some sequence; lengths; and for the
layers everything.  A call with a cache reads the past and writes it into the present that it returns, as the operator
requires: a cache that grows in place moves half of it.

A kernel whose arrays stay in a cache can exceed the peak of the bandwidth, which is the memory's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attention_conformance.bench.memory.predict import result_bytes
from attention_conformance.bench.records import Roofline
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import PACKED, Workload

#: The formulas as reports print them, by operator.  Matrix products are counted, a multiplication and an addition per
#: element; softmax (about 5 operations a pair against 2·(D + Dv)), biases and normalisation are not.  ``pairs`` is the
#: number of allowed pairs (i, j) of one head in one sequence, on average over the B sequences.
#:
#: Forward, 2 products a pair: q·k of D terms and P·V of Dv.
#: Gradients, 5 products: q·k again, dP = dO·Vᵀ, dV = Pᵀ·dO (Dv terms), dQ = dS·K and dK = dSᵀ·Q (D terms) must be
#: computed from q, k, v and dO (Dao et al. 2022, FlashAttention, algorithm 4); with D = Dv that is 5/2 of the forward
#: pass.  A program that runs its forward pass as well gets no credit for it.
#: Layers, a product E × H·D for q, k and v, and H·D × E for the output, per token; E = H·D.
#: Gradients of the layer: the products of q, k and v again, and two for the gradients of each projection, of its input
#: and of its weight: 3 + 3 + 3 + 2 of them; the 5 of attention, and P·V, from which the gradient of w_o is made.
FORMULAS = {
    "sdpa": "2·B·H·pairs·(D + Dv)",
    "sdpa_grad": "2·B·H·pairs·(3·D + 2·Dv)",
    "mha": "8·B·S·E² + 4·B·H·pairs·D",
    "sublayer": "8·B·S·E² + 4·B·H·pairs·D",
    "mha_grad": "22·B·S·E² + 12·B·H·pairs·D",
    "merge": "2·B·H·S·parts·D",
    "varlen": "2·B·H·pairs·(D + Dv)",
    "paged": "2·B·H·pairs·(D + Dv)",
}

#: Arrays whose rows need not all be read: those of queries, and those of keys.
QUERIES, KEYS = ("q", "grad_output"), ("k", "v", "k_cache", "v_cache")

COMPUTE, BANDWIDTH = "compute", "bandwidth"


def pairs(workload: Workload) -> int:
    """Pairs (i, j) of a query row and a key that it may attend to, in one head, summed over the sequences."""
    if workload.kind == "blocks":
        mask = arguments.block_mask(workload)[0, 0]  # equally many in every head
        sizes = np.minimum(workload.page, workload.length - workload.page * np.arange(len(mask)))
        return workload.batch * int(sizes @ mask @ sizes)
    return sum(int(np.maximum(last - first + 1, 0).sum()) for first, last in _spans(workload))


def _spans(w: Workload) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """First and last key that each row may attend to, sequence by sequence; the last before the first where none."""
    for rows, keys in w.sequences:
        positions = np.arange(rows) + (keys - rows if w.kind in PACKED else w.past)
        first = np.zeros_like(positions) if w.window is None else np.maximum(positions - w.window, 0)
        yield first, np.minimum(positions, keys - 1) if w.is_causal else np.full_like(positions, keys - 1)


def flops(workload: Workload) -> int:
    """The operator's formula, for one call.  A kernel that also computes masked pairs gets no credit for them.

    Parameters
    ----------
    workload
        Shape and options of the call.

    Returns
    -------
    int
        Floating-point operations; a multiplication and an addition are two.
    """
    w, terms = workload, workload.heads * pairs(workload)
    projection = 2 * w.tokens * (w.heads * w.width) ** 2
    counts = {
        "sdpa": 2 * terms * (w.width + w.value_width),
        "sdpa_grad": 2 * terms * (3 * w.width + 2 * w.value_width),
        "mha": 4 * projection + 4 * terms * w.width,
        "sublayer": 4 * projection + 4 * terms * w.width,
        "mha_grad": 11 * projection + 12 * terms * w.width,
        "merge": 2 * terms * w.width,  # a pair is a row and a part
        **dict.fromkeys(PACKED, 2 * terms * (w.width + w.value_width)),
    }
    return counts[w.operator]


def least_bytes(w: Workload, dtype: str) -> int:
    """Fewest bytes that a call of the workload must move."""
    given = sum(
        _read(w, name, shape) * np.dtype(arguments.dtype_of(name, dtype)).itemsize
        for name, shape in arguments.shapes(w).items()
    )
    rest = [*arguments.structure(w).values(), *arguments.options(w).values()]
    return given + sum(a.nbytes for a in rest if isinstance(a, np.ndarray)) + result_bytes(w, dtype)


def intensity(w: Workload, dtype: str) -> float:
    """Floating-point operations per byte."""
    return flops(w) / least_bytes(w, dtype)


def measures(w: Workload, dtype: str, seconds: float, roofline: Roofline | None) -> dict[str, Any]:
    """Measures of a cell whose median is ``seconds``; without a roofline its shares are None."""
    found: dict[str, Any] = {"bytes_least": least_bytes(w, dtype), "intensity": intensity(w, dtype)}
    peak = roofline.flops_per_second if roofline else None
    bandwidth = roofline.bytes_per_second if roofline else None
    speed = flops(w) / seconds
    found |= {"bound_by": None, "share_of_peak": speed / peak if peak else None, "share_of_limit": None}
    if peak and bandwidth:
        reachable = intensity(w, dtype) * bandwidth
        found["bound_by"] = COMPUTE if peak <= reachable else BANDWIDTH
        found["share_of_limit"] = speed / min(peak, reachable)
    return found


def _read(w: Workload, name: str, shape: tuple[int, ...]) -> int:
    """Count of the numbers of one input that must be read."""
    if w.kind in ("mha", "sublayer"):
        return math.prod(shape)  # every position is a query, and every row of the bias is in the gradients
    if name == "bias":
        return w.heads * pairs(dataclasses.replace(w, batch=1, is_padded=False))  # the first sequence is not padded
    if name in QUERIES:
        return _seen(w)[0] * w.heads * shape[-1]
    if name in KEYS and w.kind != "decode":
        return _seen(w)[1] * w.kv_heads * shape[-1]
    return math.prod(shape)


def _seen(w: Workload) -> tuple[int, int]:
    """Rows that see a key, and keys that a row sees, in one head, summed over the sequences."""
    rows = keys = 0
    for first, last in _spans(w):
        some = first <= last
        rows += int(some.sum())
        # The first and the last key move by one from row to row, or not at all, so the seen keys have no gap.
        keys += int(last[some].max() - first[some].min() + 1) if some.any() else 0
    return rows, keys
