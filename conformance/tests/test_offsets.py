"""(SDPA-46) Kernels with 32-bit offsets are reported, and kernels with wide enough offsets are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.run import offsets
from attention_conformance.conformance.spec.clauses import BY_OPTION, Level, clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.impls import memory_layouts
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.envelope import Envelope, Sizes
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import builtin

pytest.importorskip("torch")

KERNELS = "attention_conformance.conformance.tests.far_kernels"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool with one process, as users have it."""
    found = Pool()
    yield found
    found.close()


def judged(name: str, pool: Pool, keywords: Collection[str] = ()) -> Result:
    """The result of one of the functions."""
    implementation = Implementation(name, f"{KERNELS}:{name}", framework=Framework.TORCH)
    return offsets.judge(Target(implementation, "cpu", "float32"), keywords, pool, 60.0)


def test_the_clause_is_one_that_no_case_shows() -> None:
    """The clause is a SHOULD, as a kernel may be for smaller arrays, and no case shows it."""
    assert clauses()[offsets.CLAUSE].level is Level.SHOULD
    assert offsets.CLAUSE in BY_OPTION


def test_wide_offsets_pass_with_every_array_and_axis(pool: Pool) -> None:
    """Entries are far apart in each of batch, heads and rows, and in the mask."""
    found = judged("wide", pool, {"mask"})
    assert found.outcome is Outcome.PASSED
    tried = [f"{name} axis {axis}" for name in ("q", "k", "v", "mask") for axis in range(3)]
    assert found.reason == f"right with entries far apart along {', '.join(tried)}"


def test_32_bit_offsets_are_told_with_the_array_and_the_axis(pool: Pool) -> None:
    """The result is an advisory whose message has the clause, the observation, the hint and the command."""
    found = judged("narrow", pool)
    assert (found.outcome, found.broken) == (Outcome.ADVISORY, "SDPA-46")
    assert found.reason == "; ".join(
        f"k axis {axis}: results differ from those with entries close together" for axis in range(3)
    )
    assert "offsets/beyond-32-bits: wrong with 3 of 9" in found.message
    assert "SDPA-46 · Offsets beyond 32 bits (SHOULD)" in found.message
    assert "index.to(tl.int64)" in found.message
    assert found.message.endswith("check narrow --device cpu --dtype float32 -k test_offsets")


def test_a_mask_with_32_bit_offsets_is_told(pool: Pool) -> None:
    """A long mask, with many elements of few bytes, is reported too (mlx 2894)."""
    assert "mask axis 0: results differ" in judged("narrow", pool, {"mask"}).reason


def test_an_axis_of_few_entries_is_not_called_far_apart(pool: Pool) -> None:
    """A batch of 1, as in a kernel of one shape, is not among the axes that are far apart."""
    one = Implementation(
        "wide", f"{KERNELS}:wide", framework=Framework.TORCH, envelope=Envelope(batch_sizes=Sizes((1,)))
    )
    found = offsets.judge(Target(one, "cpu", "float32"), {"mask"}, pool, 60.0)
    assert found.outcome is Outcome.PASSED
    assert "axis 0" not in found.reason
    assert "mask axis 2" in found.reason


def test_an_exception_is_told(pool: Pool) -> None:
    """An exception is reported with its text."""
    assert judged("raises", pool).reason.startswith("q axis 0: IndexError: an offset that is no 32-bit number")


def test_a_kernel_that_is_causal_alone_is_asked_for_causal(pool: Pool) -> None:
    """A causal-only kernel is tested with the first case that it takes."""
    assert judged("causal", pool, {"is_causal"}).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("name", "reason"),
    [("refuses", "NotImplementedError: not here"), ("no_room", "no room for arrays far apart")],
)
def test_what_cannot_be_asked_says_why(pool: Pool, name: str, reason: str) -> None:
    """A kernel that refuses the plain call, or runs out of memory, is unsupported with the reason."""
    found = judged(name, pool)
    assert (found.outcome, found.reason) == (Outcome.UNSUPPORTED, reason)


def test_who_is_asked() -> None:
    """Plugged-in kernels with torch's arrays are tested in their smallest dtype: interpreted ones, those on CUDA."""
    plugged = replace(builtin()["torch-sdpa"], name="mine", folder="/somewhere")
    both = (plugged, replace(plugged, name="kernel", kernels="triton"))
    targets = [Target(one, device, dtype) for one in both for device in ("cpu", "cuda") for dtype in one.dtypes]
    asked = {(each.implementation.name, each.device, each.dtype) for each in offsets.asked(targets)}
    assert asked == {(*which, "float16") for which in (("mine", "cuda"), ("kernel", "cpu"), ("kernel", "cuda"))}
    assert offsets.asked([Target(builtin()["torch-sdpa"], "cuda", "float16")]) == []


@pytest.mark.parametrize("axis", range(3))
def test_entries_lie_far_apart_and_hold_what_they_held(axis: int) -> None:
    """Entries are unchanged, with a stride below 2³¹ but beyond it in all, and without the memory between."""
    array = np.arange(3 * 4 * 5 * 2, dtype=np.float16).reshape(3, 4, 5, 2)
    laid_out = memory_layouts.lay_out(array, f"far-{axis}")
    assert np.array_equal(laid_out, array)
    stride = laid_out.strides[axis] // array.itemsize
    assert stride < memory_layouts.FAR <= stride * (array.shape[axis] - 1)


def test_only_the_named_array_is_laid_out() -> None:
    """An axis with one entry is unchanged."""
    one = np.ones((1, 2), np.float32)
    assert memory_layouts.lay_out(one, "far-0").strides == one.strides
