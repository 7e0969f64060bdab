"""(SDPA-40, VARLEN-14, PAGED-17 …) ``--invariance``: what depends on batch or chunk is reported, the rest is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.conformance import results
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.run import invariance
from attention_conformance.conformance.run.invariance_questions import CASES, QUESTIONS, questions
from attention_conformance.conformance.spec.clauses import BY_OPTION, Level, clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests import first_call_kernels, invariant_kernels
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.envelope import Envelope, Sizes
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import builtin
from attention_conformance.impls.tests import commands

KERNELS = "attention_conformance.conformance.tests.invariant_kernels"

#: The questions that each stand-in fails.
DEPENDS = {
    "row_by_row": set(),
    "split_by_batch": {"alone", "larger-batch"},
    "last_is_another": {"alone", "place", "larger-batch"},
    "few_rows_are_others": {"row"},
    "leaking": {"alone", "place", "neighbours"},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the case small enough for loops over rows."""
    monkeypatch.setattr(invariance, "CASE", replace(invariance.CASE, shape=Shape(3, 2, 2, 17, 150, 8, 8)))


def judged(name: str, question: str, keywords: frozenset[str] = frozenset(), **fields: object) -> Result:
    """The result of a stand-in, called in this process."""
    stand_in = Implementation(name, f"{KERNELS}:{name}", **fields)  # type: ignore[arg-type]
    return invariance.judge(Target(stand_in, "cpu", "float32"), question, Pool(in_process=True), keywords)


@pytest.mark.parametrize("name", DEPENDS)
def test_what_the_bits_depend_on_is_told(name: str) -> None:
    """Exactly the dependencies of a stand-in are reported, question by question."""
    questions = [each for each, asked in QUESTIONS["sdpa"].items() if not asked.needs]
    outcomes = {question: judged(name, question).outcome for question in questions}
    assert set(outcomes.values()) <= {Outcome.PASSED, Outcome.ADVISORY}
    assert {question for question, outcome in outcomes.items() if outcome is Outcome.ADVISORY} == DEPENDS[name]


def test_padding_is_asked_of_who_takes_lengths() -> None:
    """Padding is tested if lengths are taken, and is a missing keyword otherwise."""
    assert judged("row_by_row", "padding", frozenset({"kv_lengths"})).outcome is Outcome.PASSED
    assert judged("row_by_row", "padding").reason == "no keyword kv_lengths"


def test_a_difference_is_told_in_full() -> None:
    """The report has the clause, how many elements differ, by how much of the bound, and the rerun command."""
    found = judged("few_rows_are_others", "row")
    assert found.clauses == ("SDPA-41",)
    assert "SDPA-41 · Chunks of queries (SHOULD)" in found.message
    assert "the last query alone: " in found.reason
    assert "elements differ, by up to " in found.reason
    assert found.reason.endswith("of the bound")
    assert '--invariance -k "test_invariance and -row]"' in found.message


def test_what_leaks_is_beyond_the_bound() -> None:
    """The share of the bound distinguishes rounding from a mistake."""
    assert "times the bound" in judged("leaking", "neighbours").reason
    assert "times the bound" not in judged("split_by_batch", "alone").reason


def test_calls_outside_the_envelope_are_not_asked() -> None:
    """For an implementation of two sequences, batches of one and eight are not applicable."""
    two = Envelope(batch_sizes=Sizes((2,)))
    assert judged("one_batch", "alone", envelope=two).outcome is Outcome.NOT_APPLICABLE
    assert judged("one_batch", "place", envelope=two).outcome is Outcome.PASSED
    assert judged("one_batch", "place").outcome is Outcome.UNSUPPORTED  # without a declared envelope


#: Stand-ins for packs and caches, and the questions that each fails; those with is_causal are tested with it.
PACKED = {
    "packed": set(),
    "packed_split_by_batch": {"alone", "larger-batch"},
    "packed_split_by_maximum": {"padding"},
    "packed_split_as_told": {"splits"},
    "packed_decoding": {"row"},
    "paged": set(),
    "paged_by_place": {"alone", "place", "pages"},
}


