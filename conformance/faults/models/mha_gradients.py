"""Backward pass of the multi-head layer in correct steps, over the layer of mha.py and the heads of gradients.py.

A fault gets a step of the chain rule around the heads wrong, or uses a wrong backward pass in the heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.mha import Layer, LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Model
from attention_conformance.conformance.spec.mha import LayerExpected
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.operators import MHA_GRAD

#: Gradients by the names of the arrays that they belong to.
Gradients = dict[str, Array]


class LayerBackward(Model):
    """The steps of mha_grad, each correct; ``x`` is the call, ``found`` the forward pass.

    Arrays between the steps are batch-first, (B, S, …); ``name`` is the name of a projection: q, k, v or o.
    """

    operator: ClassVar[str] = "mha_grad"
    #: The backward pass of every head.
    backward: ClassVar[type[Backward]] = Backward

    def __init__(self) -> None:
        self.layer, self.inner = Layer(), self.backward()

    def __call__(
        self, x_q: Array, w_q: Array, w_k: Array, w_v: Array, grad_output: Array, **keywords: Any
    ) -> tuple[Array, ...]:
        """The gradients in the order of GRAD-16; half precision is computed in float32."""
        x = LayerCall(x_q, w_q, w_k, w_v, **keywords)
        g = self.checked(x, grad_output)
        x = replace(x, work=working_dtype(x.dtype))
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            grads = self.gradients(x, self.layer.batch_first(x, g))
        return tuple(self.stored(x, array) for array in self.ordered(x, grads))

    def checked(self, x: LayerCall, g: Array) -> Array:
        """GRAD-27: the gradient to compute with; inputs that do not fit together are refused."""
        self.layer.check(x)
        if g.shape != self.shape(x) or g.dtype != x.dtype:
            raise ValueError(f"grad_output of shape {g.shape} and dtype {g.dtype} does not fit")
        return g

    def shape(self, x: LayerCall) -> tuple[int, ...]:
        """Shape of the output."""
        return (*x.x_q.shape[:-1], (x.w_v if x.w_o is None else x.w_o).shape[1])

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        """All gradients, by name, in the working dtype."""
        queries, keys = self.layer.inputs(x)
        found = self.layer.layer(x, queries, keys)
        d = self.of_heads(x, found, self.d_combined(x, dy))
        grads = {
            f"w_{name}": self.of_weight(x, name, a, d[name])
            for name, a in zip("qkv", (queries, keys, keys), strict=True)
        }
        grads |= {
            f"b_{name}": self.of_bias(x, name, array) for name, array in (*d.items(), ("o", dy)) if name in "qkvo"
        }
        if x.w_o is not None:
            grads["w_o"] = self.of_weight(x, "o", self.combined(x, found), dy)
        if x.bias is not None:
            grads["bias"] = d["bias"]
        return grads | {name: self.layer.returned(x, array) for name, array in self.of_inputs(x, d).items()}

    # Through the output projection and the heads.

    def d_combined(self, x: LayerCall, dy: Array) -> Array:
        """GRAD-21: dC."""
        return dy if x.w_o is None else self.through(x, "o", dy)

    def combined(self, x: LayerCall, found: LayerExpected) -> Array:
        """GRAD-21: the input of w_o."""
        return found.combined

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        """GRAD-20: dQ, dK and dV under the names q, k and v, and the gradient of bias."""
        q, k, v = (self.layer.split(x, "qkv"[at], p.result) for at, p in enumerate((found.q, found.k, found.v)))
        grads = self.inner.gradients(self.layer.inputs_of_heads(x, q, k, v), self.split(x, d))
        named = {name: self.combine(x, name, grad) for name, grad in zip("qkv", grads, strict=False)}
        return named if x.bias is None else {**named, "bias": grads[3]}

    def split(self, x: LayerCall, d: Array) -> Array:
        """GRAD-20: dC (B, S, H·Dv) to (B, H, S, Dv)."""
        return self.layer.split(x, "o", d)

    def combine(self, x: LayerCall, name: str, d: Array) -> Array:
        """GRAD-20: dQ, dK or dV (B, H, S, D) to (B, S, H·D)."""
        return self.layer.combine(x, d)

    # Projections.

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        """GRAD-17, GRAD-21: the gradient of the weight that multiplies ``array``, from that of the product."""
        return self.over_samples(x, name, array.swapaxes(1, 2) @ d)

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        """GRAD-18, GRAD-21: the gradient of a bias, the sum over rows."""
        return self.over_samples(x, name, d.sum(axis=1))

    def over_samples(self, x: LayerCall, name: str, parts: Array) -> Array:
        """GRAD-17, GRAD-18: the sum over samples, the first axis."""
        return parts.sum(axis=0)

    def through(self, x: LayerCall, name: str, d: Array) -> Array:
        """GRAD-19, GRAD-21: the gradient of the input of a weight."""
        return d @ self.layer.weight(x, name).astype(x.work).T

    def of_inputs(self, x: LayerCall, d: Gradients) -> Gradients:
        """GRAD-19: the gradients of x_q and x_kv."""
        parts = {name: self.through(x, name, d[name]) for name in "qkv"}
        if x.x_kv is None:
            return {"x_q": self.added(x, parts)}
        return {"x_q": parts["q"], "x_kv": parts["k"] + parts["v"]}

    def added(self, x: LayerCall, parts: Gradients) -> Array:
        """GRAD-19: in self-attention, the sum of the parts through q, k and v."""
        return parts["q"] + parts["k"] + parts["v"]

    # What is returned.

    def ordered(self, x: LayerCall, grads: Gradients) -> list[Array]:
        """GRAD-16: the gradients of the given arrays, in their order."""
        names = MHA_GRAD.returned({name for name in MHA_GRAD.arrays if getattr(x, name) is not None})
        return [grads[name.removeprefix("grad_")] for name in names]

    def stored(self, x: LayerCall, grad: Array) -> Array:
        """GRAD-10: a gradient as it is returned."""
        return grad.astype(x.dtype)
