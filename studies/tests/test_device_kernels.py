"""Kernels of devices: which cases count as declared, and what the page's numbers promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attention_conformance.conformance.cases import case_named
from studies.device_kernels import KERNELS, STUDY, Kernel, counts

ROOT = Path(__file__).parents[2]
CAUSAL = Kernel("fake:causal", "triton", "fake", "a kernel that is always causal", frozenset({"is_causal"}))

#: A case with causal, and one without.
WITH, WITHOUT = "causal-square", "plain"


def test_what_was_refused_at_a_call_counts_as_not_judged() -> None:
    """Cases with a keyword that the adapter lacks, or without one that the kernel always needs, are not declared."""
    assert "is_causal" in case_named(WITH).keywords
    assert "is_causal" not in case_named(WITHOUT).keywords
    results: list[list[Any]] = [
        [WITH, "passed", ["SDPA-9"], None, ""],
        ["causal-tiles", "known-deviation", ["SDPA-9"], "value", "NaN [a]"],
        ["causal-one-query", "unsupported", ["SDPA-9"], None, "not judged: interpreted, it has too many tiles"],
        [WITHOUT, "unsupported", ["SDPA-1"], None, "NotImplementedError: causal alone"],
        ["softcap", "unsupported", ["SDPA-5"], None, "no keyword softcap"],
        ["value-width-larger", "not-applicable", ["SDPA-1"], None, "not applicable: needs Dv > D"],
    ]
    of = counts(CAUSAL, results)
    assert (of.passed, of.wrong, of.not_judged) == (1, 1, 1)
    assert round(of.share, 3) == 0.667


def test_every_kernel_of_the_page_is_judged_on_most_of_what_it_declares() -> None:
    """Twelve kernels or more are judged, each on 80 % of the cases, in five minutes of a processor."""
    kept = STUDY.kept()["kernels"]
    judged = [kernel for kernel in KERNELS if kernel.name in kept]
    assert len(judged) >= 12
    for kernel in judged:
        assert counts(kernel, kept[kernel.name]["results"]).share >= 0.8, kernel.name
        assert (kept[kernel.name]["seconds"] or 0) <= 300, kernel.name


def test_every_kernel_has_its_adapter() -> None:
    """It is a function in the file that its name says."""
    for kernel in KERNELS:
        module, function = kernel.name.split(":")
        assert f"\ndef {function}(" in (ROOT / "impls" / "kernels" / f"{module}.py").read_text(encoding="utf-8")
