"""Smallest errors that are caught: by formula and by differences, compared with planted errors, and the promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.evidence import float32, sensitivity
from attention_conformance.conformance.evidence.float32 import computed_in_float32
from attention_conformance.conformance.evidence.sensitivity import PROMISED, QUANTITIES, Place, operands, smallest
from attention_conformance.conformance.evidence.series import SERIES
from attention_conformance.conformance.properties.drawn import once
from attention_conformance.conformance.properties.problem import Problem, RandomBias, RandomMask
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow

PROBLEM = Problem(
    "everything",
    Shape(b=2, hq=4, hkv=2, sq=3, sk=6, d=5, dv=4),
    mask=RandomMask(0.7),
    bias=RandomBias(0.5),
    scale=0.6,
    softcap=2.0,
    is_causal=True,
    causal_offset=2,
    return_weights=True,
    return_lse=True,
)
CASE = once(PROBLEM, "float32")
PLACE = Place(CASE, "float32")
OF_SDPA = QUANTITIES["sdpa"]

#: A planted error: small enough to act to first order, and large enough for float64.
PLANTED = 1e-6


def share(quantity: str, x: Place = PLACE) -> float:
    """The share of the bound that a planted error of a quantity uses."""
    return PLANTED / smallest(x, list(OF_SDPA[quantity](x)), Profile.WIDE)


def used(output: np.ndarray, weights: np.ndarray | None = None, lse: np.ndarray | None = None) -> float:
    """The largest share of the bound that given results use."""
    e, limit = CASE.expected("float32"), CASE.bound("float32", Profile.WIDE)
    found = [np.abs(output - e.output) / limit.output]
    if weights is not None:
        found.append(np.abs(weights - e.weights)[e.allowed] / limit.weights[e.allowed])
    if lse is not None:
        found.append(np.abs(lse - e.lse) / limit.lse)
    return float(max(np.nanmax(each) for each in found))


def results(e: Expected, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output, weights and lse for other scores."""
    weights, lse = reference.softmax(scores, e.allowed)
    return weights @ e.v, weights, lse


def test_an_error_of_the_scale_is_what_it_computes() -> None:
    """The share by formula equals that of attention computed with the wrong scale."""
    x = CASE.inputs("float32")
    options = {name: value for name, value in x.keywords.items() if not name.startswith("return_")}
    other = reference.sdpa(x.q, x.k, x.v, **{**options, "scale": PROBLEM.scale * (1 + PLANTED)})  # type: ignore[operator]
    assert share("scale") == pytest.approx(used(other.output, other.weights, other.lse), rel=1e-4)


@pytest.mark.parametrize("name", ["decode-sinks", "decode-results"])
def test_an_error_of_the_scale_is_what_it_computes_beside_sinks_and_a_past(name: str) -> None:
    """A sink's score does not change with the scale, and its weight is not returned."""
    case = all_cases()[name]
    x, e, limit = case.inputs("float32"), case.expected("float32"), case.bound("float32", Profile.WIDE)
    options = {option: value for option, value in x.keywords.items() if not option.startswith("return_")}
    other = reference.sdpa(x.q, x.k, x.v, **{**options, "scale": (1 + PLANTED) / np.sqrt(x.q.shape[3])})
    found = [np.abs(getattr(other, result) - getattr(e, result)) for result in case.results()]
    limits = [np.where(bound > 0, bound, np.inf) for bound in (getattr(limit, result) for result in case.results())]
    used_up = max(float(np.max(moved / bound)) for moved, bound in zip(found, limits, strict=True))
    assert share("scale", Place(case, "float32")) == pytest.approx(used_up, rel=1e-4)


def test_an_error_of_one_score_is_the_one_that_shows_most() -> None:
    """The share by formula is the largest over all scores, of attention computed with that score wrong."""
    e = CASE.expected("float32")
    shares = []
    for at in np.argwhere(e.allowed):
        scores = e.scores.copy()
        scores[tuple(at)] *= 1 + PLANTED
        output, weights, lse = results(e, scores)
        only = np.where(np.arange(weights.shape[3]) == at[3], weights, e.weights)
        shares.append(used(output, only, lse))
    assert share("one score") == pytest.approx(max(shares), rel=1e-4)


@pytest.mark.parametrize("quantity", ["one weight", "one value"])
def test_an_error_of_one_weight_or_value_is_the_one_that_shows_most(quantity: str) -> None:
    """The share by formula is the largest over all weights, or values, of the sum computed with that one wrong."""
    e = CASE.expected("float32")
    array = e.weights if quantity == "one weight" else e.v
    shares = []
    for at in np.argwhere(array):
        other = array.copy()
        other[tuple(at)] *= 1 + PLANTED
        if quantity == "one weight":
            shares.append(used(other @ e.v, other))
        else:
            shares.append(used(e.weights @ other))
    assert share(quantity) == pytest.approx(max(shares), rel=1e-4)


