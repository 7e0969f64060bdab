"""The hand-computed examples as records, read strictly from examples.toml, each number both exact and as float64.

An example holds inputs, the steps that a person takes with a pencil, and results.  A number with a decimal point in a
step or a result is rounded, and right to half a unit in its last digit; every other number is exact.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.tests.exact import Exact, NotExact, half_unit, parse

INPUTS = ("q", "k", "v")
#: Steps from inputs to results, in the order in which they are computed.
STEPS = ("products", "scaled", "capped", "scores", "shift", "powers", "totals")
RESULTS = ("output", "weights", "lse")
OPTIONS = (
    *("mask", "bias", "is_causal", "causal_offset", "window", "kv_lengths", "scale", "softcap"),
    *("block_mask", "block_size", "tree_parents", "alibi_slopes", "head_scale"),
    *("rotary_cos", "rotary_sin", "rotary_interleaved"),
)
#: The text for an open side of a window; TOML has no null.
OPEN = "open"

UNIT = 2.0**-53


class MalformedExample(ValueError):
    """An example that cannot be read; the text says which, where, and why."""


@dataclass(frozen=True, eq=False)
class Table:
    """An array of numbers: as written, exact, as float64, and how far rounding may have moved each number."""

    texts: np.ndarray
    exact: np.ndarray
    values: np.ndarray
    rounding: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.values.shape


@dataclass(frozen=True, eq=False)
class Rejected:
    """A wrong result in print or in use, and the mistake that gives it."""

    result: str
    value: Table
    because: str


@dataclass(frozen=True, eq=False)
class Example:
    """One example: q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), options, steps and results.

    ``options`` are keywords of ``reference.sdpa``; ``exact`` has those of them that are numbers in exact form.
    """

    name: str
    clauses: tuple[str, ...]
    shows: str
    inputs: Mapping[str, Table]
    options: Mapping[str, Any]
    exact: Mapping[str, Table]
    steps: Mapping[str, Table]
    results: Mapping[str, Table]
    rejected: tuple[Rejected, ...]

    @property
    def q(self) -> np.ndarray:
        """Queries as float64."""
        return self.inputs["q"].values

    @property
    def k(self) -> np.ndarray:
        """Keys as float64."""
        return self.inputs["k"].values

    @property
    def v(self) -> np.ndarray:
        """Values as float64."""
        return self.inputs["v"].values

    def limit(self, table: Table) -> np.ndarray:
        """The allowed distance of a float64 result from a number of ``table``, including the table's own rounding.

        A score of size s computed from D ≤ 4 products carries an error of at most 8 u · s (u = 2^-53), which
        passes into a weight at most twice; exp, the sum over at most 6 keys and the division add 16 u; a
        result is at most the largest |v| times that.  The factor 2 covers higher-order terms.
        """
        scores = self.steps["scores"].values
        size = np.max(np.abs(scores[np.isfinite(scores)]), initial=0.0)
        largest = np.max(np.abs(self.v), initial=1.0)
        return table.rounding + 2 * UNIT * (16 * size + 16) * largest


def disagreements(example: Example, computed: Mapping[str, np.ndarray]) -> list[str]:
    """One line for each result of the example that differs from the one in ``computed`` (by name)."""
    return [
        f"{example.name}: {name} should be {table.texts.tolist()}, got {np.asarray(computed[name]).tolist()}"
        for name, table in example.results.items()
        if not agrees(example, table, computed[name])
    ]


def agrees(example: Example, table: Table, computed: np.ndarray) -> bool:
    """Whether an array has the table's shape and numbers; −inf equals only −inf, and NaN equals nothing."""
    if computed.shape != table.shape:
        return False
    with np.errstate(invalid="ignore"):  # −inf − −inf
        near = np.abs(computed - table.values) <= example.limit(table)
    return bool(np.all(near | (computed == table.values)))


@functools.cache
def examples() -> tuple[Example, ...]:
    """Every example, in the order of the file."""
    return load(DATA.read_text(encoding="utf-8"))


