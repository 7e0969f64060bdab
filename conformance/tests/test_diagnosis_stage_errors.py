"""Stages: weights or lse show which stage went wrong, and a right computation has none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases import Case, all_cases
from attention_conformance.conformance.diagnosis.stage_errors import Stage, stage_errors, stage_lines
from attention_conformance.conformance.faults.models.sdpa import Attention
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import call
from attention_conformance.impls.contract import Implementation, Profile

Results = dict[str, np.ndarray]

#: A case with a mask, different numbers of rows and keys, and values that identify their keys.
CASE = all_cases()["mask"]


def right(case: Case = CASE, dtype: str = "float32") -> Results:
    """Output and weights of the reference, rounded."""
    expected = case.expected(dtype)
    return {name: getattr(expected, name).astype(dtype) for name in ("output", "weights")}


def found(results: Results, case: Case = CASE, dtype: str = "float32", profile: Profile = Profile.WIDE) -> list[Stage]:
    """The stages that results allow to check."""
    keywords = case.inputs(dtype).keywords
    options = Options.of(keywords)
    limit = case.bound(dtype, profile)
    return list(stage_errors(results, case.expected(dtype), limit, options, dtype, profile))


def wrong(results: Results, case: Case = CASE, dtype: str = "float32") -> list[str]:
    """The names of the stages that leave their part of the bound."""
    return [stage.name for stage in found(results, case, dtype) if stage.share > 1]


def softmax(scores: np.ndarray, axis: int = 3) -> np.ndarray:
    """Softmax along an axis; −inf has weight 0."""
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def weighted(weights: np.ndarray) -> Results:
    """Output and weights, with a right last product."""
    v = CASE.expected("float32").v
    return {"output": (weights @ v).astype(np.float32), "weights": weights.astype(np.float32)}


def scores() -> np.ndarray:
    """Scores of the case, −inf where masked."""
    expected = CASE.expected("float32")
    return np.where(expected.allowed, expected.scores, -np.inf)


@pytest.mark.parametrize("dtype", CASE.dtypes)
def test_no_stage_of_the_reference_is_wrong(dtype: str) -> None:
    """Rounded results of the reference keep every part of the bound."""
    assert wrong(right(dtype=dtype), dtype=dtype) == []


@pytest.mark.parametrize("name", ["plain", "causal-more-keys", "empty-row", "bias", "softcap", "tiles", "empty-keys"])
def test_no_stage_of_a_correct_attention_is_wrong(name: str) -> None:
    """A correct attention with rounded steps keeps every part of the bound, whatever the options."""
    case = all_cases()[name]
    asked = request(case, "float32", "cpu")
    asked.keywords.update(return_weights=True)
    reply = call(Implementation("correct", "none:none"), asked, Attention())
    assert wrong(reply.results, case) == []


def test_a_weight_where_none_is_allowed_is_a_wrong_mask() -> None:
    """A small weight at one masked key shows that the mask is wrong."""
    results = right()
    at = tuple(np.argwhere(~CASE.expected("float32").allowed)[0])
    results["weights"][at] = 1e-8
    assert "masks" in wrong(results)


def test_a_weight_that_is_missing_is_a_wrong_mask() -> None:
    """The largest weight of a row set to zero shows that the mask is wrong."""
    results = right()
    results["weights"][0, 0, 0, results["weights"][0, 0, 0].argmax()] = 0
    assert "masks" in wrong(results)


def test_scores_of_another_scale_are_wrong_scores() -> None:
    """Twice the scores, everything else right: only the scores are wrong."""
    assert wrong(weighted(softmax(2 * scores()))) == ["scores"]


def test_a_shift_of_scores_is_none() -> None:
    """A common shift of scores, which softmax cancels, is no wrong stage."""
    assert wrong(weighted(softmax(scores() + 3.0))) == []


def test_weights_that_do_not_add_up_are_a_wrong_softmax() -> None:
    """Weights of half their size: only the softmax is wrong."""
    assert wrong(weighted(0.5 * CASE.expected("float32").weights)) == ["softmax"]


def test_a_wrong_product_is_a_wrong_weighted_sum() -> None:
    """An output with its columns rolled, and right weights: the weighted sum is wrong."""
    results = right()
    results["output"] = np.roll(results["output"], 1, axis=3)
    assert wrong(results) == ["weighted sum"]


def test_nan_is_not_a_misplaced_weight() -> None:
    """Weights of NaN are a wrong softmax, and say nothing about the mask."""
    weights = CASE.expected("float32").weights * np.nan
    assert "masks" not in wrong(weighted(weights))
    assert "softmax" in wrong(weighted(weights))


def lines(results: Results) -> str:
    """The lines of a message."""
    return "\n".join(stage_lines(found(results), results, CASE.expected("float32"), ""))


@pytest.mark.parametrize(("axis", "name"), [(2, "query rows"), (1, "heads"), (0, "batches")])
def test_softmax_over_another_axis_is_said(axis: int, name: str) -> None:
    """A softmax over another axis is named: sums over the keys are not 1, and sums over that axis are."""
    expected = CASE.expected("float32")
    text = lines(weighted(softmax(expected.raw, axis)))
    assert f"the sums of the weights over the keys are not 1, those over the {name} are" in text


def test_misplaced_weights_are_placed() -> None:
    """Rows and keys with a weight that must be 0 are listed."""
    text = lines(weighted(softmax(CASE.expected("float32").raw)))
    assert "the masks went wrong first" in text
    assert "Keys:     weight at keys that are not allowed: every row; in batch 0, head 0, row 0: key" in text


LSE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "right": (lambda lse: lse, "scores right: what comes after them is wrong"),
    "shifted": (lambda lse: lse + 1e-3, "the scores or masks are wrong"),
    "NaN": (lambda lse: np.where(lse == lse.max(), np.nan, lse), "scores wrong: the scores or masks are wrong"),
}


@pytest.mark.parametrize(("change", "said"), LSE.values(), ids=LSE)
def test_lse_tells_scores_from_what_follows(change: Callable[[np.ndarray], np.ndarray], said: str) -> None:
    """Without weights, lse shows whether the scores or a later stage is wrong."""
    expected = CASE.expected("float32")
    assert said in lines({"output": expected.output + 1, "lse": change(expected.lse)})


@pytest.mark.parametrize("name", ["empty-row", "nan-key-alone"])
def test_lse_that_is_not_finite_is_compared(name: str) -> None:
    """An lse that is a number in place of −inf or NaN is itself wrong where the output is right."""
    case = all_cases()[name]
    expected = case.expected("float32")
    results = {"output": expected.output, "lse": expected.lse}
    assert found(results, case) == [Stage("lse", 0.0)]
    filled = {**results, "lse": np.where(np.isfinite(expected.lse), expected.lse, -65502.0)}
    assert found(filled, case) == [Stage("lse", np.inf)]
    text = stage_lines(found(filled, case), filled, expected, "")
    assert text == ["Stages:   lse wrong: the output is right, so only lse itself is wrong"]


def test_without_weights_and_lse_nothing_is_said() -> None:
    """The output alone shows no stage."""
    assert found({"output": right()["output"]}) == []