def test_an_error_of_the_output_is_its_own_share() -> None:
    """The share by formula equals that of the output with the error."""
    output = CASE.expected("float32").output
    assert share("output") == pytest.approx(used(output * (1 + PLANTED)), rel=1e-4)


def test_an_error_that_cannot_show_is_never_caught() -> None:
    """Scores of 0 remain 0, and a single key has weight 1 whatever its score."""
    zero = Place(once(replace(PROBLEM, scale=0.0, bias=None), "float32"), "float32")
    assert smallest(zero, list(OF_SDPA["scale"](zero)), Profile.WIDE) == np.inf
    one = Place(once(Problem("one", Shape(sk=1)), "float32"), "float32")
    assert smallest(one, list(OF_SDPA["one score"](one)), Profile.WIDE) == np.inf


def leaves(x: Place, changed: dict[str, np.ndarray]) -> bool:
    """Whether the results with changed operands leave the bound."""
    limit = x.case.bound(x.dtype, Profile.WIDE)
    right, got = x.results({}), x.results(changed)
    return any(bool((np.abs(got[name] - right[name]) > getattr(limit, name)).any()) for name in right)


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        (name, operand)
        for name in ("mha-widths", "sublayer-post-norm", "grad-bias", "mha-grad-widths")
        for operand in ("w_q", "w_o", "b_v", "gamma", "v", "grad_output")
    ],
)
def test_a_planted_error_of_an_operand_is_caught_from_what_was_found(name: str, operand: str) -> None:
    """An error of 2 % more than the smallest leaves the bound in one of the largest elements; 2 % less, in none."""
    x = Place(every_case()[name], "float32")
    array = x.operand(operand)
    if array is None:
        pytest.skip(f"{name} has no {operand}")
    error = smallest(x, list(operands(operand)(x)), Profile.WIDE)
    assert error < sensitivity.STEP
    largest = np.argsort(-np.abs(array), axis=None, kind="stable")[: sensitivity.ELEMENTS]
    outside = {
        factor: any(leaves(x, {operand: planted(array, at, factor * error)}) for at in largest)
        for factor in (0.98, 1.02)
    }
    assert outside == {0.98: False, 1.02: True}


def planted(array: np.ndarray, at: int, error: float) -> np.ndarray:
    """The array with a relative error in one element."""
    other = array.copy()
    other.flat[at] *= 1 + error
    return other


def test_an_operand_without_effect_is_never_caught() -> None:
    """A bias of keys adds the same to all scores of a row, so that no error in it is caught."""
    x = Place(every_case()["mha-bias-of-keys"], "float32")
    assert smallest(x, list(operands("b_k")(x)), Profile.WIDE) == np.inf


def test_a_looser_bound_catches_less() -> None:
    """The looser of two profiles catches only larger errors."""
    x = Place(every_case()["mha-widths"], "float32")
    moved = list(operands("w_v")(x))
    assert smallest(x, moved, Profile.TF32) > 100 * smallest(x, moved, Profile.WIDE)


@pytest.mark.parametrize("name", QUANTITIES)
def test_one_part_in_ten_thousand_is_caught_in_float32(name: str) -> None:
    """An error of 1e-4 in each quantity is caught by at least one of the suite's cases."""
    places = [Place(case, "float32") for case in sensitivity.value_cases(SERIES[name], "float32")]
    for quantity, moves in QUANTITIES[name].items():
        assert any(smallest(x, list(moves(x)), Profile.WIDE) <= PROMISED for x in places), quantity


def test_rows_name_every_dtype_profile_and_quantity() -> None:
    """Rows name every dtype, profile and quantity, and the case on which the smallest error was caught."""
    rows = sensitivity.rows(SERIES["sublayer"])
    assert len(rows) == len(QUANTITIES["sublayer"]) * (1 + 2 + 3 + 3)
    assert all(row["smallest_on"].startswith("sublayer-") for row in rows)


def test_float64_computed_in_float32_is_always_caught() -> None:
    """Every case of the suite catches such results, unless its exact result is a float32 number."""
    fates = {case.name: computed_in_float32(case) for case in float32.value_cases()}
    assert "missed" not in fates.values()
    assert list(fates.values()).count("float32") < len(fates) / 10


def test_float64_computed_in_float32_is_missed_by_a_loose_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With float32's roundoff as the bound of float64, some result is missed."""
    problem = once(Problem("loose", Shape(b=1, hq=1, hkv=1, sq=2, sk=3, dv=1)), "float64")
    assert computed_in_float32(problem) == "caught"
    monkeypatch.setitem(bounds.UNIT_ROUNDOFF, "float64", 2.0**-24)
    loose = once(Problem("loose", Shape(b=1, hq=1, hkv=1, sq=2, sk=3, dv=1)), "float64")
    assert computed_in_float32(loose) in ("missed", "float32")


def test_nothing_can_be_caught_where_no_row_has_a_key() -> None:
    """Outputs of zeros are float32 numbers, so nothing can be caught."""
    assert computed_in_float32(once(Problem("empty", Shape(b=1), kv_lengths=(0,)), "float64")) == "float32"
