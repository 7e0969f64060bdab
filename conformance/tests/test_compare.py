"""Comparing: inside and outside the bound, NaN and infinity by class, and the worst element."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.judging.compare import compare, shares


def one(got: float, expected: float, bound: float, dtype: str = "float32") -> float:
    """The share of a single element."""
    return float(shares(np.array([got]), np.array([expected]), np.array([bound]), dtype)[0])


def test_inside_the_bound_passes() -> None:
    """An error of half the bound has share 0.5."""
    assert one(1.05, 1.0, 0.1) == pytest.approx(0.5)


def test_on_the_bound_passes() -> None:
    """An error equal to the bound is inside it."""
    assert compare("output", np.array([1.25]), np.array([1.0]), np.array([0.25]), "float64").ok


def test_outside_the_bound_fails() -> None:
    """An error beyond the bound fails."""
    assert not compare("output", np.array([1.26]), np.array([1.0]), np.array([0.25]), "float64").ok


def test_equal_passes_with_a_bound_of_zero() -> None:
    """With a bound of zero, equality passes and anything else fails."""
    assert one(0.0, 0.0, 0.0) == 0.0
    assert one(1e-30, 0.0, 0.0) == np.inf


@pytest.mark.parametrize(
    ("got", "expected"),
    [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf), (-np.inf, np.inf), (np.nan, np.inf), (np.inf, np.nan)],
)
def test_another_class_fails(got: float, expected: float) -> None:
    """NaN, +inf, −inf and finite numbers never pass for each other, however large the bound."""
    assert one(got, expected, 1e38) == np.inf


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_same_class_passes(value: float) -> None:
    """Where the reference is not finite, the same class passes."""
    assert one(value, value, 0.0) == 0.0


def test_overflow_is_allowed_only_beyond_the_largest_number() -> None:
    """float16 may return inf for 70000, and not for 60000; never with the other sign."""
    assert one(np.inf, 70000.0, 1.0, "float16") == 0.0
    assert one(np.inf, 60000.0, 1.0, "float16") == np.inf
    assert one(-np.inf, 70000.0, 1.0, "float16") == np.inf
    assert one(np.inf, 70000.0, 1.0, "float32") == np.inf


def test_the_worst_element_and_its_place_are_named() -> None:
    """The comparison names the element with the largest share, not the one with the largest error."""
    expected = np.zeros((2, 3))
    got, bound = np.zeros((2, 3)), np.ones((2, 3))
    got[0, 1], got[1, 2], bound[1, 2] = 2.0, 1.0, 0.1
    found = compare("output", got, expected, bound, "float64")
    assert found.index == (1, 2)
    assert found.wrong == 2
    assert found.where == ((0, 1), (1, 2))


def test_an_empty_result_passes() -> None:
    """A result without elements passes."""
    assert compare("output", np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)), "float32").ok
