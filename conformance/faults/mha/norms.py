"""(SUB-3 to SUB-6, SUB-9) Layer normalisation over the wrong axis, with a wrong variance, epsilon, gamma or beta."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.mha.projections import Lenient, to_width
from attention_conformance.conformance.faults.models.mha import LayerCall, Sublayer
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


@fault("SUB-3", "normalised over the rows of a column", "attention-is-all-you-need-pytorch PR 17, OpenNMT-tf PR 6")
class NormOverRows(Sublayer):
    """The norm runs over the sequence axis instead of the last axis."""

    def mean(self, array: Array) -> Array:
        return np.broadcast_to(array.mean(axis=1, keepdims=True), array.shape)


@fault("SUB-3", "normalised over rows and columns together", "geometric-algebra-transformer PR 8, FuxiCTR 23")
class NormOverSample(Sublayer):
    """The norm runs over all axes except the batch; calls with one row are still right."""

    def mean(self, array: Array) -> Array:
        return np.broadcast_to(array.mean(axis=(1, 2), keepdims=True), (*array.shape[:2], 1))


@fault("SUB-4", "the variance with Bessel's correction", "annotated-transformer PR 119, lbann PR 2024, transformer 7")
class VarianceCorrected(Sublayer):
    """The code divides by E − 1, as ``torch.var`` and ``torch.std`` do; with many columns the error is small."""

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        mean, var = super().moments(x, z)
        return mean, var * x.work(z.shape[2] / (z.shape[2] - 1))


@fault("SUB-9", "the variance as mean(z²) − mean(z)²", "pytorch 51102, burn 5607, onnxruntime 28463, tvm PR 19643")
class VarianceCancelled(Sublayer):
    """Only rows whose mean is large compared with their deviation show it."""

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        mean = self.mean(z)
        return mean, self.mean(z * z) - mean * mean


@fault("SUB-9", "the variance summed in half precision", "pytorch 66707, mxnet 14073, onnxruntime 17692")
class VarianceInHalf(Sublayer):
    """float16 and bfloat16 sums accumulate in their own dtype; with few columns they are still right."""

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        mean, var = super().moments(x, z)
        if x.dtype.itemsize != 2:
            return mean, var
        total = np.zeros_like(var, x.dtype)
        for column in range(z.shape[2]):
            total = (total + (z[:, :, column, None] - mean) ** 2).astype(x.dtype)
        return mean, total.astype(x.work) / x.work(z.shape[2])


@fault(
    "SUB-5",
    "epsilon added to the deviation, outside the root",
    "burn 2185, ARENA_3.0 228, BERT-pytorch 30, pytorch-transformer PR 31",
)
class EpsilonOutside(Sublayer):
    """In half precision, a small epsilon with a variance of about 1 hides it."""

    def deviation(self, x: LayerCall, var: Array) -> Array:
        return np.sqrt(var) + x.work(self.epsilon(x))


@fault("SUB-5", "epsilon is 1e-5, whatever is given", "Megatron-Bridge PR 5712, transformers PR 20699")
class EpsilonFixed(Sublayer):
    """The inner norm is called with its default epsilon."""

    def epsilon(self, x: LayerCall) -> float:
        return 1e-5


@fault("SUB-5", "epsilon added to the number of columns, not to the variance", "LeetCUDA 309")
class EpsilonOnCount(Sublayer):
    """A bracket is misplaced; a row of equal numbers then divides 0 by 0 and gives NaN."""

    def deviation(self, x: LayerCall, var: Array) -> Array:
        count = len(x.gamma) if x.gamma is not None else 1
        return np.sqrt(var * x.work(count / (count + self.epsilon(x))))


@fault("SUB-3", "divided by (var + epsilon)², not by its root", "TPlinker-joint-extraction 37")
class DeviationSquared(Sublayer):
    """The code has ``** 2`` instead of ``** 0.5``."""

    def deviation(self, x: LayerCall, var: Array) -> Array:
        return (var + x.work(self.epsilon(x))) ** 2


@fault("SUB-6", "beta added before gamma multiplies", "ml-ane-transformers PR 2")
class BetaBeforeGamma(Sublayer):
    """The code computes (y + beta) · gamma."""

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        return (normalised + beta) * gamma


@fault("SUB-6", "gamma and beta taken for each other", "cf. objax PR 94")
class GammaBetaSwapped(Sublayer):
    """Both have the same shape, so no check notices."""

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        return super().affine(x, normalised, beta, gamma)


@fault("SUB-6", "gamma and beta ignored", "cf. objax PR 94")
class AffineIgnored(Sublayer):
    """The result is right while gamma is 1 and beta is 0, as in an untrained layer."""

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        return normalised


@fault("SUB-6", "the first numbers of gamma and beta used for all columns", "cf. yalis PR 53")
class AffineFirstNumber(Sublayer):
    """The code reads one scalar instead of a vector."""

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        return super().affine(x, normalised, gamma[:1], beta[:1])


@fault("SUB-10", "gamma and beta of another width accepted", "cf. AiDotNet.Tensors PR 270")
class AffineUnchecked(Lenient, Sublayer):  # type: ignore[misc]  # what is attended to is a sub-layer
    """A short array is read past its end."""

    def fitted(self, x: LayerCall) -> LayerCall:
        width = x.x_q.shape[-1]
        return replace(x, gamma=to_width(x.gamma, width), beta=to_width(x.beta, width))
