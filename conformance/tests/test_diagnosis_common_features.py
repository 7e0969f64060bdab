"""Features that failures share: reported only if they distinguish failures from passed cases."""

from __future__ import annotations

from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.diagnosis.common_features import FEATURES, common_features_line
from attention_conformance.conformance.judging.outcomes import Failure


def judged(*names: str, dtype: str = "float32") -> list[tuple]:
    """Cases in one dtype."""
    return [(all_cases()[name], dtype) for name in names]


PASSED = judged("plain", "plain-square", "mask", "bias", "scale-given", "one-query", "heads-4-over-2", "lse", "tiles")
CAUSAL = judged("causal-square", "causal-more-keys", "causal-more-queries")


def test_a_common_option_is_named() -> None:
    """All failures are causal and no passed case is."""
    line = common_features_line(Failure.VALUE, CAUSAL, PASSED)
    assert line == "all 3 failures by value that are not explained have is_causal; none of 9 passed cases has that too"


def test_passed_cases_with_the_same_are_counted() -> None:
    """One passed case is causal too."""
    line = common_features_line(Failure.ERROR, CAUSAL, [*PASSED, *judged("causal-tiles")])
    assert line.endswith("1 of 10 passed cases has that too")


def test_two_options_that_only_failures_combine_are_both_named() -> None:
    """Bias and mask each pass, together they fail."""
    failed = judged("combined-mask-bias-minus-inf", "combined-scale-softcap-bias-mask", "combined-all")
    assert "have mask and bias;" in common_features_line(Failure.VALUE, failed, PASSED)


def test_what_most_passed_cases_have_is_not_said() -> None:
    """is_causal is not the reason if causal cases pass as often as they fail."""
    passed = judged("causal-tiles", "causal-weights", "causal-one-key", "plain")
    assert common_features_line(Failure.VALUE, CAUSAL, passed) == ""


def test_failures_of_all_kinds_share_nothing() -> None:
    """Failures that include a plain case share no option."""
    assert common_features_line(Failure.VALUE, [*CAUSAL, *judged("plain")], PASSED) == ""


def test_two_failures_are_too_few() -> None:
    """Two failures are too few, as two cases share something by chance."""
    assert common_features_line(Failure.VALUE, CAUSAL[:2], PASSED) == ""


def test_without_a_passed_case_nothing_is_said() -> None:
    """Without a passed case nothing distinguishes the failures."""
    assert common_features_line(Failure.VALUE, CAUSAL, []) == ""


def test_a_dtype_is_a_feature() -> None:
    """All failures are in float16, the same cases pass in float32."""
    names = ("plain", "bias", "one-query")
    line = common_features_line(Failure.VALUE, judged(*names, dtype="float16"), PASSED)
    assert "have float16; none of 9 passed cases" in line


def test_options_that_change_nothing_are_not_features() -> None:
    """is_causal=False does not count as causal."""
    (false,) = judged("causal-false")
    assert not FEATURES["is_causal"](false[0])


def test_every_feature_is_in_a_case() -> None:
    """Every feature occurs in some case, as it could never be named otherwise."""
    for name, has in FEATURES.items():
        assert any(map(has, every_case().values())), name
