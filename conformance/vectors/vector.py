"""One vector: a case in one dtype as a description, which is JSON, and arrays, which are safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from conformance import bounds
from conformance.cases import AnyCase
from conformance.cases.anycase import NUMPY_DTYPES
from conformance.clauses import clauses
from conformance.judge import dtypes_of
from conformance.vectors import FORMAT
from conformance.vectors.documents import fields, texts
from conformance.vectors.errors import BadBound, WrongArrays, WrongFields, WrongFormat
from impls.contract import Implementation
from impls.memory import LAYOUTS
from impls.operators import OPERATORS

#: What an option may be; a window is a list of two, each a number or null.
_PLAIN = (bool, int, float, type(None))

#: Integers that every JSON reader keeps as they are.
_INTEGERS = 2**53

#: Equal calls of one case.
_REPEATS = 100


@dataclass(frozen=True)
class ResultAbout:
    """What is asked of one result, beside its values."""

    #: Names of its axes, for messages.
    axes: tuple[str, ...]
    #: Dtypes that it may have.
    dtypes: tuple[str, ...]
    #: A result may be infinite where the expected one, give or take its bound, is beyond this number.
    largest: float


@dataclass(frozen=True)
class About:
    """The description of a vector: everything but its arrays.  Its JSON has these fields, behind ``format``."""

    operator: str
    case: str
    dtype: str
    #: The first one is broken if the values are wrong.
    clauses: tuple[str, ...]
    #: MUST, or SHOULD: then wrong values are reported and fail nothing.
    level: str
    why: str
    #: Names of the arrays that are given by position, in order, and by keyword.
    arguments: tuple[str, ...]
    keywords: tuple[str, ...]
    #: Keywords that are no arrays.
    options: Mapping[str, Any]
    #: The input must be refused; then there are no results.
    refused: bool
    results: Mapping[str, ResultAbout]
    #: The precision profiles that have a bound, from strict to loose.
    profiles: tuple[str, ...]
    #: The one that holds if none is declared.
    profile: str
    memory: str
    #: Equal calls, whose results must be the same bit for bit.
    repeats: int
    #: A case to run before this one, or "".
    after: str

    def as_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return {"format": FORMAT, **asdict(self)}


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
            # Where the expected result is NaN or infinite the class is compared, and there is nothing to bound.
            arrays[f"bound.{profile.value}.{name}"] = np.where(np.isfinite(expected), bound, 0.0)
    return Vector(about, arrays)


def result_about(axes: tuple[str, ...], name: str, dtype: str) -> ResultAbout:
    """What is asked of a result of a case in a dtype."""
    dtypes = dtypes_of(name, dtype)
    return ResultAbout(tuple(axes), dtypes, bounds.LARGEST[dtypes[0]])


def default_profile(dtype: str) -> str:
    """The profile of an implementation that declares none (SDPA-25)."""
    return Implementation("", "").profile(dtype).value


def about_of(record: Any, name: str) -> About:
    """A description from its JSON.  Raises VectorError for a field that is not what it should be."""
    if isinstance(record, dict) and record.get("format") != FORMAT:
        raise WrongFormat(f"{name} has format {record.get('format')!r:.40}, expected {FORMAT}")
    kinds: dict[str, type] = dict.fromkeys(
        ("operator", "case", "dtype", "level", "why", "profile", "memory", "after"), str
    )
    kinds |= dict.fromkeys(("clauses", "arguments", "keywords", "profiles"), list)
    kinds |= {"format": int, "options": dict, "results": dict, "refused": bool, "repeats": int}
    found = {key: value for key, value in fields(record, kinds, name).items() if key != "format"}
    for key in ("clauses", "arguments", "keywords", "profiles"):
        found[key] = texts(found[key], f"{name}, {key}")
    _require(found["operator"] in OPERATORS and found["dtype"] in NUMPY_DTYPES, name, "an operator and a dtype")
    operator = OPERATORS[found["operator"]]
    words = (found["case"], found["why"], found["after"], *found["results"])
    _require(all(text.isprintable() for text in words), name, "texts that can be printed")
    _require(found["clauses"] and all(c in clauses() for c in found["clauses"]), name, "clauses of the spec")
    _require(found["level"] == clauses()[found["clauses"][0]].level.value, name, "the level of its first clause")
    _require(found["arguments"] == operator.arguments, name, f"the arguments of {operator.name}")
    _require(set(found["keywords"]) <= set(operator.arrays), name, f"keywords of {operator.name} that are arrays")
    options = {key: _option(value, f"{name}, {key}") for key, value in found["options"].items()}
    _require(set(options) <= set(operator.keywords) - set(found["keywords"]), name, f"options of {operator.name}")
    given = (*found["keywords"], *(key for key, value in options.items() if value is not False))
    results = () if found["refused"] else operator.returned(given)
    _require(tuple(found["results"]) == results, name, f"the results {', '.join(results) or 'of no call'}")
    profiles = () if found["refused"] else tuple(p.value for p in bounds.profiles(found["dtype"]))
    _require(found["profiles"] == profiles, name, f"the profiles of {found['dtype']}")
    _require(found["profile"] == default_profile(found["dtype"]), name, f"the profile of {found['dtype']}")
    _require(found["memory"] in LAYOUTS and 0 < found["repeats"] <= _REPEATS, name, "a layout and a number of calls")
    found["results"] = {n: _result(each, n, found["dtype"], f"{name}, {n}") for n, each in found["results"].items()}
    return About(**found | {"options": options})


def _require(holds: Any, name: str, what: str) -> None:
    if not holds:
        raise WrongFields(f"{name} does not have {what}")


def _option(value: Any, name: str) -> Any:
    if isinstance(value, list) and len(value) == 2:
        return tuple(_option(each, name) for each in value)
    _require(type(value) in _PLAIN and (type(value) is not int or abs(value) <= _INTEGERS), name, "a plain value")
    return value


def _result(record: Any, result: str, dtype: str, name: str) -> ResultAbout:
    found = fields(record, {"axes": list, "dtypes": list, "largest": float}, name)
    _require(
        all(axis.isprintable() for axis in texts(found["axes"], f"{name}, axes")), name, "axes that can be printed"
    )
    wanted = result_about(texts(found["axes"], f"{name}, axes"), result, dtype)
    _require(found["dtypes"] == list(wanted.dtypes), name, f"the dtypes {', '.join(wanted.dtypes)}")
    _require(found["largest"] == wanted.largest, name, f"{wanted.largest!r} as the largest number")
    return wanted


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
