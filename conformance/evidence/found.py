"""Deviations that the evidence found and no fixed case meets: what the ledger is to cases, this is to random problems.

Each is a record as in deviations.toml, and the rows that it spoils, as in conformance.known.  When its input becomes a
fixed case, it moves there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from conformance.cases.base import Case, Inputs
from conformance.deviations import Deviation
from conformance.known import Known
from conformance.outcomes import Failure
from conformance.reference import Expected
from conformance.targets import Target

#: The rows that a deviation spoils, boolean (B, Hq, Sq); True alone stands for all of them.
Spoils = Callable[[Inputs, Expected], np.ndarray | bool]


def _one_row(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """All rows but the first, where is_causal meets a mask or bias with one row for all of them."""
    rows = expected.allowed.shape[2]
    given = [x.keywords[name] for name in ("mask", "bias") if name in x.keywords]
    met = any(array.ndim > 1 and array.shape[-2] == 1 < rows for array in given)
    return bool(x.keywords.get("is_causal")) and met and np.arange(rows) > 0


def _rank_1(x: Inputs, expected: Expected) -> bool:
    """is_causal with a mask or bias of rank 1."""
    given = [x.keywords[name] for name in ("mask", "bias") if name in x.keywords]
    return bool(x.keywords.get("is_causal")) and any(array.ndim == 1 for array in given)


def _length_zero(x: Inputs, expected: Expected) -> bool:
    """A batch of length 0."""
    return bool(np.any(x.keywords.get("kv_lengths", 1) == 0))


def _two_of_three(x: Inputs, expected: Expected) -> bool:
    """One batch, one key head, and two of the rows of the group, the keys and the width are 1."""
    _, heads, rows, width = x.q.shape
    sizes = (heads * rows, x.k.shape[2], width)
    return x.k.shape[:2] == (1, 1) and sum(size == 1 for size in sizes) > 1


#: Names of random problems.
PROBLEMS = ("evidence-*",)

#: The records, each with the rows that it spoils.
FOUND: tuple[tuple[Deviation, Spoils], ...] = (
    (
        Deviation(
            id="onnx-reference-causal-one-row",
            implementations=("onnx-reference",),
            package="onnx",
            versions=">=1.23,<1.24",
            clause="SDPA-8",
            cases=PROBLEMS,
            failure=Failure.VALUE,
            instead="is_causal with a mask or bias that has one row for all lets every row see the first key alone",
            upstream="unreported",
        ),
        _one_row,
    ),
    (
        Deviation(
            id="onnx-reference-causal-rank-1",
            implementations=("onnx-reference",),
            package="onnx",
            versions=">=1.23,<1.24",
            clause="SDPA-8",
            cases=PROBLEMS,
            failure=Failure.ERROR,
            instead="is_causal with a mask or bias of rank 1 raises ValueError",
            upstream="unreported",
        ),
        _rank_1,
    ),
    (
        Deviation(
            id="ort-gqa-length-zero",
            implementations=("ort-gqa",),
            package="onnxruntime",
            versions=">=1.31,<1.32",
            clause="SDPA-15",
            cases=PROBLEMS,
            failure=Failure.ERROR,
            instead="a batch without a key is refused: seqlens_k is one less than the length",
            upstream="unreported",
        ),
        _length_zero,
    ),
    (
        Deviation(
            id="jax-nn-bfloat16-vector",
            implementations=("jax-nn",),
            package="jax",
            versions=">=0.10,<0.11",
            clause="SDPA-1",
            cases=PROBLEMS,
            failure=Failure.ERROR,
            instead="XLA does not compile a product of bfloat16 vectors for one batch and one key head on the CPU",
            upstream="unreported",
            dtypes=("bfloat16",),
            devices=("cpu",),
        ),
        _two_of_three,
    ),
)


def triggered(target: Target, case: Case, versions: Mapping[str, str]) -> tuple[Known, ...]:
    """Which records in force a problem triggers on a target."""
    name, device, dtype = target.implementation.name, target.device, target.dtype
    inputs, expected = case.inputs(dtype), case.expected(dtype)
    found = []
    for record, spoils in FOUND:
        if record.covers(name, device, dtype, case.name) and record.in_force(versions):
            rows = np.broadcast_to(spoils(inputs, expected), expected.allowed.shape[:3])
            if rows.any():
                found.append(Known(record, rows))
    return tuple(found)
