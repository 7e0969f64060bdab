"""Stamp of the evidence: its cases and bounds as numbers, so that evidence of other cases or bounds is noticed.

The stamp is not of the modules' text, in which a comment may change, but of what they compute: the inputs of every
case, and the bound of every result of a few random problems, as its geometric mean, to which every element contributes.
Numbers are compared with a tolerance, as libraries differ in the last digits.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.series import Series
from attention_conformance.conformance.properties.drawn import dtype_of, once

#: Number of problems whose bounds are taken.
PROBLEMS = 24

#: Largest relative difference of a bound from the evidence's: far above the effect of another machine's exp and sums,
#: and far below any term of a bound.  The bounds of float64 are a few dozen units in the last place of the float64
#: numbers that they are computed from, so that one more or less is a percent of an element; their terms are those of
#: the other dtypes.
NEAR = {"float64": 1e-2, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}

#: Largest difference of the number of a case's inputs from the evidence's: above the effect of a last digit of all
#: inputs in float32, and below that of a thousandth in one input of a million.
SAME = 1e-6

#: Numbers that represent NaN and None, and the infinities.
_NAN, _PLUS, _MINUS = 7.25, 11.25, -13.25


def cases_of(series: Series) -> list[AnyCase]:
    """The suite's cases of a series: those of its operator, with a past for decoding and without one for sdpa."""
    found = [case for case in every_case().values() if case.operator == series.operator]
    if series.operator != "sdpa":
        return found
    return [case for case in found if ("past_key" in case.keywords) == (series.name == "decode")]


def stamp(series: Series) -> dict[str, Any]:
    """The inputs of a series' cases, and its bounds on the first problems by problem, profile and result."""
    return {
        "cases": {f"{case.name} {' '.join(case.dtypes)}": inputs(case) for case in cases_of(series)},
        "bounds": {n: bound_numbers(series, n) for n in map(str, range(PROBLEMS))},
    }


def inputs(case: AnyCase) -> float:
    """A case's inputs in its first dtype as a number, to which each element of all arguments contributes."""
    made = case.inputs(case.dtypes[0])
    # All in one array, so that each element has its own weight, whichever argument it belongs to.
    numbers = np.concatenate([_numbers(*each) for each in sorted({**made.arrays, **made.keywords}.items())])
    weights = np.cos(np.arange(1, numbers.size + 1)) / numbers.size**0.5
    return float(f"{weights @ np.arcsinh(numbers):.9g}")


def _numbers(name: str, value: Any) -> np.ndarray:
    """The name and the shape of an argument, and its elements, as numbers; a text counts as its checksum."""
    array = np.asarray(zlib.crc32(value.encode()) if isinstance(value, str) else value, np.float64)
    elements = np.nan_to_num(array.ravel(), nan=_NAN, posinf=_PLUS, neginf=_MINUS)
    return np.concatenate([[zlib.crc32(name.encode()), *array.shape], elements])


def bound_numbers(series: Series, index: str) -> dict[str, float]:
    """The mean bound of each result of a problem under each profile; 0 for a result without a finite bound."""
    dtype = dtype_of(int(index))
    case = once(series.problem(int(index)), dtype)
    found = {}
    for profile in profiles(dtype):
        limit = case.bound(dtype, profile)
        for name in case.results():
            array = getattr(limit, name)
            some = array[np.isfinite(array) & (array > 0)]
            found[f"{profile.value} {name}"] = float(f"{np.exp(np.log(some).mean()):.9g}") if some.size else 0.0
    return found


def stale(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Changes between two stamps of one series: the cases, and the problems whose bounds differ."""
    one, other = kept["cases"], now["cases"]
    found = [f"case {name}" for name in one.keys() ^ other.keys()]
    found += [f"case {n}" for n in one.keys() & other.keys() if not np.isclose(one[n], other[n], rtol=0, atol=SAME)]
    for index in now["bounds"].keys() | kept["bounds"].keys():
        one, other = kept["bounds"].get(index, {}), now["bounds"].get(index, {})
        near = NEAR[dtype_of(int(index))]
        if one.keys() != other.keys() or not all(np.isclose(one[n], other[n], rtol=near, atol=0) for n in one):
            found.append(f"bounds of problem {index}")
    return sorted(found)
