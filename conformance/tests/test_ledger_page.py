"""DEVIATIONS.md: it is up to date with the ledger and the published results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from attention_conformance.cli import main
from attention_conformance.conformance import results
from attention_conformance.conformance.cases import case_named
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import LEDGER as LEDGER_FILE
from attention_conformance.conformance.ledger.load import PLUGGED, Deviation, Ledger, LedgerError, dtypes, read
from attention_conformance.conformance.ledger.page import (
    PAGE,
    PUBLISHED,
    PUBLISHED_GPU,
    PUBLISHED_KERNELS,
    command,
    example,
    render,
)
from attention_conformance.conformance.results import Run
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow

LEDGER = read()
RUN = results.read(PUBLISHED)
RUNS, PLUGGED_RUNS = [RUN, results.read(PUBLISHED_GPU)], [results.read(PUBLISHED_KERNELS)]


def section(page: str, record: str) -> str:
    """The page's section about a record, on one line."""
    return " ".join(page.partition(f"#### {record}\n")[2].partition("\n#")[0].split())


@pytest.mark.documents
def test_the_page_is_what_the_ledger_gives() -> None:
    """``attention-conformance ledger page`` regenerates the page."""
    assert PAGE.read_text(encoding="utf-8") == render(LEDGER, RUNS, PLUGGED_RUNS)


def test_a_changed_ledger_gives_another_page() -> None:
    """A record that is added, removed or reworded makes the page out of date."""
    first, *others = LEDGER.deviations
    page = PAGE.read_text(encoding="utf-8")
    for changed in (others, [replace(first, instead="x"), *others], [*LEDGER.deviations, replace(first, id="x")]):
        assert render(Ledger(tuple(changed)), RUNS, PLUGGED_RUNS) != page


@pytest.mark.parametrize("record", LEDGER.deviations, ids=lambda record: record.id)
def test_every_record_has_its_section(record: Deviation) -> None:
    """A section has clause, implementations, versions, behaviour, upstream link, every case, and the command."""
    page = PAGE.read_text(encoding="utf-8")
    text = section(page, record.id)
    assert page.count(f"#### {record.id}\n") == 1
    clause = clauses()[record.clause]
    assert f"### {clause.id} · {clause.title}" in page
    assert clause.sentence in " ".join(page.replace("\n> ", " ").split())
    for word in (*record.implementations, *record.cases, record.versions):
        assert f"`{word}`" in text
    assert record.upstream in text
    assert f"{' '.join(record.instead.split())}." in text
    assert command(record) in text


@pytest.mark.parametrize("record", LEDGER.deviations, ids=lambda record: record.id)
def test_the_command_is_about_the_record(record: Deviation) -> None:
    """The command runs a case that the record covers, with the implementation's own operator and dtypes."""
    name, device, dtype, case = example(record)
    assert record.covers(name, device, dtype, case)
    assert dtype in dtypes(name, case)
    if PLUGGED not in name:
        assert dtype in builtin()[name].dtypes
        assert builtin()[name].operator == case_named(case).operator


def test_a_record_that_no_result_can_meet_has_no_example() -> None:
    """A record of layers with a case of attention is refused in a sentence."""
    record = replace(LEDGER.deviations[0], implementations=("torch-mha-fast",), cases=("plain",))
    with pytest.raises(LedgerError, match=f"record {record.id}: none of its implementations is judged on its cases"):
        example(record)


def test_the_example_of_a_ledger_can_be_used(tmp_path: Path) -> None:
    """The user's record on the page loads next to ours, with all keys but one."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    record = read([LEDGER_FILE, tmp_path / "mine.toml"]).deviations[-1]
    assert record.covers("mykernels.py:attention", "cpu", "float32", "causal-square")
    assert record.in_force({"numpy": "2.4.6"})


def test_every_command_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page lists exactly the commands of the parser."""
    with pytest.raises(SystemExit):
        main(["ledger", "--help"])
    (actions,) = {tuple(re.findall(r"^    ([a-z]+) ", capsys.readouterr().out, re.MULTILINE))}
    listed = re.findall(r"^\| `attention-conformance ledger ([a-z]+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(listed) == actions


def test_clauses_stand_in_the_order_of_the_spec() -> None:
    """Clauses have the order of the spec, so that the page can be read next to it."""
    found = re.findall(r"^### ([A-Z]+-\d+) ·", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found == [clause for clause in clauses() if clause in {record.clause for record in LEDGER.deviations}]


def test_a_record_that_the_run_does_not_show_says_so() -> None:
    """A record that the run does not show says why, such as another version."""
    other = Run(structs.replace(RUN.header, versions={**RUN.header.versions, "torch": "2.99"}), RUN.results, True)
    text = section(render(LEDGER, [other]), "torch-flash-nan-query")
    assert (
        "- In the published runs: not exercised (version not in force: torch 2.99 is not one of >=2.13,&lt;2.14)."
        in text
    )
    passed = tuple(replace(r, outcome=Outcome.PASSED, failure=None) for r in RUN.results)
    text = section(render(LEDGER, [Run(RUN.header, passed, True)]), "torch-flash-nan-query")
    assert "- In the published runs: gone (remove it: passed)." in text