@pytest.mark.parametrize("name", PACKED)
def test_what_the_bits_of_packs_depend_on_is_told(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exactly the dependencies are reported: on other sequences, maxima, chunks, pages."""
    operator = "paged" if name.startswith("paged") else "varlen"
    for each, case in CASES.items():
        if each != "sdpa":
            lengths: dict[str, Any] = {"q_lengths": (9, 1, 12, 1), "k_lengths": (9, 150, 160, 70), "hq": 1, "hkv": 1}
            shape = replace(case.shape, **lengths, d=8, dv=8)
            monkeypatch.setitem(CASES, each, replace(case, shape=shape, options=shape.options))
    keywords = frozenset({"is_causal"} if name in ("packed", "packed_decoding", "paged") else set())
    keywords |= {"num_splits"} if name == "packed_split_as_told" else set()
    fields = {"operator": operator, "folder": str(tmp_path)}  # a plug-in, called by its signature
    found = {question: judged(name, question, keywords, **fields) for question in questions(operator)}
    outcomes = {question: result.outcome for question, result in found.items()}
    assert {question for question, outcome in outcomes.items() if outcome is Outcome.ADVISORY} == PACKED[name]
    needs = {"prefill": "is_causal", "splits": "num_splits"}
    lacking = {question for question, keyword in needs.items() if keyword not in keywords}
    assert {question for question, outcome in outcomes.items() if outcome is Outcome.UNSUPPORTED} == lacking
    assert outcomes.keys() - PACKED[name] - lacking == {q for q, o in outcomes.items() if o is Outcome.PASSED}


def test_layers_are_not_asked() -> None:
    """Layers are unsupported, as the clauses are about sdpa, packs and caches."""
    found = invariance.judge(Target(builtin()["numpy-layer"], "cpu", "float32"), "row", Pool(), frozenset())
    assert found.outcome is Outcome.UNSUPPORTED


def test_the_clauses_are_asked_by_the_option() -> None:
    """The clauses are SHOULDs tested only with the option, and by no case."""
    asked = {each.clause for of in QUESTIONS.values() for each in of.values()}
    assert asked < BY_OPTION
    assert {clauses()[each].level for each in asked} == {Level.SHOULD}


@pytest.mark.slow(2)
def test_the_option_judges_and_records(tmp_path: Path) -> None:
    """``check --invariance``: an advisory fails nothing, is printed, and is in the result file."""
    options = [
        "--dtype",
        "float32",
        "--invariance",
        "-k",
        "test_invariance and -row]",
        "--conformance-json",
        "out.jsonl",
    ]
    command = [sys.executable, "-m", "attention_conformance", "check"]
    done = commands.run([*command, f"{invariant_kernels.__file__}:few_rows_are_others", *options], cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
    assert "the last query alone" in done.stdout
    (result,) = results.read(tmp_path / "out.jsonl").results
    assert (result.case, result.outcome) == ("invariance/row", Outcome.ADVISORY)


def test_a_death_fails_the_run(tmp_path: Path) -> None:
    """A death fails the run, and its message is printed once."""
    command = [sys.executable, "-m", "attention_conformance", "check", f"{first_call_kernels.__file__}:dying"]
    options = ["--dtype", "float32", "--invariance", "-k", "test_invariance and -row]"]
    done = commands.run([*command, *options], cwd=tmp_path)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert done.stdout.count("in float32, invariance/row: ") == 1


@pytest.mark.parametrize("question", ["chunk", "alone"])
def test_a_result_of_another_shape_is_left_to_the_cases(question: str) -> None:
    """A wrong shape is unsupported, as it has no rows to compare with another call."""
    found = judged("flat", question)
    assert found.outcome is Outcome.UNSUPPORTED
    assert found.reason.startswith("the output has shape (")
