"""The table of systems in SOURCES.md: every implementation in every row passes the cases of the row.

This holds in the published results; conformance runs of the built-ins check it for today.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attention_conformance.conformance import results
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.impls.select import builtin

PAGE = (Path(__file__).parents[1] / "SOURCES.md").read_text(encoding="utf-8")
PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "conformance.jsonl.zst"
ROWS = re.findall(r"^\| (\d{3}) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
PAIRS = [
    (article, name, pattern)
    for article, _, implementations, cases in ROWS
    for name in re.findall(r"`([^`]+)`", implementations)
    for pattern in re.findall(r"`([^`]+)`", cases)
]


def test_every_article_has_a_row() -> None:
    """All five articles are in the table, each with implementations of at least four frameworks or exports."""
    assert {article for article, *_ in ROWS} == {"000", "001", "002", "003", "004"}
    for _, _, implementations, _ in ROWS:
        assert {re.findall(r"`(\w+)", name)[0] for name in implementations.split(",")} >= {
            "numpy",
            "torch",
            "jax",
            "onnx",
        }


@pytest.fixture(scope="module")
def published() -> dict[tuple[str, str], Outcome]:
    """The outcome of each built-in implementation and case, on the CPU in float32."""
    every = results.read(PUBLISHED).results
    return {(r.implementation, r.case): r.outcome for r in every if (r.device, r.dtype) == ("cpu", "float32")}


@pytest.mark.slow(1)
@pytest.mark.parametrize(("article", "name", "pattern"), PAIRS)
def test_every_row_passes(article: str, name: str, pattern: str, published: dict[tuple[str, str], Outcome]) -> None:
    """The implementation passes at least one case, and is right, unsupported or a known deviation on the others."""
    cases = [case for case in every_case().values() if fnmatch(case.name, pattern)]
    assert cases
    assert {case.operator for case in cases} == {builtin()[name].operator}
    outcomes = {published[name, case.name] for case in cases}
    assert outcomes <= {Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.KNOWN_DEVIATION}
    assert Outcome.PASSED in outcomes
