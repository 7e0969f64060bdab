"""The vocabulary of exact numbers: what it reads, what it refuses, and its arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from attention_conformance.conformance.tests.exact import MINUS_INFINITY, ZERO, Exact, NotExact, half_unit, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3.0),
        ("3", 3.0),
        ("-2", -2.0),
        ("3/7", 3 / 7),
        ("-0.25", -0.25),
        ("ln 2", math.log(2)),
        ("-ln 2", -math.log(2)),
        ("-3/2 ln 2", -1.5 * math.log(2)),
        ("5/3 ln 2 ln 2", 5 / 3 * math.log(2) ** 2),
        ("ln(7/2)", math.log(3.5)),
        ("2 ln(7/2)", 2 * math.log(3.5)),
        ("0 ln 2", 0.0),
        ("-inf", -math.inf),
    ],
)
def test_number_is_read(text: str | int, value: float) -> None:
    """A text of the vocabulary is read as the number that it looks like."""
    assert float(parse(text)) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    ["", "-", " 1", "1 ", "1e3", "inf", "nan", "1/0", "1/-2", "--1", "- 1", "ln", "ln 0", "ln 1", "ln -2", "ln 2 2",
     "2*3", "ln(7)x", "0x10", "1_0", ".5", "5.", "٣", "__import__('os')"],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    """A text outside the vocabulary is refused, never evaluated."""
    with pytest.raises(NotExact):
        parse(text)


@pytest.mark.parametrize("value", [True, 1.5, None, [1]])
def test_other_types_are_refused(value: object) -> None:
    """Floats, which are not exact, and booleans, which are not numbers, are refused."""
    with pytest.raises(NotExact):
        parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["3", "-2", "3/7", "ln 2", "-ln 2", "5/3 ln 2 ln 2", "2 ln(7/2)", "-inf", "0"])
def test_text_and_number_are_the_same(text: str) -> None:
    """A printed number equals the text that it was read from, if that was in lowest terms."""
    assert str(parse(text)) == text


def test_exp_of_logarithms_is_a_fraction() -> None:
    """exp(n ln b) is b to the n, exp(0) is 1 and exp(−inf) is 0."""
    assert parse("-3 ln 2").exp() == Fraction(1, 8)
    assert parse("2 ln(3/2)").exp() == Fraction(9, 4)
    assert ZERO.exp() == 1
    assert MINUS_INFINITY.exp() == 0


@pytest.mark.parametrize("text", ["1", "1/2 ln 2", "ln 2 ln 2"])
def test_exp_of_anything_else_is_refused(text: str) -> None:
    """A power that is not a fraction is refused rather than rounded."""
    with pytest.raises(NotExact):
        parse(text).exp()


def test_tanh_of_logarithms_is_a_fraction() -> None:
    """tanh(n ln 2) is (4^n − 1) / (4^n + 1)."""
    assert parse("ln 2").tanh() == Fraction(3, 5)
    assert parse("-2 ln 2").tanh() == Fraction(-15, 17)


def test_arithmetic_keeps_logarithms() -> None:
    """Sums of like terms, products and quotients stay exact; sums of unlike terms are refused."""
    assert parse("ln 2") + parse("-ln 2") == ZERO
    assert parse("2 ln 2") + parse("1/2 ln 2") == parse("5/2 ln 2")
    assert parse("2 ln 2") * parse("3 ln 2") / parse("ln 2") == parse("6 ln 2")
    assert parse("3") + MINUS_INFINITY == MINUS_INFINITY
    with pytest.raises(NotExact):
        parse("1") + parse("ln 2")
    with pytest.raises(NotExact):
        parse("1") / parse("ln 2")
    with pytest.raises(NotExact):
        ZERO * MINUS_INFINITY
    with pytest.raises(NotExact):
        parse("ln 2").fraction()
    assert Exact(Fraction(2)).fraction() == 2


def test_decimal_point_means_rounded() -> None:
    """A printed decimal leaves half a unit of its last digit open, an exact number nothing."""
    assert half_unit("0.1848") == pytest.approx(5e-5)
    assert half_unit("3/7") == half_unit(3) == half_unit("-inf") == 0
