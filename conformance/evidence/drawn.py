"""Statistics of the random problems: how many give which of their fields, and the range of its numbers, by series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.evidence.series import Series
from attention_conformance.conformance.properties.problem import Problem

#: Fields that say nothing of the inputs.
UNSAID = ("name", "operator")


def drawn(series: Series, problems: int) -> dict[str, Any]:
    """Counts of the first problems of a series: how many are in each dtype, and of each field how many give it.

    With its smallest and largest number, None for a field without numbers.
    """
    dtypes = [series.dtype(index) for index in range(problems)]
    given: dict[str, int] = {}
    numbers: dict[str, list[float]] = {}
    for index in range(problems):
        for name, value, default in _fields(series.problem(index)):
            given[name] = given.get(name, 0) + (
                value is True or (type(value) is not bool and value not in (None, default))
            )
            numbers.setdefault(name, []).extend(n for n in np.ravel(value).tolist() if type(n) in (int, float))
    return {
        "dtypes": {name: dtypes.count(name) for name in sorted(set(dtypes))},
        "fields": {
            name: {
                "given": count,
                "smallest": min(numbers[name], default=None),
                "largest": max(numbers[name], default=None),
            }
            for name, count in given.items()
            if count
        },
    }


def _fields(problem: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of each field, those of a problem within and of the shape (always given) among them."""
    for field in fields(problem):
        value = getattr(problem, field.name)
        if isinstance(value, Problem | Shape | LayerShape):
            yield from _fields(value)
        elif field.name not in UNSAID:
            yield field.name, value, MISSING if isinstance(problem, Shape | LayerShape) else field.default
