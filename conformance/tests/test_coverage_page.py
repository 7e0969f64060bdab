"""COVERAGE.md: it is up to date, and has every path and what is not reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_conformance.conformance.cases import Shape, all_cases, kernels
from attention_conformance.conformance.cases.design import PARTS, Row, design
from attention_conformance.conformance.cases.envelopes import ENVELOPES
from attention_conformance.conformance.cases.kernel_paths import kernel_paths
from attention_conformance.conformance.faults.paths import coverage


@pytest.mark.documents
@pytest.mark.slow(20)
def test_the_page_is_todays() -> None:
    """`attention-conformance pages` gives the tracked page."""
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.text()


def test_every_path_is_on_the_page() -> None:
    """Every path is listed with its source and at least two cases that take it."""
    page = coverage.PAGE.read_text(encoding="utf-8")
    lines = {line.split("]")[0][3:]: line for line in page.splitlines() if line.startswith("| [")}
    assert lines.keys() == kernel_paths().keys()
    for path in kernel_paths().values():
        assert path.link in lines[path.id]
        assert int(lines[path.id].split("|")[5]) >= 2


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", ENVELOPES)
def test_factors_inside_an_envelope_are_taken_by_it(name: str) -> None:
    """An envelope takes every value of its factors, and every row of a design of two options."""
    kind = ENVELOPES[name]
    factors = coverage.within(kernels.BLOCKS["edges"].factors, kind)
    assert all(factors.values(part) for part in PARTS), name
    assert set(factors.dtype) <= set(kind.dtypes)
    rows = design(replace(factors, option=("plain", "mask"), dtype=factors.dtype[:1], triples=())).rows
    assert rows
    for row in rows:
        assert Shape(row.b, row.hkv * row.group, row.hkv, row.sq, row.sk, *row.width) in kind.envelope


def test_a_case_of_a_design_is_counted_as_its_row() -> None:
    """A case of a design is counted as its row, so that a run of a whole design has all of its pairs."""
    row = Row(1, 513, (192, 128), 8, 2, 3, "offset-window", "bfloat16", True)
    assert coverage.row_of(kernels.of_row("decode", "Few queries", row), "bfloat16") == row
    other = all_cases()["combined-mask-causal"]
    assert coverage.row_of(other, "float32").option == "causal-mask"


def test_the_page_says_of_every_envelope_which_pairs_a_run_has() -> None:
    """The page has a row for each envelope, in which a run has at most the pairs of the design inside it."""
    page = coverage.PAGE.read_text(encoding="utf-8").partition("## Pairs inside envelopes")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row[1] for row in rows] == list(ENVELOPES)
    assert all(0 < int(row[3]) <= int(row[2]) for row in rows)
