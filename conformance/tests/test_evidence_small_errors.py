"""How small an error is caught in layers and gradients: the search against errors that were planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.evidence import small_errors
from attention_conformance.conformance.evidence.series import SERIES
from attention_conformance.conformance.evidence.small_errors import QUANTITIES, Place, caught, slopes, value_cases
from attention_conformance.impls.contract import Profile

CASES = ("mha-widths", "sublayer-post-norm", "grad-bias", "mha-grad-widths")


def place(name: str, dtype: str = "float32") -> Place:
    """The place of a case."""
    return Place(every_case()[name], dtype)


def leaves(x: Place, changed: dict[str, Any]) -> bool:
    """Whether the results with another operand leave the bound."""
    limit = x.case.bound(x.dtype, Profile.WIDE)
    right, got = x.results({}), x.results(changed)
    return any(bool((np.abs(got[name] - right[name]) > getattr(limit, name)).any()) for name in right)


@pytest.mark.parametrize(
    ("name", "operand"),
    [(name, operand) for name in CASES for operand in ("w_q", "w_o", "b_v", "gamma", "v", "grad_output")],
)
def test_a_planted_error_is_caught_from_what_was_found(name: str, operand: str) -> None:
    """One of the largest elements, off by 2 % more than the smallest error, is outside; off by 2 % less, none is."""
    x = place(name)
    array = x.operand(operand)
    if array is None:
        pytest.skip(f"{name} has no {operand}")
    error = caught(x, list(slopes(x, (operand,))), Profile.WIDE)
    assert error < small_errors.STEP
    largest = np.argsort(-np.abs(array), axis=None, kind="stable")[: small_errors.ELEMENTS]
    outside = {
        factor: any(leaves(x, {operand: planted(array, at, factor * error)}) for at in largest)
        for factor in (0.98, 1.02)
    }
    assert outside == {0.98: False, 1.02: True}


def planted(array: np.ndarray, at: int, error: float) -> np.ndarray:
    """The array with one element off by a relative error."""
    other = array.copy()
    other.flat[at] *= 1 + error
    return other


def test_an_error_that_has_no_effect_is_never_caught() -> None:
    """A bias of keys adds the same to all scores of a row."""
    x = place("mha-bias-of-keys")
    assert caught(x, list(slopes(x, ("b_k",))), Profile.WIDE) == np.inf


def test_a_looser_bound_catches_less() -> None:
    """The same movement of the results, judged by two profiles."""
    x = place("mha-widths")
    moved = list(slopes(x, ("w_v",)))
    assert caught(x, moved, Profile.TF32) > 100 * caught(x, moved, Profile.WIDE)


@pytest.mark.parametrize("name", QUANTITIES)
def test_one_part_in_ten_thousand_is_caught_in_float32(name: str) -> None:
    """On at least one of the suite's cases, for each quantity."""
    cases = value_cases(SERIES[name], "float32")
    for quantity, operands in QUANTITIES[name].items():
        places = (Place(case, "float32") for case in cases)
        found = (caught(x, small_errors._moved(x, operands), Profile.WIDE) for x in places)
        assert any(error <= 1e-4 for error in found), quantity


def test_rows_name_every_dtype_profile_and_quantity() -> None:
    """And the case on which the smallest error was caught."""
    rows = small_errors.rows(SERIES["sublayer"])
    assert len(rows) == len(QUANTITIES["sublayer"]) * (1 + 2 + 3 + 3)
    assert all(row["smallest_on"].startswith("sublayer-") for row in rows)
