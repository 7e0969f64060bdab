"""Exact numbers as a person writes them: fractions, multiples of logarithms, and minus infinity.

The vocabulary is small on purpose, and nothing is evaluated::

    3   -2   3/7   0.25   ln 2   -2 ln 2   5/3 ln 2 ln 2   ln(7/2)   -inf

A number is a fraction times any count of logarithms of fractions.  That is enough for attention by hand:
with scores that are multiples of ln 2 the powers exp(s) are powers of two, so weights are fractions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_FRACTION = r"\d+(?:/[1-9]\d*)?"
_DECIMAL = r"\d+\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>-?)(?P<coefficient>{_DECIMAL}|{_FRACTION})?(?P<logs>(?: ?ln(?: \d+|\({_FRACTION}\)))*)", re.ASCII
)
_LOG = re.compile(rf"ln(?: (\d+)|\(({_FRACTION})\))", re.ASCII)


class NotExact(ValueError):
    """A text outside the vocabulary, or arithmetic that leaves it; the message is one sentence."""


@dataclass(frozen=True)
class Exact:
    """``coefficient`` · ln(logs[0]) · ln(logs[1]) · …, or minus infinity."""

    coefficient: Fraction
    logs: tuple[Fraction, ...] = ()
    infinite: bool = False  # minus infinity; the other fields are then unused

    def __add__(self, other: Exact) -> Exact:
        if self.infinite or other.infinite:
            return MINUS_INFINITY
        if not self.coefficient or not other.coefficient:
            return other if not self.coefficient else self
        if self.logs != other.logs:
            raise NotExact(f"cannot add {self} and {other}")
        return _normal(self.coefficient + other.coefficient, self.logs)

    def __mul__(self, other: Exact) -> Exact:
        if self.infinite or other.infinite:
            raise NotExact(f"cannot multiply {self} and {other}")
        return _normal(self.coefficient * other.coefficient, tuple(sorted(self.logs + other.logs)))

    def __truediv__(self, other: Exact) -> Exact:
        rest = list(self.logs)
        if self.infinite or other.infinite or not other.coefficient:
            raise NotExact(f"cannot divide {self} by {other}")
        for base in other.logs if self.coefficient else ():
            if base not in rest:
                raise NotExact(f"cannot divide {self} by {other}")
            rest.remove(base)
        return _normal(self.coefficient / other.coefficient, tuple(rest))

    def __neg__(self) -> Exact:
        return self * Exact(Fraction(-1))

    def exp(self) -> Fraction:
        """E to this number: b^n for n · ln b, 1 for 0, 0 for minus infinity; anything else is no fraction."""
        if self.infinite:
            return Fraction(0)
        if not self.coefficient:
            return Fraction(1)
        if len(self.logs) != 1 or self.coefficient.denominator != 1:
            raise NotExact(f"exp({self}) is not a fraction")
        return self.logs[0] ** self.coefficient.numerator

    def tanh(self) -> Fraction:
        """(b^2n − 1) / (b^2n + 1) for n · ln b."""
        square = (self + self).exp()
        return (square - 1) / (square + 1)

    def fraction(self) -> Fraction:
        """The number, if it is a fraction."""
        if self.infinite or self.logs:
            raise NotExact(f"{self} is not a fraction")
        return self.coefficient

    def __float__(self) -> float:
        if self.infinite:
            return -math.inf
        value = float(self.coefficient)
        for base in self.logs:
            value *= math.log(base)
        return value

    def __str__(self) -> str:
        """The number in the vocabulary, in lowest terms."""
        if self.infinite:
            return "-inf"
        if not self.logs:
            return str(self.coefficient)
        sign, size = "-" if self.coefficient < 0 else "", abs(self.coefficient)
        logs = [f"ln {base}" if base.denominator == 1 else f"ln({base})" for base in self.logs]
        return sign + " ".join(([] if size == 1 else [str(size)]) + logs)


def _normal(coefficient: Fraction, logs: tuple[Fraction, ...]) -> Exact:
    """Zero has no logarithms, so that equal numbers compare equal."""
    return Exact(coefficient, logs if coefficient else ())


MINUS_INFINITY = Exact(Fraction(0), infinite=True)
ZERO = Exact(Fraction(0))


def parse(text: str | int) -> Exact:
    """The number that ``text`` names.  Raises NotExact for anything outside the vocabulary."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise NotExact(f"expected an integer or a text such as '3/7' or '2 ln 2', got {text!r}")
    if isinstance(text, int):
        return Exact(Fraction(text))
    if text == "-inf":
        return MINUS_INFINITY
    found = _NUMBER.fullmatch(text)
    if not found or not (found["coefficient"] or found["logs"]) or text.startswith((" ", "- ")):
        raise NotExact(f"{text!r} is not a number such as '3/7', '-2 ln 2', 'ln(7/2)' or '-inf'")
    logs = tuple(sorted(Fraction(a or b) for a, b in _LOG.findall(found["logs"])))
    if any(base in (0, 1) for base in logs):
        raise NotExact(f"{text!r} has the logarithm of 0 or 1")
    coefficient = Fraction(found["coefficient"] or 1)
    return _normal(-coefficient if found["sign"] else coefficient, logs)


def half_unit(text: str | int) -> float:
    """Half a unit in the last digit of a printed decimal, which rounding leaves open; 0 for an exact number."""
    _, point, digits = str(text).partition(".")
    return 0.5 * 10.0 ** -len(digits) if point else 0.0
