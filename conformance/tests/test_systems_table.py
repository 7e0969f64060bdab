"""The table of systems in SOURCES.md: every implementation in every row passes the cases of the row."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.judging.run_case import judge_case
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.run.targets import choose
from attention_conformance.impls.process.pool import Pool

PAGE = (Path(__file__).parents[1] / "SOURCES.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d{3}) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
PAIRS = [
    (article, name, pattern)
    for article, _, implementations, cases in ROWS
    for name in re.findall(r"`([^`]+)`", implementations)
    for pattern in re.findall(r"`([^`]+)`", cases)
]


def test_every_article_has_a_row() -> None:
    """All five are in the table, each with implementations of at least four frameworks or exports."""
    assert {article for article, *_ in ROWS} == {"000", "001", "002", "003", "004"}
    for _, _, implementations, _ in ROWS:
        assert {re.findall(r"`(\w+)", name)[0] for name in implementations.split(",")} >= {
            "numpy",
            "torch",
            "jax",
            "onnx",
        }


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Processes of the run."""
    return Pool(in_process=False)


@pytest.mark.parametrize(("article", "name", "pattern"), PAIRS)
def test_every_row_runs(article: str, name: str, pattern: str, pool: Pool) -> None:
    """The implementation is judged on the cases, in float32, and is right or deviates as recorded."""
    selection = choose((name,), ("cpu",), ("float32",), pool)
    (target,) = selection.targets
    cases = [case for case in every_case().values() if fnmatch(case.name, pattern)]
    assert cases
    outcomes = set()
    for case in cases:
        assert case.operator == target.implementation.operator
        judged = judge_case(target, case, pool, selection.keywords[name], read(), selection.versions, 300.0)
        assert judged.result.outcome in (Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.KNOWN_DEVIATION), (
            judged.result.message
        )
        outcomes.add(judged.result.outcome)
    assert Outcome.PASSED in outcomes
