"""Merging of partial results, split into steps that are all correct, for faults to override."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Model
from attention_conformance.impls.numpy.parts import working_dtype


@dataclass(frozen=True)
class Merge:
    """One call: outputs (P, B, H, S, Dv) and lses (P, B, H, S) unchanged, and the working dtype."""

    outputs: Array
    lses: Array
    work: type[np.floating[Any]]


class Merging(Model):
    """The steps of merge, each correct; half precision is computed in float32."""

    operator: ClassVar[str] = "merge"

    def __call__(self, outputs: Array, lses: Array) -> tuple[Array, Array]:
        """The output (B, H, S, Dv) and lse (B, H, S)."""
        x = Merge(outputs, lses, working_dtype(outputs.dtype))
        self.check(x)
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            outputs, lses = self.outputs(x), self.lses(x)
            largest = self.largest(x, lses)
            powers = self.powers(x, lses, largest)
            total = self.total(x, powers)
            weights = self.weights(x, powers, total)
            lse = self.lse(x, lses, largest, total)
            return self.stored(x, self.output(x, weights, outputs)), self.stored_lse(x, lse)

    def check(self, x: Merge) -> None:
        """MERGE-15: refuse inputs that do not fit together."""
        if x.outputs.ndim != 5 or x.lses.shape != x.outputs.shape[:-1]:
            raise ValueError(f"outputs {x.outputs.shape} and lses {x.lses.shape} do not fit together")

    def outputs(self, x: Merge) -> Array:
        """MERGE-6, MERGE-7: the outputs, 0 where a part has no key."""
        return np.where(np.isneginf(x.lses)[..., None], x.work(0), x.outputs.astype(x.work))

    def lses(self, x: Merge) -> Array:
        """The log-sum-exps to work with."""
        return x.lses.astype(np.float64 if x.work is np.float64 else np.float32)

    def largest(self, x: Merge, lses: Array) -> Array:
        """Value that is subtracted from log-sum-exps before exp, (B, H, S); 0 where no part has a key."""
        largest = lses.max(axis=0)
        return np.where(np.isneginf(largest), lses.dtype.type(0), largest)

    def powers(self, x: Merge, lses: Array, largest: Array) -> Array:
        """Powers of the parts, relative to the largest log-sum-exp, (P, B, H, S)."""
        return np.exp(lses - largest)

    def total(self, x: Merge, powers: Array) -> Array:
        """The sum of the powers over parts, (B, H, S)."""
        return powers.sum(axis=0)

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        """MERGE-2: the share of each part; 0 where there is no key."""
        return np.where(total == 0, total.dtype.type(0), powers / np.where(total == 0, 1, total))

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        """MERGE-2: the weighted sum, in the working dtype."""
        return (weights[..., None] * outputs).sum(axis=0)

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        """MERGE-3, MERGE-8: the lse of all parts; −inf where no part has a key."""
        return np.where(total == 0, -np.inf, largest + np.log(total)).astype(lses.dtype)

    def stored(self, x: Merge, output: Array) -> Array:
        """MERGE-13: the output as it is returned."""
        return output.astype(x.outputs.dtype)

    def stored_lse(self, x: Merge, lse: Array) -> Array:
        """MERGE-13: the lse as it is returned."""
        return lse
