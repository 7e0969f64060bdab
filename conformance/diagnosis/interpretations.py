"""Interpretations of a call: what attention gives if its arguments, or its output, are taken for something else.

Right attention behind a wrong adapter computes exactly this.  An interpretation is compared like a result, with the
error bound for the inputs as they are read, so that a near miss is not claimed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.conformance.cases import Case
from attention_conformance.conformance.cases.base import bound_of, reference_of
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.impls.contract import Layout, Profile

ARGUMENTS = ("q", "k", "v")
AXES = "BHSD"

Form = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Interpretation:
    """One thing taken for another, and all else right."""

    #: What to change in the adapter.
    text: str
    #: Arguments that are used as q, k and v.
    order: tuple[str, ...] = ARGUMENTS
    #: Heads are taken for the sequence, and the sequence for heads.
    swapped: bool = False
    #: Change of the output, in (B, H, S, D), before it is returned; None for none.
    form: Form | None = None

    def fits(self, output: np.ndarray, case: Case, dtype: str, profile: Profile) -> bool:
        """Whether this interpretation gives the output of a case."""
        try:
            read = self._read(case.inputs(dtype))
            expected = reference_of(read)
        except InvalidInput:
            return False
        limit = bound_of(read, expected, dtype, profile)
        wanted, bound = self._reshaped(expected.output), self._reshaped(limit.output)
        return output.shape == wanted.shape and compare("output", output, wanted, bound, dtype).ok

    def refuses(self, case: Case, dtype: str) -> bool:
        """Whether, in this interpretation, the inputs of a valid case do not fit together."""
        try:
            reference_of(self._read(case.inputs(dtype)))
        except InvalidInput:
            return True
        return False

    def _read(self, inputs: Inputs) -> Inputs:
        q, k, v = (getattr(inputs, name) for name in self.order)
        if self.swapped:
            q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
        return replace(inputs, q=q, k=k, v=v)

    def _reshaped(self, output: np.ndarray) -> np.ndarray:
        output = output.swapaxes(1, 2) if self.swapped else output
        return output if self.form is None else self.form(output)


def interpretations(layout: Layout) -> Iterator[Interpretation]:
    """Every interpretation that is distinguished, for a function that declares a layout."""
    if layout is Layout.BHSD:
        yield Interpretation("it computes in (B, S, H, D): set attention.layout = 'BSHD'", swapped=True)
    else:
        yield Interpretation("it computes in (B, H, S, D): remove attention.layout = 'BSHD'", swapped=True)
    for order in itertools.permutations(ARGUMENTS):
        if order != ARGUMENTS:
            yield Interpretation(f"it computes attention({', '.join(order)}): pass q, k, v in this order", order=order)
    yield from _forms(layout)


def _forms(layout: Layout) -> Iterator[Interpretation]:
    """The right output, with its axes in another order, merged, or without the batch."""
    own = "BSHD" if layout is Layout.BSHD else AXES
    for order in itertools.permutations(range(4)):
        if order != (0, 1, 2, 3):
            # The worker has undone the declared layout; this is what the function itself returned.
            returned = [AXES[axis] for axis in order]
            if layout is Layout.BSHD:
                returned[1], returned[2] = returned[2], returned[1]
            text = f"its output is ({', '.join(returned)}): return ({', '.join(own)})"
            yield Interpretation(text, form=functools.partial(np.transpose, axes=order))
    wanted = f"return ({', '.join(own)})"
    # First, because dropping a batch of one is also merging it with the heads.
    dropped = _batch_dropped if layout is Layout.BHSD else _batch_dropped_inside
    yield Interpretation(f"its output has no batch axis: {wanted}", form=dropped)
    yield Interpretation(f"its output is (B, S, H·D), the heads merged: {wanted}", form=_heads_merged)
    yield Interpretation(f"its output is (S, B, H·D), the heads merged: {wanted}", form=_sequence_first)
    yield Interpretation(f"its output is (B·H, S, D), batch and heads merged: {wanted}", form=_batch_merged)


def _heads_merged(output: np.ndarray) -> np.ndarray:
    batch, heads, rows, width = output.shape
    return output.transpose(0, 2, 1, 3).reshape(batch, rows, heads * width)


def _sequence_first(output: np.ndarray) -> np.ndarray:
    return _heads_merged(output).swapaxes(0, 1)


def _batch_merged(output: np.ndarray) -> np.ndarray:
    batch, heads, rows, width = output.shape
    return output.reshape(batch * heads, rows, width)


def _batch_dropped(output: np.ndarray) -> np.ndarray:
    return output[0] if len(output) else output


def _batch_dropped_inside(output: np.ndarray) -> np.ndarray:
    """The batch dropped in (B, S, H, D), for a function that declares it: rank 3 is passed on unchanged."""
    return _batch_dropped(output).swapaxes(-3, -2)
