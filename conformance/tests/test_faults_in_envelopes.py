"""Faults within an envelope: a kernel that takes only some sizes is judged as strictly as one that takes all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import (
    asked_kernel_cases,
    asked_serving_cases,
    every_case,
    kernel_cases,
    serving_cases,
)
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.envelopes import ENVELOPES, KINDS, SERVING, random_shape
from attention_conformance.conformance.cases.fit import dtypes_for, fit, fit_kernels, resized
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape
from attention_conformance.conformance.evidence.variants import CORRECT
from attention_conformance.conformance.faults import FAULTS, PATH_FAULTS, Fault, envelopes
from attention_conformance.conformance.faults.envelopes import Found, Matrix, judged, problems
from attention_conformance.conformance.faults.kill_matrix import Row
from attention_conformance.conformance.faults.models.steps import has_effects
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.envelope import Envelope
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

pytestmark = pytest.mark.slow(60)

#: Largest number of elements of cases that check the published matrix, and the step between its checked faults.
SMALL, EVERY = 1 << 20, 12

#: Step between the fitted cases that correct variants are judged on.
SAMPLED = 25


#: The envelopes whose matrices are published.
PUBLISHED = [each["name"] for each in envelopes.published()["envelopes"]]


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, Any]]:
    """The matrix of each envelope."""
    return {each["name"]: each for each in envelopes.published()["envelopes"]}


@pytest.mark.documents
def test_the_published_matrices_are_of_todays_faults_and_cases(published: dict[str, dict[str, Any]]) -> None:
    """The matrices have every fault possible for a kind of kernel, and only cases that fit its envelope."""
    known = every_case() | kernel_cases() | serving_cases()
    assert set(published) == set(KINDS)
    for name, kind in ((name, KINDS[name]) for name in published):
        asked = asked_serving_cases().values() if kind.serves else asked_kernel_cases().values()
        run = {case.name for case in fit_kernels(asked, kind.envelope, kind.dtypes)}
        assert set(published[name]["faults"]) == set(envelopes.faults_in(kind))
        for fault, found in published[name]["faults"].items():
            for case, dtypes in found.get("caught", {}).items():
                fitted = fit(known[case], kind.envelope)
                assert not fitted.unfit
                assert set(dtypes.split()) <= set(dtypes_for(fitted, kind.dtypes)), (fault, case)
                assert case in every_case() or case in run, (fault, case)  # a run of such a kernel includes it


@pytest.mark.documents
def test_a_run_asks_the_kernel_cases_that_some_fault_needs() -> None:
    """The lists of kernel cases to run are exactly those that the matrices need."""
    for file, tier in envelopes.TIERS.items():
        assert file.read_text(encoding="utf-8").split() == envelopes.asked(envelopes.published(), tier)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_is_so(name: str, published: dict[str, dict[str, Any]]) -> None:
    """A sample of the faults fails the listed small cases in exactly the listed dtypes."""
    kind, pool, known = KINDS[name], Pool(in_process=True), every_case() | kernel_cases() | serving_cases()
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
def test_every_fault_that_shows_is_caught_twice(name: str, published: dict[str, dict[str, Any]]) -> None:
    """Every fault that shows in an envelope is caught by two cases there."""
    assert [f for f, found in published[name]["faults"].items() if found["state"] in ("once", "missed")] == []


@pytest.mark.parametrize("name", SERVING)
def test_every_case_of_a_kind_that_serves_is_a_call_that_it_takes(name: str) -> None:
    """Sizes, options and lengths of fitted and designed cases are ones that the kind takes."""
    kind = SERVING[name]
    asked = [*envelopes.cases_in(kind), *envelopes.kernel_cases_in(kind)]
    assert len(asked) > 20
    for case in asked:
        s = case.shape
        assert not any(kind.envelope.widths_outside(s.d, s.dv)) or case.operator == "merge"
        assert not any(kind.envelope.heads_outside(1, s.hq, s.hkv)), case.name
        assert kind.takes(case)
        assert case.operator != "paged" or s.page in kind.envelope.page_sizes


@pytest.mark.parametrize(
    ("name", "lengths", "options", "taken"),
    [
        ("packed training", ((5, 3), (5, 3)), {}, True),
        ("packed training", ((5, 3), (5, 4)), {}, False),
        ("no empty sequence", ((5, 3), (5, 0)), {}, False),
        ("causal packs", ((5, 3), (5, 0)), {"is_causal": True}, True),
        ("causal packs", ((5, 3), (5, 4)), {}, False),
        ("paged decoding", ((1, 1), (5, 4)), {"is_causal": True}, True),
        ("paged decoding", ((1, 0), (5, 4)), {"is_causal": True}, False),
        ("paged decoding", ((1, 1), (5, 4)), {"is_causal": True, "sinks": None}, False),
    ],
)
def test_a_kind_that_serves_refuses_other_calls(name: str, lengths: Any, options: dict[str, Any], taken: bool) -> None:
    """A serving kind refuses calls by their lengths and options."""
    case = PackedCase("pack", (), "", PackedShape(*lengths), options=options)
    assert SERVING[name].takes(case) is taken


def test_random_problems_of_serving_show_a_fault_that_no_case_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cases every fault that shows is missed, and one about pages of over 128 slots is hidden at 16."""
    monkeypatch.setattr(envelopes, "_asked", lambda kind, cases: [])
    monkeypatch.setattr(envelopes, "kernel_cases_in", lambda kind: [])
    names = ["paged-next-page", "quantised-scales-ignored", "paged-pages-up-to128"]
    matrix = judged("pages of 16", Pool(in_process=True), names)
    assert [each.state for each in matrix.found] == ["missed", "missed", "hidden"]


