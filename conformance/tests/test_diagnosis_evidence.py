"""Evidence of an explanation: of mistakes that fit a few cases, the one that would show nowhere else is named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.impls.contract import Profile


def explained(make: type[Attention], *names: str) -> list[Explanation]:
    """The diagnosis of a function on some cases in float32 and float64."""
    failed, passed = [], []
    for name in names:
        case = every_case()[name]
        for dtype in sorted({"float32", "float64"}.intersection(case.dtypes)):
            found = trial(make, case, dtype, Profile.WIDE)
            if found.verdict.failure is not None:
                failed.append(Failed(case, dtype, Profile.WIDE, found.verdict.failure, found.reply))
            elif found.verdict.outcome is Outcome.PASSED:
                passed.append(Passed(case, dtype, Profile.WIDE))
    assert failed
    return diagnose(failed, passed, pairs=False)


class SquareTriangle(Attention):
    """A causal mask of (Sq, Sq): it raises where lengths differ, except that it has no effect on one query."""

    def causal_allows(self, x: Inputs) -> Array:
        """The causal mask (Sq, Sk), or all True."""
        rows, keys = x.shape[2:]
        if not x.is_causal or rows == 1:
            return np.ones(x.shape, bool)
        if rows != keys:
            raise RuntimeError(f"shape mismatch: {rows} {keys}")
        return super().causal_allows(x)


def test_of_two_that_fit_the_one_that_shows_nowhere_else_is_said() -> None:
    """Bottom-right alignment also fits one query, but is not named as it would show in the refused calls."""
    found = explained(SquareTriangle, "plain", "causal-square", "causal-one-query", "causal-more-keys", "causal-tiles")
    assert "causal-off-one-query" in {name for each in found for name in each.names}
    assert not any("causal-bottom-right" in name for each in found for name in each.names)


class ErrorFunction(Attention):
    """An error function instead of the softmax, as in MEGA: very low scores have no weight at all."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        """Weights that do not add up to 1, and the right lse."""
        weights = 0.5 * (1 + np.vectorize(math.erf)((s - 0.5**0.5) / (0.25 * math.pi) ** 0.5)) * allowed
        return weights.astype(x.work), super().softmax(x, s, allowed)[1]


#: In the first two, every weight is 0, as with some listed mistakes.
SHIFTED = ("softmax-shift-minus-625", "softmax-shift-minus-1e5", "plain", "plain-square", "one-query", "causal-square")


def test_what_a_few_cases_fit_by_chance_is_not_said() -> None:
    """A key of score 0 after the last one fits very low scores by chance, and is not named as other cases differ."""
    assert explained(ErrorFunction, *SHIFTED) == []


class Unshifted(Attention):
    """exp of the scores over their sum, a first attempt at a softmax: 0 / 0 where all scores are low."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        """The softmax without subtracting the maximum."""
        powers = np.exp(s)
        return powers / powers.sum(axis=3, keepdims=True), super().softmax(x, s, allowed)[1]


def test_a_softmax_without_a_maximum_is_said_to_be_one() -> None:
    """The missing maximum is named, not a merge of blocks without one, which overflows in the same cases."""
    (found,) = explained(Unshifted, *SHIFTED, "softmax-shift-plus-625", "softmax-one-hot")
    assert found.names == ("no-maximum",)


@pytest.mark.parametrize("name", ["causal-inverted", "operands-normalized", "masked-weights-divided-out"])
def test_what_libraries_do_is_said(name: str) -> None:
    """Only the mistake that a library made is named, on cases that show it."""
    cases = (
        "plain",
        "mask",
        "causal-square",
        "causal-more-keys",
        "mask-allowed-very-small",
        "one-query",
        "scale-given",
    )
    (found,) = explained(FAULTS[name].make, *cases)  # type: ignore[arg-type]
    assert found.names == (name,)
