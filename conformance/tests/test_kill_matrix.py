"""Kill matrix: every fault is caught, every case has a reason, and the published matrix is up to date."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.conformance.cases import AnyCase, every_case, quick_cases
from attention_conformance.conformance.faults import FAULTS, GROUPS, kill_matrix, trials
from attention_conformance.conformance.faults.kill_matrix import LEAST, Kill, shown_by
from attention_conformance.conformance.faults.models.sdpa import Attention
from attention_conformance.conformance.faults.registry import link
from attention_conformance.conformance.ledger import load
from attention_conformance.conformance.ledger.questions import QUESTIONS
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls import compressed
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(90)

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "faults.json.zst"

#: A fault caught by at most this many cases is subtle; see test_each_class_has_a_subtle_fault.
SUBTLE = 12

#: A case is needed if at most this many cases, itself included, catch some fault.
FEW = 4

#: A thread in a case's sentence: "(pytorch 195910)", "(llama.cpp PR 29034)", "(pytorch 176767 returned D columns)".
THREAD = re.compile(r"\((?:[\w.-]+ )(?:PR )?\d+(?::? [^)]*)?\)")


def needed(kills: Iterable[Kill]) -> dict[str, str]:
    """Reason why each case is in the suite, "" for one that nothing needs; operators without faults are left out.

    A case is among the smallest that catch some fault, or one of few that do; or a known deviation of a library fails
    it, it asks a question of the divergence matrix, it states its reason, or it cites the bug for which it is the
    regression test.
    """
    operators = {fault.operator for fault in FAULTS.values()}
    ledger = load.read()
    reasons = {name: own_reason(case, ledger) for name, case in every_case().items() if case.operator in operators}
    for kill in kills:
        for name in tuple(kill.caught)[: max(LEAST, len(kill.caught) if len(kill.caught) <= FEW else 0)]:
            reasons[name] = reasons[name] or f"catches {kill.fault}"
    return reasons


def own_reason(case: AnyCase, ledger: load.Ledger) -> str:
    """Reason of a case other than a fault, "" for none."""
    failing = [d.id for d in ledger.deviations if any(fnmatch(case.name, pattern) for pattern in d.cases)]
    if failing:
        return f"fails in deviation {failing[0]}"
    if case.name in {question.case for question in QUESTIONS}:
        return "asks a question of the divergence matrix"
    return case.stays or ("regression test" if THREAD.search(case.why) else "")


@pytest.fixture(scope="module")
def kills() -> tuple[Kill, ...]:
    """The result of every fault on every case."""
    return kill_matrix.judge_faults(Pool(in_process=True))


def test_every_fault_is_caught_twice(kills: tuple[Kill, ...]) -> None:
    """Every fault fails at least two of the ordinary cases, called like a user's function."""
    assert len(kills) == len(FAULTS) >= 80
    assert {kill.fault: len(kill.caught) for kill in kills if len(kill.caught) < LEAST} == {}


def test_a_fault_is_tried_on_the_cases_of_its_operator(kills: tuple[Kill, ...]) -> None:
    """A wrong layer is not called like attention, nor the other way round."""
    for kill in kills:
        assert {every_case()[name].operator for name in kill.caught} == {FAULTS[kill.fault].operator}


def test_every_case_is_needed_or_says_why_it_stays(kills: tuple[Kill, ...]) -> None:
    """A case is among the smallest that catch a fault, fails in a deviation, cites its bug, or has a reason."""
    assert [name for name, reason in needed(kills).items() if not reason] == []


@pytest.mark.documents
def test_a_quick_run_shows_every_fault(kills: tuple[Kill, ...]) -> None:
    """A fault that any function can show, whatever keywords and dtypes it has, is shown to it by --quick as well.

    `attention-conformance kill-matrix --choose-quick` chooses the cases again.
    """
    missed = []
    for kill in kills:
        shown = shown_by(kill.caught)
        few = set().union(*(shown[name] for name in shown.keys() & quick_cases().keys()))
        missed += [(kill.fault, *each) for each in set().union(*shown.values()) - few]
    assert missed == []


