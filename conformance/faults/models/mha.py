"""Multi-head layer and sub-layer, split into steps that are all correct, around the attention of sdpa.py.

A fault of a layer either gets one of its steps wrong or uses a wrong attention.  ``attend`` returns the same records as
the reference of the layers, so that the error bounds of layers apply to the results of a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.spec.mha import Form, LayerExpected, Norm, Projection, SublayerExpected
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_layer


@dataclass(frozen=True)
class LayerCall:
    """One call of mha or sublayer: its arrays unchanged, options with their defaults, and the working dtype."""

    x_q: Array
    w_q: Array
    w_k: Array
    w_v: Array
    heads: int
    x_kv: Array | None = None
    w_o: Array | None = None
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    mask: Array | None = None
    bias: Array | None = None
    is_causal: bool = False
    kv_lengths: Array | None = None
    scale: float | None = None
    sequence_first: bool = False
    return_weights: bool = False
    average_weights: bool = False
    gamma: Array | None = None
    beta: Array | None = None
    epsilon: float = 0.0
    pre_norm: bool = False
    work: type[np.floating[Any]] = np.float64

    @property
    def dtype(self) -> np.dtype:
        """The storage dtype."""
        return self.x_q.dtype

    @property
    def unbatched(self) -> bool:
        """MHA-16: whether the inputs are (S, E)."""
        return self.x_q.ndim == 2


class Layer(Model):
    """The steps of mha, each correct; ``x`` is the call, and arrays between the steps are batch-first, (B, S, …)."""

    operator: ClassVar[str] = "mha"
    #: The attention of every head.
    attention: ClassVar[type[Attention]] = Attention

    def __init__(self) -> None:
        self.inner = self.attention()

    def __call__(self, x_q: Array, w_q: Array, w_k: Array, w_v: Array, **keywords: Any) -> Any:
        """The operator, called as a plug-in is; half precision is computed in float32."""
        x = LayerCall(x_q, w_q, w_k, w_v, **keywords)
        self.check(x)
        x = replace(x, work=working_dtype(x.dtype))
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            return self.results(x, self.attend(x))

    def check(self, x: LayerCall) -> None:
        """MHA-19 to MHA-21: refuse inputs that do not fit together."""
        names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "gamma", "beta")
        check_layer(x.heads, x.x_q, x.x_kv, **{name: getattr(x, name) for name in names})

    def attend(self, x: LayerCall) -> LayerExpected | SublayerExpected:
        """Every intermediate result, in the working dtype."""
        return self.layer(x, *self.inputs(x))

    def inputs(self, x: LayerCall) -> tuple[Array, Array]:
        """MHA-3, MHA-4: the input of the queries, and the input of the keys and values."""
        return self.batch_first(x, x.x_q), self.batch_first(x, x.x_q if x.x_kv is None else x.x_kv)

    def batch_first(self, x: LayerCall, array: Array) -> Array:
        """MHA-16, MHA-17: an input as (B, S, E), in the working dtype."""
        array = array.astype(x.work)
        if x.unbatched:
            return array[None]
        return array.swapaxes(0, 1) if x.sequence_first else array

    def layer(self, x: LayerCall, queries: Array, keys: Array) -> LayerExpected:
        """The layer on batch-first inputs."""
        q, k, v = self.projections(x, queries, keys)
        heads = self.heads(x, q.result, k.result, v.result)
        combined = self.combine(x, heads.output)
        out = self.out(x, combined)
        output = combined if out is None else out.result
        weights = self.weights(x, heads.weights)
        return LayerExpected(
            self.returned(x, output),
            weights[0] if x.unbatched else weights,
            *(q, k, v, heads, combined, out, self.form(x)),
            self_attention=x.x_kv is None,
        )

    # Projections.

    def projections(self, x: LayerCall, queries: Array, keys: Array) -> tuple[Projection, Projection, Projection]:
        """MHA-2: q from one input, k and v from the other."""
        return self.project(x, "q", queries), self.project(x, "k", keys), self.project(x, "v", keys)

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        """MHA-2, MHA-12: the projection ``name``: q, k, v or o."""
        w, b = self.weight(x, name).astype(x.work), self.bias(x, name)
        b = None if b is None else b.astype(x.work)
        product = self.product(x, array, w)
        return Projection(array, w, b, product, product if b is None else product + b)

    def product(self, x: LayerCall, array: Array, w: Array) -> Array:
        """The matrix product of a projection."""
        return array @ w

    def weight(self, x: LayerCall, name: str) -> Array:
        """The weight of a projection, (inputs, outputs)."""
        weight: Array = getattr(x, f"w_{name}")
        return weight

    def bias(self, x: LayerCall, name: str) -> Array | None:
        """The bias of a projection, (outputs,), or None."""
        bias: Array | None = getattr(x, f"b_{name}")
        return bias

    # Heads.

    def heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Expected:
        """MHA-6: sdpa in every head."""
        inputs = self.inputs_of_heads(x, *(self.split(x, name, a) for name, a in zip("qkv", (q, k, v), strict=True)))
        self.inner.check(inputs)
        return self.inner.attend(inputs)

    def inputs_of_heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Inputs:
        """Inputs of the inner attention; unbatched masks (H, Sq, Sk) broadcast unchanged."""
        bias = None if x.bias is None else x.bias.astype(x.work)
        masks = {"mask": x.mask, "bias": bias, "is_causal": x.is_causal, "kv_lengths": x.kv_lengths}
        return Inputs(q, k, v, **masks, scale=x.scale, work=x.work, stored=x.dtype)  # type: ignore[arg-type]

    def split(self, x: LayerCall, name: str, array: Array) -> Array:
        """MHA-5: (B, S, H·D) to (B, H, S, D)."""
        batch, length, width = array.shape
        return array.reshape(batch, length, x.heads, width // x.heads).swapaxes(1, 2)

    def combine(self, x: LayerCall, output: Array) -> Array:
        """MHA-11: (B, H, S, Dv) to (B, S, H·Dv)."""
        batch, heads, length, width = output.shape
        return output.swapaxes(1, 2).reshape(batch, length, heads * width)

    def out(self, x: LayerCall, combined: Array) -> Projection | None:
        """MHA-12: the output projection, or None without w_o."""
        return None if x.w_o is None else self.project(x, "o", combined)

    # What is returned.

    def weights(self, x: LayerCall, weights: Array) -> Array:
        """MHA-14, MHA-15: the weights of every head, or their average."""
        return weights.mean(axis=1) if x.average_weights else weights

    def returned(self, x: LayerCall, output: Array) -> Array:
        """MHA-16, MHA-17: the output (B, Sq, Eo) in the form that the call returns."""
        if x.unbatched:
            return output[0]
        return output.swapaxes(0, 1) if x.sequence_first else output

    def form(self, x: LayerCall) -> Form:
        """Form into which ``returned`` and ``weights`` bring results, for the error bound."""
        return Form(x.unbatched, x.sequence_first and not x.unbatched, x.average_weights)

    def results(self, x: LayerCall, found: LayerExpected | SublayerExpected) -> Any:
        """The output in the dtype of x_q, and the weights if they are requested (MHA-23)."""
        output = found.output.astype(x.dtype)
        if not x.return_weights or isinstance(found, SublayerExpected):
            return output
        return output, found.weights.astype(x.dtype)


class Sublayer(Layer):
    """The steps of sublayer: those of the layer, the residual sum, and layer normalisation."""

    operator: ClassVar[str] = "sublayer"

    def attend(self, x: LayerCall) -> SublayerExpected:
        queries, keys = self.inputs(x)
        if self.norm_first(x):
            norm = self.norm(x, queries)
            layer = self.layer(x, *self.normalised_inputs(x, norm, keys))
            residual = output = self.sum(x, queries, norm, self.added(x, layer))
        else:
            layer = self.layer(x, queries, keys)
            residual = self.sum(x, queries, None, self.added(x, layer))
            norm = self.norm(x, residual)
            output = norm.result
        return SublayerExpected(self.returned(x, output), layer, norm, residual, self.norm_first(x))

    def norm_first(self, x: LayerCall) -> bool:
        """SUB-1, SUB-2: whether the norm comes before the layer."""
        return x.pre_norm

    def normalised_inputs(self, x: LayerCall, norm: Norm, keys: Array) -> tuple[Array, Array]:
        """SUB-2: the layer's inputs in pre-norm; x_kv is not normalised."""
        return norm.result, norm.result if x.x_kv is None else keys

    def added(self, x: LayerCall, layer: LayerExpected) -> Array:
        """The result of the layer, batch-first."""
        return layer.combined if layer.out is None else layer.out.result

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        """The residual sum; ``norm`` is the norm of pre-norm, or None in post-norm."""
        return queries + added

    # Layer normalisation.

    def norm(self, x: LayerCall, z: Array) -> Norm:
        """SUB-3: layer normalisation of ``z``, (B, S, E)."""
        mean, var = self.moments(x, z)
        normalised = (z - mean) / self.deviation(x, var)
        gamma, beta = (np.zeros(0) if a is None else a.astype(x.work) for a in (x.gamma, x.beta))
        result = self.affine(x, normalised, gamma, beta)
        return Norm(z, mean, var, normalised, result, gamma, beta, self.epsilon(x))

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        """SUB-3, SUB-4: mean and variance, (B, S, 1)."""
        mean = self.mean(z)
        return mean, self.mean((z - mean) ** 2)

    def mean(self, array: Array) -> Array:
        """Mean over the normalised axis."""
        return array.mean(axis=2, keepdims=True)

    def epsilon(self, x: LayerCall) -> float:
        """SUB-5: the number that is added to the variance."""
        return x.epsilon

    def deviation(self, x: LayerCall, var: Array) -> Array:
        """SUB-5: the divisor."""
        return np.sqrt(var + x.work(self.epsilon(x)))

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        """SUB-6: the normalised rows, times gamma, plus beta."""
        return normalised * gamma + beta