def test_data_with_sizes_of_its_own_is_no_problem_inside() -> None:
    """Data of exactly seven tokens keeps its size where lengths are multiples of 128, and counts as unsound there."""
    kind, row = ENVELOPES["tiles of 128"], Row(FAULTS["tail-counts"], Pool(in_process=True))
    shape = Shape(1, 1, 1, 128, 128, 128, 128)
    own, any_size = (resized(every_case()[name], shape) for name in ("decode-sequence", "causal-square"))
    assert shape in kind.envelope
    assert not envelopes._is_sound(own, "float32", row)
    assert envelopes._is_sound(any_size, "float32", row)


def test_a_fault_about_widths_shows_at_no_single_width() -> None:
    """A fault about differing widths is hidden at a single width: no case or problem catches it for another reason."""
    (found,) = judged("width 128", Pool(in_process=True), ["value-columns-lost"]).found
    assert found == Found("value-columns-lost", {})
    assert found.state == "hidden"


def test_a_fault_that_no_case_catches_is_found_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cases every fault that shows is missed, with the problem that shows it as the example."""
    monkeypatch.setattr(envelopes, "_asked", lambda kind, cases: [])
    monkeypatch.setattr(envelopes, "kernel_cases_in", lambda kind: [])
    names = ["causal-bottom-right", "scale-twice", "flex-divisible-lengths-to-tile"]
    matrix = judged("one query", Pool(in_process=True), [*names, "present-float32"])
    assert [each.state for each in matrix.found] == ["missed", "missed", "outside", "hidden"]
    assert "1 × " in matrix.found[0].example


def test_cases_that_caught_a_fault_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that are published as catching a fault run first, then all others; the verdict does not change."""
    fault, pool = "scale-twice", Pool(in_process=True)
    for likely, first in (("sinks", "sinks"), ("empty-keys", "")):
        monkeypatch.setattr(envelopes, "_likely", lambda named=likely: {fault: {named}})
        (found,) = judged("one query", pool, [fault]).found
        assert found.state == "twice"
        assert next(iter(found.caught)) == first or not first


