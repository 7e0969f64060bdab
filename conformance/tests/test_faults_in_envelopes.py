"""Faults within an envelope: a kernel that takes only some sizes is judged as hard as one that takes all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case, kernel_cases, kernels
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.envelopes import ENVELOPES, random_shape
from attention_conformance.conformance.cases.fit import dtypes_for, fit
from attention_conformance.conformance.evidence.variants import CORRECT
from attention_conformance.conformance.faults import FAULTS, envelopes
from attention_conformance.conformance.faults.envelopes import Found, judged, problems
from attention_conformance.conformance.faults.kill_matrix import Row
from attention_conformance.conformance.faults.models.steps import has_effects
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.judging.run_case import judge_case
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run.targets import Target
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

pytestmark = pytest.mark.slow(60)

#: Elements of the cases that the published matrix is checked on, and every how many-th of its faults is.
SMALL, EVERY = 1 << 20, 12

#: Every how many-th fitted case correct variants are judged on.
SAMPLED = 25


#: The envelopes whose matrices are published.
PUBLISHED = [each["name"] for each in envelopes.published()["envelopes"]]


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, Any]]:
    """The matrix of each envelope."""
    return {each["name"]: each for each in envelopes.published()["envelopes"]}


@pytest.mark.documents
def test_the_published_matrices_are_of_todays_faults_and_cases(published: dict[str, dict[str, Any]]) -> None:
    """By name: every fault that a kind of kernel may have, and cases that are asked inside its envelope."""
    known = every_case() | kernel_cases()
    assert set(ENVELOPES) - set(published) == {"anything", "static", "tiles of 128"}  # not computed yet
    for name, kind in ((name, ENVELOPES[name]) for name in published):
        assert set(published[name]["faults"]) == set(envelopes.faults_in(kind))
        for fault, found in published[name]["faults"].items():
            for case, dtypes in found.get("caught", {}).items():
                fitted = fit(known[case], kind.envelope)
                assert not fitted.unfit
                assert set(dtypes.split()) <= set(dtypes_for(fitted, kind.dtypes)), (fault, case)


@pytest.mark.documents
def test_a_run_asks_the_kernel_cases_that_some_fault_needs() -> None:
    """No more of them, and none that the matrices do not name."""
    assert kernels.ASKED.read_text(encoding="utf-8").split() == envelopes.asked(envelopes.published())


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_is_so(name: str, published: dict[str, dict[str, Any]]) -> None:
    """A sample of the faults fails the small cases that are said to catch them, in the dtypes that are said."""
    kind, pool, known = ENVELOPES[name], Pool(in_process=True), every_case() | kernel_cases()
    sample = [(f, c) for f, fault in published[name]["faults"].items() for c in fault.get("caught", {}).items()]
    checked = 0
    for fault, (case, dtypes) in sample[::EVERY]:
        found = fit(known[case], kind.envelope)
        row = Row(envelopes.fault_named(fault), pool)
        depends_on_calls_before = has_effects(row.fault.make)  # type: ignore[arg-type]  # a class is hashable
        if found.shape.elements <= SMALL and not depends_on_calls_before:
            assert [d for d in dtypes_for(found, kind.dtypes) if row.fails(found, d)] == dtypes.split(), (fault, case)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", PUBLISHED)
def test_nine_in_ten_of_the_faults_that_show_are_caught_twice(name: str, published: dict[str, dict[str, Any]]) -> None:
    """In every envelope; those that no case catches are one in twenty at most."""
    states = [fault["state"] for fault in published[name]["faults"].values()]
    shows = [state for state in states if state in ("twice", "once", "missed")]
    assert shows.count("twice") >= 0.9 * len(shows)
    assert shows.count("missed") <= 0.05 * len(shows)


def test_a_fault_about_widths_shows_at_no_single_width() -> None:
    """Neither a case nor a random problem shows it, so that nothing is caught for another reason."""
    (found,) = judged("width 128", Pool(in_process=True), ["value-columns-lost"]).found
    assert found == Found("value-columns-lost", {})
    assert found.state == "hidden"


def test_a_fault_that_no_case_catches_is_found_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cases every fault that shows is missed, and the problem that shows it is said."""
    monkeypatch.setattr(envelopes, "_asked", lambda kind, cases: [])
    monkeypatch.setattr(envelopes, "kernel_cases_in", lambda kind: [])
    names = ["causal-bottom-right", "scale-twice", "flex-divisible-lengths-to-tile"]
    matrix = judged("one query", Pool(in_process=True), [*names, "present-float32"])
    assert [each.state for each in matrix.found] == ["missed", "missed", "outside", "hidden"]
    assert "1 × " in matrix.found[0].example


@pytest.mark.parametrize("name", ENVELOPES)
def test_random_shapes_are_inside(name: str) -> None:
    """Of sizes on both sides of tiles where the envelope has them."""
    rng = np.random.default_rng(1)
    shapes = [random_shape(rng, ENVELOPES[name].envelope, 1 << 20) for _ in range(40)]
    assert all(shape in ENVELOPES[name].envelope for shape in shapes)
    assert len(set(shapes)) > 5 or name.startswith("static")


def test_the_same_problems_come_again() -> None:
    """So that what is said to show can be looked at."""
    (one, _), (other, _) = (next(problems("static", ENVELOPES["static"])) for _ in "ab")
    assert isinstance(one.shape, Shape)
    assert one.inputs("float32").q.tobytes() == other.inputs("float32").q.tobytes()


@pytest.mark.parametrize("variant", CORRECT)
@pytest.mark.parametrize("name", ["half-precision flash", "Sq = Sk"])
def test_correct_variants_pass_inside_envelopes(name: str, variant: str) -> None:
    """A sample of the fitted cases and of those at the sizes of kernels."""
    kind, pool = ENVELOPES[name], Pool(in_process=True)
    plugged = plug_in(f"attention_conformance.conformance.evidence.variants:{variant}")
    make = CORRECT[variant]
    plugged = with_attributes(plugged, {"dtypes": make.dtypes, "profiles": dict(make.profiles)})
    asked = [*envelopes.cases_in(kind)[::SAMPLED], *envelopes.kernel_cases_in(kind)[: 10 * SAMPLED : SAMPLED]]
    failed = {}
    for case in (case for case in asked if case.operator == "sdpa"):
        for dtype in set(dtypes_for(case, kind.dtypes)) & set(make.dtypes):
            target = Target(plugged, "cpu", dtype)
            result = judge_case(target, case, pool, case.keywords, Ledger(), {}, None).result
            if result.outcome is Outcome.FAILED and "SDPA-26" not in case.clauses:
                failed[case.name, dtype] = result.reason
    assert failed == {}


def test_every_fault_may_be_one_of_anything() -> None:
    """Of attention and its gradients."""
    names = set(envelopes.faults_in(ENVELOPES["anything"]))
    assert names >= {name for name, fault in FAULTS.items() if fault.operator in ("sdpa", "sdpa_grad")}
    assert ENVELOPES["anything"].envelope == Envelope()
