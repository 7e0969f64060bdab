"""The cases: what is given to every implementation, one module per group of clauses."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from attention_conformance.conformance.cases import (
    behaviour,
    decode,
    gradient,
    masks,
    mha,
    mha_gradient,
    positions,
    scores,
    shapes,
    sinks,
    softmax,
    sublayer,
)
from attention_conformance.conformance.cases.base import AnyCase, Case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.spec.inputs import Inputs

__all__ = ["AnyCase", "Case", "Inputs", "Shape", "all_cases", "every_case"]

_GROUPS = (shapes, scores, masks, positions, softmax, sinks, decode, behaviour)


@functools.cache
def all_cases() -> dict[str, Case]:
    """Every case of sdpa by its name, in the order of the spec's clauses.  Raises ValueError if a name stands twice."""
    return _by_name(each for group in _GROUPS for each in group.cases())


@functools.cache
def every_case() -> dict[str, AnyCase]:
    """Every case of every operator by its name, sdpa's first.  Raises ValueError if a name stands twice."""
    return _by_name([*all_cases().values(), *mha.cases(), *sublayer.cases(), *gradient.cases(), *mha_gradient.cases()])


def _by_name(cases: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in cases:
        if each.name in found:
            raise ValueError(f"two cases are named {each.name}")
        found[each.name] = each
    return found
