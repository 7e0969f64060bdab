"""A measured quantity: what an implementation returned, with the bound on its error, through simple arithmetic.

If |value − exact| ≤ bound for each of two quantities, it holds for what is made of them here, because the bounds go
with them: a sum has the sum of the bounds, a multiple the multiple.  So properties need no tolerance of their own.
Arithmetic is in float64; its rounding is below the reference's own error, which every bound of bounds.py includes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Measured:
    """Arrays of one shape: what was returned, the reference's own, the bound between the two, and what is excused.

    ``excused`` is True where a recorded deviation is known to spoil the element (conformance.known).
    """

    value: np.ndarray
    exact: np.ndarray
    bound: np.ndarray
    excused: np.ndarray

    def __getitem__(self, index: Any) -> Measured:
        """A part, or the parts in another order."""
        return self._each(lambda array: array[index])

    def __add__(self, other: Measured | np.ndarray | float) -> Measured:
        """A sum, with the sum of the bounds; a plain number has none."""
        if isinstance(other, Measured):
            return Measured(
                self.value + other.value,
                self.exact + other.exact,
                self.bound + other.bound,
                self.excused | other.excused,
            )
        return Measured(self.value + other, self.exact + other, self.bound, self.excused)

    def __mul__(self, factor: float) -> Measured:
        """A multiple, with the multiple of the bound."""
        return Measured(factor * self.value, factor * self.exact, abs(factor) * self.bound, self.excused)

    __rmul__ = __mul__

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> Measured:
        return Measured(change(self.value), change(self.exact), change(self.bound), change(self.excused))


def constant(exact: np.ndarray) -> Measured:
    """What is known without measuring: no error, nothing excused."""
    return Measured(exact, exact, np.zeros_like(exact), np.zeros(exact.shape, bool))
