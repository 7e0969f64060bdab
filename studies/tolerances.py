"""Tolerances of well-known tests: which faults they accept on their own inputs, and the error bound refuses.

The rules are those of flash-attention's, PyTorch's and Triton's tests, on inputs of their distribution; lengths are cut
so that all take a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.conformance.closeness import error_share
from attention_conformance.conformance.evidence.variants import storage
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.spec import sdpa as reference
from studies.common import Study, markdown, sentence

#: Accepts an output, given the outputs of the reference and of plain attention in half precision.
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], bool]

SEED = 20261123


@dataclass(frozen=True)
class LibraryTest:
    """A test of a library: its inputs and its rule."""

    source: str
    says: str
    dtype: Any
    lengths: tuple[int, int]
    width: int
    spread: float
    options: Mapping[str, Any]
    accepts: Rule

    def inputs(self) -> list[np.ndarray]:
        """Normal q, k and v of one batch and two heads."""
        rng = np.random.default_rng(SEED)
        sq, sk = self.lengths
        return [(self.spread * rng.standard_normal((1, 2, n, self.width))).astype(self.dtype) for n in (sq, sk, sk)]


def _worst(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


TESTS = (
    LibraryTest(
        "Dao-AILab/flash-attention tests/test_flash_attn.py",
        "at most twice the error of plain attention in the same dtype",
        ml_dtypes.bfloat16,
        (113, 203),
        64,
        1.0,
        {"is_causal": True, "causal_offset": 90},
        lambda out, exact, plain: _worst(out, exact) <= 2 * _worst(plain, exact),
    ),
    LibraryTest(
        "pytorch/pytorch test/test_transformers.py",
        "at most 4 times the error of plain attention in the same dtype",
        np.float16,
        (128, 152),
        64,
        1.0,
        {"is_causal": True},
        lambda out, exact, plain: _worst(out, exact) <= max(4 * _worst(plain, exact), 1e-5),
    ),
    LibraryTest(
        "triton-lang/triton python/tutorials/06-fused-attention.py",
        "an error of at most 0.01",
        np.float16,
        (128, 128),
        64,
        0.5,
        {"is_causal": True, "scale": 0.5},
        lambda out, exact, plain: _worst(out, exact) <= 1e-2,
    ),
)


def judged(test: LibraryTest, function: Callable[..., Any]) -> tuple[bool, bool] | None:
    """Whether a test's rule accepts a function, and whether the bound does; None for a function without an output."""
    q, k, v = test.inputs()
    exact = reference.sdpa(q, k, v, **test.options).output
    plain = np.asarray(storage(q, k, v, **test.options)).astype(np.float64)
    try:
        with np.errstate(all="ignore"):
            found = function(q.copy(), k.copy(), v.copy(), **test.options)
    except Exception:  # some faults refuse a call
        return None
    if not isinstance(found, np.ndarray) or found.shape != exact.shape or found.dtype != q.dtype:
        return None
    output = found.astype(np.float64)
    accepted = bool(np.isfinite(output).all()) and test.accepts(output, exact, plain)
    return accepted, error_share(found, q, k, v, **test.options) <= 1


def measure() -> dict[str, Any]:
    """Every fault of sdpa on the inputs of every test."""
    rows = []
    for test in TESTS:
        found = {name: judged(test, fault.make()) for name, fault in FAULTS.items() if fault.operator == "sdpa"}
        told = {name: verdict for name, verdict in found.items() if verdict is not None}
        rows.append(
            {
                "source": test.source,
                "says": test.says,
                "called": len(told),
                "outside": sum(not bound for _, bound in told.values()),
                "accepted": sorted(name for name, (rule, bound) in told.items() if rule and not bound),
                "refused": sorted(name for name, (rule, bound) in told.items() if bound and not rule),
                "right": judged(test, storage),
            }
        )
    return {"tests": rows, "threads": 1}


def table(found: Mapping[str, Any]) -> str:
    """One row for each test, and the names below it."""
    heads = ("test", "its rule", "faults outside the bound", "of these it accepts", "inside, and it refuses")
    rows = [
        (f"`{one['source']}`", one["says"], one["outside"], len(one["accepted"]), len(one["refused"]))
        for one in found["tests"]
    ]
    named = [
        f"`{one['source'].partition(' ')[0]}` accepts {', '.join(one['accepted'])}."
        for one in found["tests"]
        if one["accepted"]
    ]
    called = " and ".join(sorted({str(one["called"]) for one in found["tests"]}))
    words = f"{called} faults called on each test's inputs, of which most do not show in a plain causal call"
    return "\n\n".join([markdown(heads, rows, left=(0, 1)), *named, sentence(found, words)])


STUDY = Study(
    "tolerances",
    "Which faults the tolerances of well-known tests accept, and the error bound refuses.",
    measure,
    {"conformance/ASSERT_CLOSE.md": table},
)
