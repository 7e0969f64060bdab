"""Names for the pattern of a wrong output."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.error_pattern import error_pattern, plain

CASE = all_cases()["empty-row"]
EXPECTED = CASE.expected("float32")
WRONG = np.zeros(EXPECTED.output.shape, bool)
WRONG[:, :, 1] = True


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.nan, "NaN"),
        (np.inf, "infinity"),
        (0.0, "zeros"),
        (EXPECTED.v.mean(2, keepdims=True), "the mean of v"),
        (EXPECTED.v[:, :, :1], ""),
        (1e4, ""),
    ],
)
def test_a_wrong_row_is_called_by_what_it_holds(value: float | np.ndarray, name: str) -> None:
    """NaN, infinity, zeros and the mean of v are named; nothing else is guessed."""
    got = np.where(WRONG, value, EXPECTED.output)
    assert error_pattern(got, EXPECTED, WRONG) == name


def test_one_other_element_makes_it_nameless() -> None:
    """A name must fit every wrong element."""
    got = np.where(WRONG, np.nan, EXPECTED.output)
    got[0, 0, 1, 0] = 5.0
    assert error_pattern(got, EXPECTED, WRONG) == ""


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (-np.inf, "infinity"), (0.0, "zeros"), (0.5, "")])
def test_any_result_is_called_by_what_is_plain_to_see(value: float, name: str) -> None:
    """Gradients and outputs of layers are named too, by their wrong elements only."""
    got, wrong = np.array([[1.0, value], [2.0, value]]), np.array([[False, True], [False, True]])
    assert plain(got, wrong) == name
    assert plain(got, np.ones((2, 2), bool)) == ""
