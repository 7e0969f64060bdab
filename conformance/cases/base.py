"""A case of sdpa: one named input with its options and what is expected of it, made from its own seed.

Cases are chosen, not multiplied.  Each says in its docstring sentence what it would reveal.  Shapes come from a
small palette, because compilers and exporters pay for every new one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from conformance import bounds, reference
from conformance.cases.anycase import ALL_DTYPES, FLOAT32, HALVES, NUMPY_DTYPES, AnyCase, Blame, arguments_of
from conformance.cases.data import SMALL, Shape, normal
from conformance.inputs import Inputs
from conformance.reference import Expected
from impls.contract import Profile
from impls.operators import OPERATORS

__all__ = ["ALL_DTYPES", "FLOAT32", "HALVES", "NUMPY_DTYPES", "Case", "Inputs", "bound_of", "case", "make_inputs"]

_AXES = {
    "output": ("batch", "head", "row", "column"),
    "weights": ("batch", "head", "row", "key"),
    "lse": ("batch", "head", "row"),
    "present_key": ("batch", "head", "key", "column"),
    "present_value": ("batch", "head", "key", "column"),
}


@dataclass(frozen=True)
class Case(AnyCase):
    """A case of sdpa."""

    operator: ClassVar[str] = "sdpa"
    blame: ClassVar[Blame] = Blame(
        "SDPA-1",
        accuracy="SDPA-25",
        value="SDPA-16",
        of_result={"weights": "SDPA-18", "lse": "SDPA-19", "present_key": "DEC-3", "present_value": "DEC-3"},
    )
    shape: Shape = SMALL
    #: How many of the Sk keys and values of ``shape`` are past ones; None for a call without a past.
    past: int | None = None

    @property
    def keywords(self) -> frozenset[str]:
        """The features that an implementation needs for this case."""
        return super().keywords | (frozenset() if self.past is None else {"past_key", "past_value"})

    def results(self) -> tuple[str, ...]:
        """Names of the results that are asked for, in order."""
        asked = {name for name, value in self.options.items() if value is not False}
        return OPERATORS[self.operator].returned(asked | (self.keywords & {"past_key"}))

    def inputs(self, dtype: str) -> Inputs:
        """The inputs in a dtype, always the same ones."""
        return _inputs(self, dtype)

    def expected(self, dtype: str) -> Expected:
        """What the reference says of the inputs.  Raises InvalidInput for invalid ones."""
        return _expected(self, dtype)

    def bound(self, dtype: str, profile: Profile) -> bounds.Bound:
        """The error bound for the inputs under a profile."""
        return _bound(self, dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return _AXES[result]

    def __hash__(self) -> int:
        return hash(self.name)


def make_inputs(case: Case, dtype: str) -> Inputs:
    """The inputs of a case in a dtype, made anew: random problems are many, and are not kept as cases are."""
    (q, k, v), keywords = arguments_of(case, case.data or normal(1.0), dtype)
    if case.past is not None:
        keywords |= {"past_key": k[:, :, : case.past].copy(), "past_value": v[:, :, : case.past].copy()}
        k, v = k[:, :, case.past :].copy(), v[:, :, case.past :].copy()
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
