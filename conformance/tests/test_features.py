"""Features: every case belongs to one, and an implementation's claims follow only from results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.judging.features import FEATURES, Claim, Standing, cases_of, claims, feature_of
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.impls.operators import OPERATORS


def results(outcome: Callable[[AnyCase], Outcome], dtypes: Iterable[str] = ("float32",)) -> list[Result]:
    """A result for every case of sdpa, as from a run of all cases."""
    return [
        Result("mine", "cpu", dtype, case.name, case.clauses, outcome(case), Failure.VALUE)
        for case in every_case().values()
        for dtype in dtypes
        if case.operator == "sdpa" and dtype in case.dtypes
    ]


def claimed(made: list[Result]) -> dict[str, Claim]:
    """The claims of the one implementation, by feature."""
    (group,) = claims(made).values()
    return {claim.feature: claim for claim in group}


def test_every_case_is_of_exactly_one_feature() -> None:
    """The features of an operator hold each of its cases once, so that denominators add up."""
    for operator in OPERATORS:
        held = [case.name for name in FEATURES for case in cases_of(name, operator)]
        assert sorted(held) == sorted(case.name for case in every_case().values() if case.operator == operator)


def test_no_feature_is_empty() -> None:
    """Every feature that can be claimed or required has cases."""
    for name, feature in FEATURES.items():
        assert all(cases_of(name, operator) for operator in feature.operators)


@pytest.mark.parametrize(
    ("case", "feature"),
    [
        ("plain", "core"),
        ("invalid-widths", "validation"),
        ("invalid-mask-keys", "masks"),
        ("memory-inner", "memory-layouts"),
        ("window-wide-causal", "windows"),
        ("offset-zero", "offsets"),
        ("heads-4-over-2", "grouped-heads"),
        ("mask-grouped", "combinations"),
        ("softcap-causal", "combinations"),
        ("decode-one", "decoding"),
        ("decode-fixed-one", "caches"),
        ("mha-source-000", "mha"),
        ("sublayer-post-norm", "sublayer"),
        ("grad-plain", "gradients"),
        ("mha-grad-plain", "gradients"),
    ],
)
def test_a_case_is_of_the_feature_that_it_needs(case: str, feature: str) -> None:
    """The feature of a case follows only from what the case needs."""
    assert feature_of(every_case()[case]) == feature


def test_who_passes_all_conforms_to_all() -> None:
    """An implementation that passes every case conforms to every feature, with all cases in each of their dtypes."""
    found = claimed(results(lambda case: Outcome.PASSED, ("float32", "float16")))
    assert {claim.standing for claim in found.values()} == {Standing.CONFORMANT}
    assert found["core"].cases == sum(len({"float32", "float16"} & set(c.dtypes)) for c in cases_of("core", "sdpa"))


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.KNOWN_DEVIATION])
def test_one_failure_takes_the_feature_away(outcome: Outcome) -> None:
    """One failure, even a known deviation, loses the feature; other features are kept."""
    found = claimed(results(lambda case: outcome if case.name == "window-both" else Outcome.PASSED))
    assert found.pop("windows").standing is Standing.NOT
    assert {claim.standing for claim in found.values()} == {Standing.CONFORMANT}


def test_a_should_that_is_not_followed_takes_nothing_away() -> None:
    """An advisory loses no feature."""
    found = claimed(results(lambda case: Outcome.ADVISORY if "nan" in case.name else Outcome.PASSED))
    assert {claim.standing for claim in found.values()} == {Standing.CONFORMANT}


def test_a_missing_feature_takes_no_other_one_away() -> None:
    """Without masks and sinks an implementation still conforms to windows; combinations are kept in part."""
    lacks = {"mask", "sinks"}
    found = claimed(results(lambda case: Outcome.UNSUPPORTED if case.keywords & lacks else Outcome.PASSED))
    assert {name for name, c in found.items() if c.standing is Standing.UNSUPPORTED} == {"masks", "sinks"}
    assert {name for name, c in found.items() if c.standing is Standing.PART} == {"combinations"}


def test_a_feature_that_a_run_left_cases_out_of_is_not_claimed() -> None:
    """The denominator is always all the cases of the feature, however few were run."""
    some = [r for r in results(lambda case: Outcome.PASSED) if r.case not in ("window-both", "mask-square")]
    found = claimed(some)
    assert found["windows"].cases == len(cases_of("windows", "sdpa"))
    assert {name for name, c in found.items() if c.standing is Standing.UNJUDGED} == {"windows", "masks"}


def test_a_result_that_is_there_twice_counts_once() -> None:
    """Two results of one case do not count as the result of another case."""
    twice = [r for r in results(lambda case: Outcome.PASSED) if r.case != "window-both"]
    twice += [r for r in twice if r.case == "window-left"]
    assert claimed(twice)["windows"].standing is Standing.UNJUDGED


def test_who_refuses_every_input_shows_nothing_of_validation() -> None:
    """Refusing invalid inputs is a claim only where a valid input was accepted."""
    found = claimed(results(lambda case: Outcome.PASSED if case.invalid else Outcome.FAILED))
    assert found["validation"].standing is Standing.UNJUDGED


def test_problems_that_are_no_case_are_left_out() -> None:
    """Results of property tests belong to no feature."""
    assert claims([Result("mine", "cpu", "float32", "keys-in-another-order", ("SDPA-1",), Outcome.PASSED)]) == {}
