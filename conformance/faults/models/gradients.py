"""Backward pass of attention, split into steps that are all correct, over the forward pass of sdpa.py.

The method is that of flash kernels (Dao et al. 2022, appendix B.2): the weights are recomputed from the scores and the
log-sum-exp of the forward pass, and δ is computed from its output.  A step that the recomputation forgets is thus a
mistake of the backward pass only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_inputs


class Backward(Model):
    """The steps of sdpa_grad, each correct; ``x`` is the call, ``found`` the forward pass, ``g`` the given gradient.

    Score arrays are (B, Hq, Sq, Sk); k and v of ``found`` have one head per query head.
    """

    operator: ClassVar[str] = "sdpa_grad"

    def __init__(self) -> None:
        self.inner = Attention()

    def __call__(self, q: Array, k: Array, v: Array, grad_output: Array, **keywords: Any) -> Any:
        """The gradients of q, k, v and, where it is given, of bias; half precision is computed in float32."""
        x = Inputs(q, k, v, **keywords)
        g = self.checked(x, grad_output)
        x = replace(x, work=working_dtype(x.dtype))
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            return self.stored(x, self.gradients(x, g.astype(x.work)))

    def checked(self, x: Inputs, g: Array) -> Array:
        """GRAD-12: the gradient to compute with; inputs that do not fit together are refused."""
        check_inputs(x.q, x.k, x.v, x.mask, x.bias)
        if g.shape != (*x.q.shape[:3], x.v.shape[3]) or g.dtype != x.q.dtype:
            raise ValueError(f"grad_output of shape {g.shape} and dtype {g.dtype} does not fit")
        return g

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        """All gradients, in the order of GRAD-1, in the working dtype."""
        found = self.inner.attend(x)
        weights = self.weights(x, found)
        d_scores = self.d_scores(x, weights, self.d_weights(x, found, g), self.delta(x, found, g))
        d_raw = d_scores * self.slope(x, found)
        grads = [self.grad_q(x, found, d_raw), self.grad_k(x, found, d_raw), self.grad_v(x, weights, g)]
        return grads if x.bias is None else [*grads, self.grad_bias(x, d_scores, d_raw)]

    # Weights and scores.

    def weights(self, x: Inputs, found: Expected) -> Array:
        """SDPA-14: the weights, recomputed from the lse of the forward pass."""
        lse = np.where(np.isneginf(found.lse), x.work(0), found.lse)[..., None]
        return np.where(self.allowed(x, found), np.exp(self.final(x, found) - lse), x.work(0))

    def allowed(self, x: Inputs, found: Expected) -> Array:
        """GRAD-7: the keys that contribute."""
        return found.allowed

    def final(self, x: Inputs, found: Expected) -> Array:
        """The final scores, including those of keys that are not allowed."""
        return self.inner.added(x, self.inner.capped(x, found.raw))

    def d_weights(self, x: Inputs, found: Expected, g: Array) -> Array:
        """GRAD-3: dP."""
        return g @ found.v.swapaxes(2, 3)

    def delta(self, x: Inputs, found: Expected, g: Array) -> Array:
        """GRAD-3: Σ_m p[m] · dP[m] as g · output, (B, Hq, Sq, 1)."""
        return np.sum(g * found.output, axis=3, keepdims=True)

    def d_scores(self, x: Inputs, weights: Array, d_weights: Array, delta: Array) -> Array:
        """GRAD-3: dS."""
        return weights * (d_weights - delta)

    def slope(self, x: Inputs, found: Expected) -> Array:
        """GRAD-4: the slope of softcap at the scaled score."""
        return self.slope_at(x, found.raw)

    def slope_at(self, x: Inputs, s: Array) -> Array:
        """1 − tanh²(s / c); 1 without softcap."""
        return np.ones_like(s) if x.softcap is None else 1 - np.tanh(s / x.work(x.softcap)) ** 2

    # Gradients.

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        """GRAD-4: the gradient of q."""
        return (d_raw @ found.k) * x.work(self.inner.scale(x))

    def grad_k(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        """GRAD-4, GRAD-6: the gradient of k."""
        return self.over_groups(x, d_raw.swapaxes(2, 3) @ found.q) * x.work(self.inner.scale(x))

    def grad_v(self, x: Inputs, weights: Array, g: Array) -> Array:
        """GRAD-2, GRAD-6: the gradient of v."""
        return self.over_groups(x, weights.swapaxes(2, 3) @ g)

    def over_groups(self, x: Inputs, array: Array) -> Array:
        """GRAD-6: (B, Hq, Sk, X) to (B, Hkv, Sk, X)."""
        return self.of_group(array.reshape(len(array), x.k.shape[1], x.group, *array.shape[2:]))

    def of_group(self, grouped: Array) -> Array:
        """GRAD-6: the sum over axis 2, the query heads of a key head."""
        return grouped.sum(axis=2)

    def grad_bias(self, x: Inputs, d_scores: Array, d_raw: Array) -> Array:
        """GRAD-5: the gradient of bias."""
        shape = () if x.bias is None else x.bias.shape
        aligned = (1,) * (4 - len(shape)) + shape
        for axis in (axis for axis in range(4) if aligned[axis] == 1):
            d_scores = self.along(d_scores, axis, missing=axis < 4 - len(shape))
        return d_scores.reshape(shape)

    def along(self, d_scores: Array, axis: int, missing: bool) -> Array:
        """GRAD-5: the sum over an axis of length 1 in bias, or that bias lacks (``missing``)."""
        return d_scores.sum(axis=axis, keepdims=True)

    # What is returned.

    def stored(self, x: Inputs, grads: list[Array]) -> tuple[Array, ...]:
        """GRAD-10: the gradients as they are returned."""
        return tuple(grad.astype(x.dtype) for grad in grads)
