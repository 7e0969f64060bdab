"""Backward pass of a merge, split into steps that are all correct, for faults to override."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Model
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_merge_gradients


@dataclass(frozen=True)
class MergeGrad:
    """One call: its arrays unchanged, and the working dtype."""

    outputs: Array
    lses: Array
    grad_output: Array
    grad_lse: Array | None
    work: type[np.floating[Any]]


class MergeBackward(Model):
    """The steps of merge_grad, each correct; half precision is computed in float32."""

    operator: ClassVar[str] = "merge_grad"

    def __call__(
        self, outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None
    ) -> tuple[Array, Array]:
        """The gradients of outputs (P, B, H, S, Dv) and of lses (P, B, H, S)."""
        x = MergeGrad(outputs, lses, grad_output, grad_lse, working_dtype(outputs.dtype))
        self.check(x)
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            parts, g, h = self.outputs(x), self.grad_output(x), self.grad_lse(x)
            weights = self.weights(x, self.lses(x))
            pulls = self.pulls(x, g, parts, self.merged(x, weights, parts))
            grad_outputs = self.of_outputs(x, weights, g)
            grad_lses = self.of_lses(x, weights, pulls, h)
            return self.stored(x, grad_outputs), self.stored_lses(x, grad_lses)

    def check(self, x: MergeGrad) -> None:
        """MERGE-15, GRAD-42: refuse inputs that do not fit together."""
        check_merge_gradients(x.outputs, x.lses, x.grad_output, x.grad_lse)

    def outputs(self, x: MergeGrad) -> Array:
        """GRAD-38, GRAD-43: the outputs, 0 where a part has no key."""
        return np.where(np.isneginf(x.lses)[..., None], x.work(0), x.outputs.astype(x.work))

    def lses(self, x: MergeGrad) -> Array:
        """The log-sum-exps to work with."""
        return x.lses.astype(x.work)

    def grad_output(self, x: MergeGrad) -> Array:
        """The given gradient of the output, (B, H, S, Dv)."""
        return x.grad_output.astype(x.work)

    def grad_lse(self, x: MergeGrad) -> Array:
        """The given gradient of lse, (B, H, S); zeros where none was given."""
        return np.zeros(x.lses.shape[1:], x.work) if x.grad_lse is None else x.grad_lse.astype(x.work)

    def largest(self, x: MergeGrad, lses: Array) -> Array:
        """Value that is subtracted from log-sum-exps before exp, (B, H, S); 0 where no part has a key."""
        largest = lses.max(axis=0)
        return np.where(np.isneginf(largest), lses.dtype.type(0), largest)

    def weights(self, x: MergeGrad, lses: Array) -> Array:
        """MERGE-2: the share of each part, (P, B, H, S); 0 where there is no key."""
        powers = np.exp(lses - self.largest(x, lses))
        total = powers.sum(axis=0)
        return np.where(total == 0, total.dtype.type(0), powers / np.where(total == 0, 1, total))

    def merged(self, x: MergeGrad, weights: Array, outputs: Array) -> Array:
        """The merged output, (B, H, S, Dv), in the working dtype."""
        return (weights[..., None] * outputs).sum(axis=0)

    def pulls(self, x: MergeGrad, g: Array, outputs: Array, merged: Array) -> Array:
        """Change of the loss as the weight of each part grows, (P, B, H, S)."""
        return (g * (outputs - merged)).sum(axis=-1)

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        """GRAD-37, GRAD-38: the gradient of outputs; 0 where a part has no key."""
        return np.where(np.isneginf(x.lses)[..., None], x.work(0), weights[..., None] * g)

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        """GRAD-37, GRAD-38: the gradient of lses; 0 where a part has no key."""
        return np.where(np.isneginf(x.lses), x.work(0), weights * (pulls + h))

    def stored(self, x: MergeGrad, grad_outputs: Array) -> Array:
        """GRAD-36: the gradient of outputs as it is returned."""
        return grad_outputs.astype(x.outputs.dtype)

    def stored_lses(self, x: MergeGrad, grad_lses: Array) -> Array:
        """GRAD-36: the gradient of lses as it is returned."""
        return grad_lses