def load(text: str) -> tuple[Example, ...]:
    """The examples of a TOML text.  Raises MalformedExample, naming the example and the field."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MalformedExample(f"not TOML: {error}") from None
    entries = data.get("examples")
    tables = {"examples", "packed", "paged", "latents", "merges", "merge_gradients"}
    if not {"examples"} <= set(data) <= tables or not isinstance(entries, list):
        raise MalformedExample("expected [[examples]] and nothing else")
    found = tuple(_example(entry) for entry in entries)
    names = [example.name for example in found]
    for name in names:
        if names.count(name) > 1:
            raise MalformedExample(f"{name}: this name stands twice")
    return found


def _example(entry: dict[str, Any]) -> Example:
    name = entry.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise MalformedExample(f"an example needs a name of letters, digits and _, got {name!r}")
    required = {"name", "clauses", "shows", "inputs", "steps", "results"}
    _fields(name, "", entry, required, required | {"options", "rejected"})
    if not isinstance(entry["shows"], str) or not entry["shows"].endswith("."):
        raise MalformedExample(f"{name}: shows must be a sentence")
    if not entry["clauses"] or not all(isinstance(clause, str) for clause in entry["clauses"]):
        raise MalformedExample(f"{name}: clauses must name at least one clause")
    options = entry.get("options", {})
    _fields(name, "options", options, set(), set(OPTIONS))
    _fields(name, "inputs", entry["inputs"], set(INPUTS), set(INPUTS))
    _fields(name, "steps", entry["steps"], {"products", "scores", "powers", "totals"}, set(STEPS))
    _fields(name, "results", entry["results"], {"output"}, set(RESULTS))
    inputs = {key: _table(name, key, value, 4) for key, value in entry["inputs"].items()}
    shapes = _shapes(inputs)
    ranks = {
        "bias": None,
        "scale": 0,
        "softcap": 0,
        "alibi_slopes": 1,
        "head_scale": 1,
        "rotary_cos": 2,
        "rotary_sin": 2,
    }
    exact = {key: _table(name, key, options[key], rank) for key, rank in ranks.items() if key in options}
    return Example(
        name=name,
        clauses=tuple(entry["clauses"]),
        shows=entry["shows"],
        inputs=MappingProxyType(inputs),
        options=MappingProxyType({key: _option(name, key, value, exact) for key, value in options.items()}),
        exact=MappingProxyType(exact),
        steps=_tables(name, entry["steps"], shapes, STEPS),
        results=_tables(name, entry["results"], shapes, RESULTS),
        rejected=tuple(_rejected(name, wrong, shapes) for wrong in entry.get("rejected", [])),
    )


def _shapes(inputs: Mapping[str, Table]) -> dict[str, tuple[int, ...]]:
    """The shape of every step and result, from the shapes of the inputs."""
    rows = inputs["q"].shape[:3]
    pairs = (*rows, inputs["k"].shape[2])
    shapes = dict.fromkeys((*STEPS, "weights"), pairs) | dict.fromkeys(("shift", "totals", "lse"), rows)
    return shapes | {"output": (*rows, inputs["v"].shape[3])}


def _tables(
    name: str, entry: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], order: tuple[str, ...]
) -> Mapping[str, Table]:
    found = {key: _table(name, key, entry[key]) for key in order if key in entry}
    for key, table in found.items():
        if table.shape != shapes[key]:
            raise MalformedExample(f"{name}: {key} has shape {table.shape}, expected {shapes[key]}")
    return MappingProxyType(found)


def _rejected(name: str, entry: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Rejected:
    keys = {"result", "value", "because"}
    _fields(name, "rejected", entry, keys, keys)
    if entry["result"] not in RESULTS:
        raise MalformedExample(f"{name}: rejected has result {entry['result']!r}, expected one of {RESULTS}")
    table = _tables(name, {entry["result"]: entry["value"]}, shapes, RESULTS)[entry["result"]]
    return Rejected(entry["result"], table, entry["because"])


def _option(name: str, key: str, value: Any, exact: Mapping[str, Table]) -> Any:
    if key in ("scale", "softcap"):
        return float(exact[key].values)
    if key in ("bias", "alibi_slopes", "head_scale", "rotary_cos", "rotary_sin"):
        return exact[key].values
    if key in ("is_causal", "rotary_interleaved") and isinstance(value, bool):
        return value
    if key == "causal_offset" and _is_integer(value):
        return value
    if (
        key in ("causal_offset", "kv_lengths", "tree_parents")
        and isinstance(value, list)
        and all(map(_is_integer, value))
    ):
        return np.array(value, np.int64)
    if key == "window" and _is_window(value):
        return tuple(None if side == OPEN else side for side in value)
    if key == "block_size" and isinstance(value, list) and all(map(_is_integer, value)):
        return tuple(value)
    if key in ("mask", "block_mask"):
        array = np.array(value) if _is_regular(value) else None
        if array is not None and array.dtype == np.bool_:
            return array
    raise MalformedExample(f"{name}: option {key} cannot be {value!r}")


def _table(name: str, key: str, value: Any, rank: int | None = None) -> Table:
    """Nested lists of numbers, one number, or ``{shape = […]}`` for an array without elements."""
    if isinstance(value, dict):
        shape = tuple(value["shape"]) if set(value) == {"shape"} else ()
        if 0 not in shape:
            raise MalformedExample(f"{name}: {key} may give a shape only for an array without elements")
        texts = np.empty(shape, object)
    elif _is_regular(value):
        texts = np.array(value, object)
    else:
        raise MalformedExample(f"{name}: {key} has lists of different lengths")
    if rank is not None and texts.ndim != rank:
        raise MalformedExample(f"{name}: {key} has {texts.ndim} axes, expected {rank}")
    exact = np.empty(texts.shape, object)
    values, rounding = np.empty(texts.shape), np.empty(texts.shape)
    for index in np.ndindex(texts.shape):
        text: Any = texts[index]
        number = _number(name, key, text)
        texts[index], exact[index], values[index] = str(text), number, float(number)
        rounding[index] = half_unit(text)
    return Table(texts, exact, values, rounding)


def _number(name: str, key: str, text: Any) -> Exact:
    try:
        return parse(text)
    except NotExact as error:
        raise MalformedExample(f"{name}: {key}: {error}") from None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_window(value: Any) -> bool:
    sides = value if isinstance(value, list) else []
    return len(sides) == 2 and all(side == OPEN or _is_integer(side) for side in sides)


def _is_regular(value: Any) -> bool:
    """Whether nested lists have the same shape everywhere."""
    if not isinstance(value, list):
        return True
    if not all(_is_regular(part) for part in value):
        return False
    return len({np.shape(np.array(part, object)) for part in value}) <= 1


def _fields(name: str, where: str, entry: Any, required: set[str], known: set[str]) -> None:
    prefix = f"{name}: {where}".rstrip(": ")
    if not isinstance(entry, dict):
        raise MalformedExample(f"{prefix} must be a table")
    if missing := required - set(entry):
        raise MalformedExample(f"{prefix} lacks {', '.join(sorted(missing))}")
    if unknown := set(entry) - known:
        raise MalformedExample(f"{prefix} has unknown fields: {', '.join(sorted(unknown))}")
