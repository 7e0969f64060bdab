"""A large run: its page is small, and a comparison finds what was planted in it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.compare.changes import Kind
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.html.page import page
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests.large import WORKLOADS, write

pytestmark = pytest.mark.slow(15)


def test_a_large_run_stays_a_small_page(tmp_path: Path) -> None:
    """2,000 cells and 50,000 results are under 5 MB."""
    text = page(Model(read(write(tmp_path, seed=1, worse=False)), clauses()))
    assert len(text.encode("utf-8")) < 5_000_000


def test_what_was_planted_is_found(tmp_path: Path) -> None:
    """The one of five implementations that is a fifth slower, all its cells and no other; and the new failures."""
    base, new = (read(write(tmp_path / str(at), at, bool(at), cells=400, results=3000)) for at in (0, 1))
    found = compare(base, new)
    assert {one.implementation for one in found.slower} == {"implementation-003"}
    assert len(found.slower) == WORKLOADS
    assert not [one for one in found.speeds if one.verdict is Verdict.FASTER]
    assert [change.kind for change in found.worse] == [Kind.FAILURE] * 3
    assert found.results == 3000
