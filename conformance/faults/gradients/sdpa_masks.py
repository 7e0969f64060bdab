"""(GRAD-7, GRAD-8) Masks and fully masked rows in the backward pass, over a forward pass that is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.gradients.sdpa import TILE
from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


@fault("GRAD-8", "a NaN gradient of q in fully masked rows", "cf. pytorch 41508, cf. pytorch PR 189045")
class EmptyRowGradientNan(Backward):
    """Only that row computes 0 / 0; the gradients of k and v are right."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        return np.where(np.isneginf(found.lse)[..., None], x.work(np.nan), super().grad_q(x, found, d_raw))


@fault("GRAD-8", "a NaN gradient of q in rows that a window empties", "cf. pytorch 41508")
class EmptyWindowGradientNan(EmptyRowGradientNan):
    """The backward pass computes exp(s − lse) with −inf in both; calls with a mask or lengths are right."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        if x.window is None or x.mask is not None or x.bias is not None or x.kv_lengths is not None:
            return Backward.grad_q(self, x, found, d_raw)
        return super().grad_q(x, found, d_raw)


@fault("GRAD-8", "a fully masked row makes the gradients of q and all keys of its head NaN", "tilelang PR 2461")
class EmptyRowGradientSpreads(Backward):
    """δ of such a row is never written and holds NaN; weights of 0 do not hide it, as 0 · NaN is NaN."""

    def delta(self, x: Inputs, found: Expected, g: Array) -> Array:
        return np.where(np.isneginf(found.lse)[..., None], x.work(np.nan), super().delta(x, found, g))


@fault("GRAD-8", "one fully masked row makes every gradient NaN", "pytorch 41508, brevitas PR 1591")
class EmptyRowGradientNanBatch(Backward):
    """The forward pass zeroes NaN after the softmax; the backward pass spreads it through all shared inputs."""

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        grads = super().gradients(x, g)
        return [np.full_like(a, np.nan) for a in grads] if np.isneginf(self.inner.attend(x).lse).any() else grads


class Unmasked(Backward):
    """A backward pass that takes its masks from the call that ``seen`` returns."""

    def allowed(self, x: Inputs, found: Expected) -> Array:
        return self.inner.allowed(self.seen(x))

    def seen(self, x: Inputs) -> Inputs:
        """The call as the backward pass sees it."""
        return x


@fault("GRAD-7", "the mask is forgotten in the backward pass", "cf. MSLK PR 260")
class MaskForgottenBackward(Unmasked):
    """Masked keys with large scores get weights above 1, as the lse does not include them."""

    def seen(self, x: Inputs) -> Inputs:
        return replace(x, mask=None)


@fault("GRAD-7", "the causal mask is forgotten in the backward pass", "MSLK PR 263")
class CausalForgottenBackward(Unmasked):
    """Later keys get gradients from rows that may not attend to them."""

    def seen(self, x: Inputs) -> Inputs:
        return replace(x, is_causal=False)


@fault("GRAD-7", "the window is forgotten in the backward pass", "MSLK PR 263")
class WindowForgottenBackward(Unmasked):
    """The causal mask, if there is one, is still applied."""

    def seen(self, x: Inputs) -> Inputs:
        return replace(x, window=None)


@fault("GRAD-7", "the right side of the window is open in the backward pass", "Primus-Turbo PR 262")
class RightWindowForgottenBackward(Unmasked):
    """Only the left size is passed on; calls with a causal mask are right."""

    def seen(self, x: Inputs) -> Inputs:
        return replace(x, window=None if x.window is None else (x.window[0], None))


@fault("GRAD-7", "kv_lengths are forgotten in the backward pass where it is causal", "mojo_opset PR 386")
class LengthsForgottenWithCausalBackward(Unmasked):
    """The causal branch reads no key lengths; calls without is_causal are right."""

    def seen(self, x: Inputs) -> Inputs:
        return replace(x, kv_lengths=None) if x.is_causal else x


@fault("GRAD-7", "the causal mask of the backward pass is aligned bottom-right", "cf. flash-attention PR 436")
class CausalBottomRightBackward(Unmasked):
    """Calls with as many queries as keys are right."""

    def seen(self, x: Inputs) -> Inputs:
        if not x.is_causal:
            return x
        offset = 0 if x.causal_offset is None else x.causal_offset
        return replace(x, causal_offset=offset + x.shape[3] - x.shape[2])


@fault("GRAD-7", "NaN in the gradients of q and of masked keys where a mask hides a key", "pytorch 178251")
class MaskedGradientNan(Backward):
    """Masked scores compute 0 · (−inf), also in rows that have other keys."""

    def d_scores(self, x: Inputs, weights: Array, d_weights: Array, delta: Array) -> Array:
        d_scores = super().d_scores(x, weights, d_weights, delta)
        return d_scores if x.mask is None else np.where(x.mask, d_scores, x.work(np.nan))


@fault("GRAD-7", "gradients of keys that no row attends to are not written", "cf. xformers PR 456")
class UnreadKeysNotWritten(Backward):
    """The buffer is uninitialised, and here holds NaN."""

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        grads = super().gradients(x, g)
        allowed = self.inner.allowed(x)
        unread = ~allowed.reshape(len(allowed), x.k.shape[1], -1, x.shape[3]).any(axis=2)
        grads[1][unread] = grads[2][unread] = np.nan
        return grads


@fault(
    "GRAD-7", "gradients of q of all samples but the first are lost with kv_lengths", "ROCm-TransformerEngine PR 657"
)
class LaterSamplesLost(Backward):
    """Every sample writes to the place of the first; calls without kv_lengths use another layout and are right."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        grad = super().grad_q(x, found, d_raw)
        if x.kv_lengths is not None:
            grad[1:] = 0
        return grad


@fault("GRAD-7", "NaN gradients where bias meets a causal mask and the keys fill no tile", "pytorch 153799")
class TailGradientNan(Backward):
    """Only one of causal mask and bias masks the tail of the last tile."""

    def delta(self, x: Inputs, found: Expected, g: Array) -> Array:
        tail = x.is_causal and x.bias is not None and x.shape[3] % TILE
        return super().delta(x, found, g) * x.work(np.nan if tail else 1)
