"""A case of sdpa: one named input with its options and what is expected of it, made from its own seed.

Cases are chosen, not multiplied.  Each says in its docstring sentence what it would reveal.  Shapes come from a
small palette, because compilers and exporters pay for every new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from conformance import bounds, reference
from conformance.cases.anycase import ALL_DTYPES, FLOAT32, HALVES, NUMPY_DTYPES, AnyCase, Blame, arguments_of
from conformance.cases.data import SMALL, Shape, normal
from conformance.inputs import Inputs
from conformance.reference import Expected
from impls.contract import Profile
from impls.operators import OPERATORS

__all__ = ["ALL_DTYPES", "FLOAT32", "HALVES", "NUMPY_DTYPES", "Case", "Inputs", "bound_of", "case", "reference_of"]

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

    def make_inputs(self, dtype: str) -> Inputs:
        """The inputs in a dtype."""
        (q, k, v), keywords = arguments_of(self, self.data or normal(1.0), dtype)
        if self.past is not None:
            keywords |= {"past_key": k[:, :, : self.past].copy(), "past_value": v[:, :, : self.past].copy()}
            k, v = k[:, :, self.past :].copy(), v[:, :, self.past :].copy()
        inputs = Inputs(q, k, v, keywords)
        return inputs if self.edit is None else self.edit(inputs)

    def make_expected(self, inputs: Inputs) -> Expected:
        """What the reference says of inputs.  Raises InvalidInput for invalid ones."""
        return reference_of(inputs)

    def make_bound(self, inputs: Inputs, expected: Expected, dtype: str, profile: Profile) -> bounds.Bound:
        """The error bound for inputs under a profile."""
        return bound_of(inputs, expected, dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return _AXES[result]

    def __hash__(self) -> int:
        return hash(self.name)


def reference_of(inputs: Inputs) -> Expected:
    """What the reference says of inputs.  Raises InvalidInput for invalid ones."""
    options = {name: value for name, value in inputs.keywords.items() if not name.startswith("return_")}
    return reference.sdpa(inputs.q, inputs.k, inputs.v, **options)


def bound_of(inputs: Inputs, expected: Expected, dtype: str, profile: Profile) -> bounds.Bound:
    """The error bound for inputs, of which ``expected`` is the reference, under a profile."""
    keywords = inputs.keywords
    options = bounds.Options(**{n: keywords[n] for n in ("scale", "softcap", "bias") if n in keywords})
    return bounds.bound(expected, options, dtype, profile)


def case(name: str, clauses: str, why: str, shape: Shape = SMALL, **rest: Any) -> Case:
    """A case from its clauses as one text and its options as keywords."""
    fields = {key: rest.pop(key) for key in tuple(rest) if key in Case.__dataclass_fields__}
    return Case(name, tuple(clauses.split()), why, shape, options=rest, **fields)
