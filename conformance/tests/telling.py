"""Gradients that tell: an element exceeds its error bound, so that zeros would be seen to be wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

Array = np.ndarray


class HasGradients(Protocol):
    """A reference of gradients: of sdpa, or of a layer."""

    @property
    def gradients(self) -> dict[str, Array]:
        """By name."""


def telling(expected: HasGradients, bound: Mapping[str, Array]) -> tuple[str, ...]:
    """Names of the gradients that can fail: an element exceeds its bound, or the bound is 0 everywhere.

    The second is a gradient that is exactly zero by GRAD-7 or GRAD-8.  One without elements cannot fail by value.
    """
    return tuple(
        name
        for name, gradient in expected.gradients.items()
        if gradient.size and ((np.abs(gradient) > bound[name]).any() or not bound[name].any())
    )


def check_telling(expected: HasGradients, bound: Mapping[str, Array], names: Collection[str] = ()) -> None:
    """Refuse an input whose reference gradient is below its own bound everywhere, as zeros would pass.

    ``names`` are the gradients that have to tell; without them any one has to, unless all are without elements, so
    that their shapes are what is tested.  Raises ValueError with a sentence that gives the sizes.
    """
    told = telling(expected, bound)
    present = tuple(name for name, gradient in expected.gradients.items() if gradient.size)
    silent = [name for name in names if name not in told] if names else [*present] * (not told)
    if silent:
        raise ValueError(
            "zeros would pass as gradients: " + "; ".join(_bound_sizes(expected, bound, n) for n in silent)
        )


def _bound_sizes(expected: HasGradients, bound: Mapping[str, Array], name: str) -> str:
    """How far a gradient is below its bound, in words."""
    gradient = np.abs(expected.gradients.get(name, np.zeros(0)))
    if not gradient.size:
        return f"{name} has no elements"
    share = np.max(gradient / np.where(bound[name] > 0, bound[name], np.inf))
    return f"{name} is nowhere larger than {share:.2g} times its bound, and at most {gradient.max():.2g}"