def test_quick_cases_are_chosen_for_functions_of_few_keywords() -> None:
    """A fault that a case with two keywords and one with one of them catch is caught by the second, in each dtype."""
    names = ("bias-minus-inf-row", "combined-mask-bias-minus-inf", "empty-row")
    caught = {name: every_case()[name].dtypes for name in names}
    shown = shown_by(caught)
    assert shown["combined-mask-bias-minus-inf"] == set()
    assert {keywords for _, keywords in shown["bias-minus-inf-row"]} == {frozenset({"bias"})}
    assert {keywords for _, keywords in shown["empty-row"]} == {frozenset({"mask"})}
    assert set(kill_matrix.quick({"fault": caught})) >= {"bias-minus-inf-row", "empty-row"}


def test_each_class_has_a_subtle_fault(kills: tuple[Kill, ...]) -> None:
    """In each class some fault shows only at some lengths, dtypes or values, or only where two options meet."""
    fewest: dict[str, int] = defaultdict(lambda: len(every_case()))
    for kill in kills:
        group = FAULTS[kill.fault].group
        fewest[group] = min(fewest[group], len(kill.caught))
    assert set(fewest) == set(GROUPS)
    assert {group: n for group, n in fewest.items() if n > SUBTLE} == {}


@pytest.mark.documents
def test_the_published_kill_matrix_is_todays(kills: tuple[Kill, ...]) -> None:
    """`attention-conformance kill-matrix` gives the published matrix."""
    published, today = json.loads(compressed.read(PUBLISHED, 1 << 24)), kill_matrix.as_json(kills)
    was, now = _by_fault(published), _by_fault(today)
    differ = {name: was.get(name, set()) ^ now.get(name, set()) for name in was | now}
    assert {name: pairs for name, pairs in differ.items() if pairs} == {}
    assert published == today


def _by_fault(matrix: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """The cases that catch each fault, and in which dtypes."""
    return {fault["name"]: set(fault["caught"].items()) for fault in matrix["faults"]}


def test_a_survivor_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that does nothing wrong, computed in full or by its steps, is caught by no case."""
    monkeypatch.setitem(FAULTS, "none", replace(FAULTS["scale-twice"], name="none", make=Attention))
    (by_steps,) = kill_matrix.judge_faults(Pool(in_process=True), ["none"])
    monkeypatch.setattr(trials, "unchanged", lambda *_: None)
    (in_full,) = kill_matrix.judge_faults(Pool(in_process=True), ["none"])
    for survivor in (by_steps, in_full):
        assert survivor == Kill("none", {})
        assert len(survivor.caught) < LEAST
        assert survivor.smallest == ""


def test_a_superfluous_case_would_be_seen() -> None:
    """Without faults, some cases have no deviation, question, thread or stated reason either, and are reported."""
    reasons = needed(())
    assert [name for name, reason in reasons.items() if not reason]


def test_every_fault_breaks_a_clause_and_has_a_source() -> None:
    """A fault names a clause of the spec and a source."""
    for fault in FAULTS.values():
        assert fault.clause in clauses()
        assert fault.when.endswith(".")
        for source in fault.sources:
            assert link(source).startswith("https://github.com/") or "source 00" in source


def test_a_fault_is_registered_once() -> None:
    """A second fault with the same name, or a fault without a source, is refused."""
    from attention_conformance.conformance.faults.registry import fault

    with pytest.raises(ValueError, match="registered twice"):
        fault("SDPA-9", "again", "mlx 2835")(type("CausalBottomRight", (Attention,), {}))
    with pytest.raises(ValueError, match="without a source"):
        fault("SDPA-9", "from nowhere")(type("NeverSeen", (Attention,), {}))


def test_an_unknown_fault_is_an_attribute_error() -> None:
    """A misspelt plug-in is refused like any other missing name."""
    import attention_conformance.conformance.faults

    with pytest.raises(AttributeError, match="no fault"):
        _ = attention_conformance.conformance.faults.causal_top_down