def test_a_fault_differs_where_a_step_of_it_does() -> None:
    """A fault is judged only on cases where one of its steps differs."""
    row, cases = Row(envelopes.fault_named("causal-bottom-right"), Pool(in_process=True)), every_case()
    assert not row.differs(cases["mask"], "float32")
    assert row.differs(cases["causal-more-keys"], "float32")
    assert row.fails(cases["causal-more-keys"], "float32")


def test_a_path_of_other_sizes_is_outside_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path for widths up to 32 is outside at width 128 without drawing shapes; one that may be inside is drawn."""
    monkeypatch.setattr(envelopes, "random_shape", lambda *_: pytest.fail("drawn"))
    narrow, taken = (Row(fault, Pool(in_process=True)) for fault in map(_fault_on, ("fa2-width-32", "fa2-width-128")))
    assert envelopes._searched_on_path(ENVELOPES["width 128"], narrow) == ("", True)
    with pytest.raises(pytest.fail.Exception):
        envelopes._searched_on_path(ENVELOPES["width 128"], taken)


def _fault_on(path: str) -> Fault:
    return next(fault for fault in PATH_FAULTS.values() if fault.sources[0].endswith(f" {path}"))


def test_matrices_are_written_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Matrices of other envelopes in a file are kept, and one that is judged again replaces the old."""
    monkeypatch.setattr(envelopes, "judged", lambda name, *_, **__: Matrix(name, (Found("mask-ignored", {}),)))
    file = tmp_path / "envelopes.json.zst"
    envelopes.write(file, ["one query"])
    monkeypatch.setattr(envelopes, "judged", lambda name, *_, **__: Matrix(name, (Found("scale-twice", {}),)))
    envelopes.write(file, ["static"])
    found = {each["name"]: list(each["faults"]) for each in envelopes.read(file)["envelopes"]}
    assert found == {"static": ["scale-twice"], "one query": ["mask-ignored"]}


@pytest.mark.parametrize("name", ["static", "tiles of 128"])
def test_where_no_shape_is_cheap_one_of_the_cheapest_is_drawn(name: str) -> None:
    """The drawn shapes cost at most a few times the cheapest, without hundreds of draws."""
    drawn = [random_shape(np.random.default_rng(n), ENVELOPES[name].envelope, 1) for n in range(20)]
    costs = [s.b * s.hq * s.sq * s.sk * (s.d + s.dv) for s in drawn]
    assert max(costs) <= 4 * min(costs)


@pytest.mark.parametrize("name", ENVELOPES)
def test_random_shapes_are_inside(name: str) -> None:
    """Random shapes are inside, with sizes on both sides of tiles where the envelope has them."""
    rng = np.random.default_rng(1)
    shapes = [random_shape(rng, ENVELOPES[name].envelope, 1 << 20) for _ in range(40)]
    assert all(shape in ENVELOPES[name].envelope for shape in shapes)
    assert len(set(shapes)) > 5 or name.startswith("static")


def test_the_same_problems_come_again() -> None:
    """The same problems are drawn again, so that a reported one can be looked at."""
    (one, _), (other, _) = (next(problems("static", ENVELOPES["static"])) for _ in "ab")
    assert isinstance(one.shape, Shape)
    assert one.inputs("float32").q.tobytes() == other.inputs("float32").q.tobytes()


@pytest.mark.parametrize("variant", CORRECT)
@pytest.mark.parametrize("name", ["half-precision flash", "Sq = Sk"])
def test_correct_variants_pass_inside_envelopes(name: str, variant: str) -> None:
    """Correct variants pass a sample of the fitted cases and of those at the sizes of kernels."""
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
    """The kind "anything" has all faults of attention and its gradients except those between ranks."""
    names = set(envelopes.faults_in(ENVELOPES["anything"]))
    of_operators = {name for name, fault in FAULTS.items() if fault.operator in ("sdpa", "sdpa_grad")}
    left_out = of_operators - names
    assert {"ranks-swapped", "key-gradient-copied"} <= left_out
    assert all(envelopes.between_ranks(FAULTS[name]) for name in left_out)
    assert len(left_out) < 0.1 * len(of_operators)
    assert ENVELOPES["anything"].envelope == Envelope()
