"""The cases: what is given to every implementation, one module per group of clauses."""

from __future__ import annotations

import functools

from conformance.cases import behaviour, masks, positions, scores, shapes, softmax
from conformance.cases.base import Case, Inputs
from conformance.cases.data import Shape

__all__ = ["Case", "Inputs", "Shape", "all_cases"]

_GROUPS = (shapes, scores, masks, positions, softmax, behaviour)


@functools.cache
def all_cases() -> dict[str, Case]:
    """Every case by its name, in the order of the spec's clauses.  Raises ValueError if a name stands twice."""
    found: dict[str, Case] = {}
    for group in _GROUPS:
        for each in group.cases():
            if each.name in found:
                raise ValueError(f"two cases are named {each.name}")
            found[each.name] = each
    return found
