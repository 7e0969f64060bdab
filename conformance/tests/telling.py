"""Check for gradients that can fail: some element exceeds its error bound, so that zeros would not pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

Array = np.ndarray


class HasGradients(Protocol):
    """A reference of gradients: of sdpa, or of a layer."""

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients by name."""


def telling(expected: HasGradients, bound: Mapping[str, Array]) -> tuple[str, ...]:
    """Names of the gradients that can fail: an element exceeds its bound, or the bound is 0 everywhere.

    A bound of 0 belongs to a gradient that is exactly zero by GRAD-7 or GRAD-8.  An array without elements cannot fail
    by value.
    """
    return tuple(
        name
        for name, gradient in expected.gradients.items()
        if gradient.size and ((np.abs(gradient) > bound[name]).any() or not bound[name].any())
    )


def check_telling(expected: HasGradients, bound: Mapping[str, Array], names: Collection[str] = ()) -> None:
    """Refuse an input whose reference gradient is below its own bound everywhere, as zeros would pass.

    ``names`` are the gradients that must be able to fail; without them any one must, unless all have no elements, so
    that only their shapes are tested.  Raises ValueError with a sentence that gives the sizes.
    """
    told = telling(expected, bound)
    present = tuple(name for name, gradient in expected.gradients.items() if gradient.size)
    silent = [name for name in names if name not in told] if names else [*present] * (not told)
    if silent:
        raise ValueError(
            "zeros would pass as gradients: " + "; ".join(_bound_sizes(expected, bound, n) for n in silent)
        )


def _bound_sizes(expected: HasGradients, bound: Mapping[str, Array], name: str) -> str:
    """A sentence that says how far a gradient is below its bound."""
    gradient = np.abs(expected.gradients.get(name, np.zeros(0)))
    if not gradient.size:
        return f"{name} has no elements"
    share = np.max(gradient / np.where(bound[name] > 0, bound[name], np.inf))
    return f"{name} is nowhere larger than {share:.2g} times its bound, and at most {gradient.max():.2g}"
