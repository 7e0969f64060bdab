"""One vector: a case in one dtype as a description, which is JSON, and arrays, which are safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.judging.judge import dtypes_of
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.vectors import FORMAT
from attention_conformance.conformance.vectors.files import BadBound, WrongArrays, typed
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.memory_layouts import LAYOUTS
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.strict import WrongFields, WrongFormat

#: Type of an option; a window is two of them.  The size of integers is checked separately: in a union with a tuple of
#: two, msgspec 0.22 crashes for an integer with bounds.
Plain = bool | int | float | None

#: Largest integer that every JSON reader keeps exactly.
_INTEGERS = 2**53


class ResultAbout(Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements on one result, other than its values."""

    #: Names of its axes, for messages.
    axes: tuple[str, ...]
    #: Dtypes that it may have.
    dtypes: tuple[str, ...]
    #: A result may be infinite where the expected one, give or take its bound, exceeds this number.
    largest: float


class About(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a vector: everything except its arrays."""

    format: int
    operator: str
    case: str
    dtype: str
    #: The first one is broken if the values are wrong.
    clauses: tuple[str, ...]
    #: MUST, or SHOULD: wrong values are then reported and fail nothing.
    level: str
    why: str
    #: Names of the arrays that are given by position, in order, and by keyword.
    arguments: tuple[str, ...]
    keywords: tuple[str, ...]
    #: Keywords that are not arrays.
    options: dict[str, Plain | tuple[Plain, Plain]]
    #: Whether the input must be refused; then there are no results.
    refused: bool
    results: dict[str, ResultAbout]
    #: The precision profiles that have a bound, from strict to loose.
    profiles: tuple[str, ...]
    #: The profile that applies if none is declared.
    profile: str
    memory: str
    #: Equal calls, whose results must be the same bit for bit.
    repeats: Annotated[int, Meta(gt=0, le=100)]
    #: A case to run before this one, or "".
    after: str


@dataclass(frozen=True)
class Vector:
    """A description, and its arrays by their names: ``input.q``, ``expected.output``, ``bound.wide.output``."""

    about: About
    arrays: Mapping[str, np.ndarray]


def vector(case: AnyCase, dtype: str) -> Vector:
    """The vector of a case in a dtype."""
    inputs = case.inputs(dtype)
    given = {n: value for n, value in inputs.keywords.items() if isinstance(value, np.ndarray)}
    names = () if case.invalid else case.results()
    about = About(
        format=FORMAT,
        operator=case.operator,
        case=case.name,
        dtype=dtype,
        clauses=case.clauses,
        level=clauses()[case.clauses[0]].level.value,
        why=case.why,
        arguments=tuple(inputs.arrays),
        keywords=tuple(given),
        options={n: value for n, value in inputs.keywords.items() if n not in given},
        refused=case.invalid,
        results={n: result_about(case.axes(n), n, dtype) for n in names},
        profiles=() if case.invalid else tuple(p.value for p in bounds.profiles(dtype)),
        profile=default_profile(dtype),
        memory=case.memory,
        repeats=case.repeats,
        after=case.after,
    )
    arrays = {f"input.{n}": array for n, array in (inputs.arrays | given).items()}
    for name in names:
        expected = getattr(case.expected(dtype), name)
        arrays[f"expected.{name}"] = np.where(np.isnan(expected), np.nan, expected)  # one NaN on every machine
        for profile in bounds.profiles(dtype):
            bound = getattr(case.bound(dtype, profile), name)
            # A NaN or infinite expected result is compared by class, and there is nothing to bound.
            arrays[f"bound.{profile.value}.{name}"] = np.where(np.isfinite(expected), bound, 0.0)
    return Vector(about, arrays)


def result_about(axes: tuple[str, ...], name: str, dtype: str) -> ResultAbout:
    """Requirements on a result of a case in a dtype."""
    dtypes = dtypes_of(name, dtype)
    return ResultAbout(tuple(axes), dtypes, bounds.LARGEST[dtypes[0]])


def default_profile(dtype: str) -> str:
    """The profile of an implementation that declares none (SDPA-25)."""
    return Implementation("", "").profile(dtype).value


def about_of(value: Any, name: str) -> About:
    """A description from its JSON.  Raises VectorError for a wrong field."""
    if isinstance(value, dict) and value.get("format") != FORMAT:
        raise WrongFormat(f"{name} has format {value.get('format')!r:.40}, expected {FORMAT}")
    about = typed(value, About, name)

    def require(holds: Any, what: str) -> None:
        if not holds:
            raise WrongFields(f"{name} does not have {what}")

    require(about.operator in OPERATORS and about.dtype in NUMPY_DTYPES, "an operator and a dtype")
    operator = OPERATORS[about.operator]
    words = (about.case, about.why, about.after, *about.results)
    require(all(text.isprintable() for text in words), "texts that can be printed")
    require(about.clauses and all(c in clauses() for c in about.clauses), "clauses of the spec")
    require(about.level == clauses()[about.clauses[0]].level.value, "the level of its first clause")
    require(about.arguments == operator.arguments, f"the arguments of {operator.name}")
    require(set(about.keywords) <= set(operator.arrays), f"keywords of {operator.name} that are arrays")
    axes = [result.axes for result in about.results.values()]
    require(all(len({*texts}) == len(texts) for texts in (about.clauses, about.keywords, *axes)), "different texts")
    require(set(about.options) <= set(operator.keywords) - set(about.keywords), f"options of {operator.name}")
    whole = [each for value in about.options.values() for each in (value if isinstance(value, tuple) else (value,))]
    require(all(abs(n) <= _INTEGERS for n in whole if isinstance(n, int)), "a plain value for each option")
    given = (*about.keywords, *(key for key, value in about.options.items() if value is not False))
    results = () if about.refused else operator.returned(given)
    require(tuple(about.results) == results, f"the results {', '.join(results) or 'of no call'}")
    profiles = () if about.refused else tuple(p.value for p in bounds.profiles(about.dtype))
    require(about.profiles == profiles, f"the profiles of {about.dtype}")
    require(about.profile == default_profile(about.dtype), f"the profile of {about.dtype}")
    require(about.memory in LAYOUTS, "a layout")
    for key, result in about.results.items():
        require(all(axis.isprintable() for axis in result.axes), f"axes of {key} that can be printed")
        wanted = result_about(result.axes, key, about.dtype)
        require(result.dtypes == wanted.dtypes, f"the dtypes {', '.join(wanted.dtypes)} of {key}")
        require(result.largest == wanted.largest, f"{wanted.largest!r} as the largest number of {key}")
    return about


def checked(about: About, arrays: Mapping[str, np.ndarray], name: str) -> Vector:
    """The vector of a description and arrays, if they fit together.  Raises WrongArrays or BadBound."""
    inputs = {f"input.{n}" for n in (*about.arguments, *about.keywords)}
    outputs = {f"{kind}.{n}" for n in about.results for kind in ("expected", *(f"bound.{p}" for p in about.profiles))}
    wrong = sorted(set(arrays) ^ (inputs | outputs))
    if wrong:
        raise WrongArrays(f"{name} {'has the unknown array' if wrong[0] in arrays else 'lacks'} {wrong[0]}")
    for result, asked in about.results.items():
        expected = arrays[f"expected.{result}"]
        if expected.dtype != np.float64 or expected.ndim != len(asked.axes):
            raise WrongArrays(f"{name}, expected.{result} is not float64 with the axes {', '.join(asked.axes)}")
        for profile in about.profiles:
            bound = arrays[f"bound.{profile}.{result}"]
            if bound.dtype != np.float64 or bound.shape != expected.shape:
                raise WrongArrays(f"{name}, bound.{profile}.{result} is not float64 in the shape of expected.{result}")
            if not np.all((bound >= 0) & (bound < math.inf)):
                raise BadBound(f"{name}, bound.{profile}.{result} has an element that is NaN, infinite or negative")
    return Vector(about, arrays)
