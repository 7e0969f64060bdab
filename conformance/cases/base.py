"""A case: one named input with its options and what is expected of it, made from its own seed.

Cases are chosen, not multiplied.  Each says in its docstring sentence what it would reveal.  Shapes come from a
small palette, because compilers and exporters pay for every new one.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from conformance import bounds, reference
from conformance.cases.data import SMALL, Data, Shape, normal
from conformance.reference import Expected
from impls.contract import Profile

NUMPY_DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

FLOAT32 = ("float32",)
HALVES = ("float16", "bfloat16")
ALL_DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Inputs:
    """What an implementation is called with, and what the reference is: they differ only for poisoned inputs."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One named input; ``clauses[0]`` is the clause that is broken if the case fails by value."""

    name: str
    clauses: tuple[str, ...]
    #: A sentence: what this input is, and which mistake it would show.
    why: str
    shape: Shape = SMALL
    data: Data | None = None
    #: Keywords as in the contract; a Maker is called with the case's own random numbers.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Changes the inputs after they are made (poison, mismatches).
    edit: Callable[[Inputs], Inputs] | None = None
    dtypes: tuple[str, ...] = FLOAT32
    memory: str = "contiguous"
    repeats: int = 1
    #: The input must be refused with an exception.
    invalid: bool = False
    #: The whole output is expected to be zero, or empty.
    zeros: bool = False
    #: A case to run before this one on the same prepared implementation.
    after: str = ""
    #: Why the case stays although no fault and no known deviation needs it (conformance/faults/kills.py).
    stays: str = ""

    @property
    def keywords(self) -> frozenset[str]:
        """The features that an implementation needs for this case."""
        return frozenset(self.options)

    @property
    def size(self) -> tuple[int, str]:
        """What orders cases from small to large: elements of q, k and v, then the name."""
        s = self.shape
        return s.b * (s.hq * s.sq * s.d + s.hkv * s.sk * (s.d + s.dv)), self.name

    def inputs(self, dtype: str) -> Inputs:
        """The inputs in a dtype, always the same ones."""
        return _inputs(self, dtype)

    def expected(self, dtype: str) -> Expected:
        """What the reference says of the inputs.  Raises InvalidInput for invalid ones."""
        return _expected(self, dtype)

    def bound(self, dtype: str, profile: Profile) -> bounds.Bound:
        """The error bound for the inputs under a profile."""
        return _bound(self, dtype, profile)

    def results(self) -> tuple[str, ...]:
        """Names of the results that are asked for, in order."""
        return ("output", *(name for name in ("weights", "lse") if self.options.get(f"return_{name}")))

    def __hash__(self) -> int:
        return hash(self.name)


def make_inputs(case: Case, dtype: str) -> Inputs:
    """The inputs of a case in a dtype, made anew: random problems are many, and are not kept as cases are."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    target = NUMPY_DTYPES[dtype]
    with np.errstate(all="ignore"):
        q, k, v = (a.astype(target) for a in (case.data or normal(1.0))(rng, case.shape))
        keywords = {
            name: value(rng, case.shape, target) if callable(value) else value for name, value in case.options.items()
        }
    inputs = Inputs(q, k, v, keywords)
    return inputs if case.edit is None else case.edit(inputs)


def reference_of(inputs: Inputs) -> Expected:
    """What the reference says of inputs.  Raises InvalidInput for invalid ones."""
    options = {name: value for name, value in inputs.keywords.items() if not name.startswith("return_")}
    return reference.sdpa(inputs.q, inputs.k, inputs.v, **options)


def bound_of(inputs: Inputs, expected: Expected, dtype: str, profile: Profile) -> bounds.Bound:
    """The error bound for inputs, of which ``expected`` is the reference, under a profile."""
    keywords = inputs.keywords
    options = bounds.Options(**{n: keywords[n] for n in ("scale", "softcap", "bias") if n in keywords})
    return bounds.bound(expected, options, dtype, profile)


_inputs = functools.cache(make_inputs)


@functools.cache
def _expected(case: Case, dtype: str) -> Expected:
    return reference_of(case.inputs(dtype))


@functools.cache
def _bound(case: Case, dtype: str, profile: Profile) -> bounds.Bound:
    return bound_of(case.inputs(dtype), case.expected(dtype), dtype, profile)


def case(name: str, clauses: str, why: str, shape: Shape = SMALL, **rest: Any) -> Case:
    """A case from its clauses as one text and its options as keywords."""
    fields = {key: rest.pop(key) for key in tuple(rest) if key in Case.__dataclass_fields__}
    return Case(name, tuple(clauses.split()), why, shape, options=rest, **fields)
