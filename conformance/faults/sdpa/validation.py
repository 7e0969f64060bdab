"""(SDPA-31 to SDPA-36) Inputs that do not fit together, accepted without an error, and valid ones refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected, broadcasts


class Lenient(Attention):
    """Trims the inputs by ``fitted`` until they fit, and then computes."""

    def check(self, x: Inputs) -> None:
        super().check(self.fitted(x))

    def fitted(self, x: Inputs) -> Inputs:
        """Inputs that fit: those that the kernel would read."""
        return x

    def attend(self, x: Inputs) -> Expected:
        return super().attend(self.fitted(x))


@fault("SDPA-31", "k and v of unequal length accepted", "pytorch PR 193728, AiDotNet.Tensors PR 270")
class LengthsUnchecked(Lenient):
    """The call uses the shorter of the two lengths."""

    def fitted(self, x: Inputs) -> Inputs:
        if not x.k.ndim == x.v.ndim == 4:
            return x
        keys = min(x.k.shape[2], x.v.shape[2])
        return replace(x, k=x.k[:, :, :keys], v=x.v[:, :, :keys])


@fault("SDPA-31", "unequal batches accepted", "AiDotNet.Tensors PR 270")
class BatchesUnchecked(Lenient):
    """The call uses the smallest of the batches."""

    def fitted(self, x: Inputs) -> Inputs:
        batch = min(len(x.q), len(x.k), len(x.v))
        if not x.q.ndim == x.k.ndim == x.v.ndim == 4:
            return x
        return replace(x, q=x.q[:batch], k=x.k[:batch], v=x.v[:batch])


@fault("SDPA-32", "unequal head widths of q and k accepted", "AiDotNet.Tensors PR 270")
class WidthsUnchecked(Lenient):
    """The call uses the smaller of the two widths."""

    def fitted(self, x: Inputs) -> Inputs:
        width = min(x.q.shape[-1], x.k.shape[-1])
        return replace(x, q=x.q[..., :width], k=x.k[..., :width])


@fault(
    "SDPA-33",
    "query heads that are no multiple of the key heads accepted",
    "flash-linear-attention 1029, maxtext PR 1377",
)
class HeadsUnchecked(Lenient):
    """Query head h reads key head h while there is one, and otherwise the last."""

    def fitted(self, x: Inputs) -> Inputs:
        if not x.q.ndim == x.k.ndim == x.v.ndim == 4 or (
            x.shape[1] % x.k.shape[1] == 0 and x.k.shape[1] == x.v.shape[1]
        ):
            return x
        k, v = (a[:, np.minimum(np.arange(x.shape[1]), a.shape[1] - 1)] for a in (x.k, x.v))
        return replace(x, k=k, v=v)


@fault("SDPA-33", "k and v with unequal numbers of heads accepted", "rocm-libraries 5888")
class ValueHeadsUnchecked(Lenient):
    """k and v are each repeated separately to the heads of q."""

    def fitted(self, x: Inputs) -> Inputs:
        if not x.q.ndim == x.k.ndim == x.v.ndim == 4 or x.k.shape[1] == x.v.shape[1]:
            return x
        if x.shape[1] % x.k.shape[1] or x.shape[1] % x.v.shape[1]:
            return x
        k, v = (np.repeat(a, x.shape[1] // a.shape[1], axis=1) for a in (x.k, x.v))
        return replace(x, k=k, v=v)


@fault("SDPA-34", "inputs of unequal rank accepted", "pytorch PR 94274, executorch PR 20410")
class RanksUnchecked(Lenient):
    """A missing batch axis is broadcast."""

    def fitted(self, x: Inputs) -> Inputs:
        arrays = [x.q, x.k, x.v]
        batch = max((a.shape[0] for a in arrays if a.ndim == 4), default=1)
        q, k, v = (a if a.ndim == 4 else np.broadcast_to(a, (batch, *a.shape)) for a in arrays)
        return replace(x, q=q, k=k, v=v)


@fault("SDPA-35", "inputs of unequal dtype accepted", "pytorch PR 94274")
class DtypesUnchecked(Lenient):
    """k and v are converted to the dtype of q."""

    def fitted(self, x: Inputs) -> Inputs:
        return replace(x, k=x.k.astype(x.dtype), v=x.v.astype(x.dtype))


def cut(array: Array | None, shape: tuple[int, ...]) -> Array | None:
    """A mask or bias, cut or extended by its last entries to the shape of the scores."""
    if array is None or broadcasts(array.shape, shape):
        return array
    array = array.reshape(array.shape[-4:]) if array.ndim > 4 and array.shape[0] == 1 else array
    for axis, (have, want) in enumerate(zip(array.shape[-4:], shape[-array.ndim :], strict=False)):
        if have not in (1, want):
            array = array.take(np.minimum(np.arange(want), have - 1), axis=axis)
    return array


@fault("SDPA-36", "a mask that does not fit accepted", "executorch PR 20410, pytorch PR 128816")
class MaskUnchecked(Lenient):
    """A short mask is read past its end, and a long one is cut."""

    def fitted(self, x: Inputs) -> Inputs:
        return x if x.q.ndim != 4 or x.k.ndim != 4 else replace(x, mask=cut(x.mask, x.shape))


@fault("SDPA-36", "a bias that does not fit accepted", "memory-efficient-attention 8")
class BiasUnchecked(Lenient):
    """A short bias is read past its end, and a long one is cut."""

    def fitted(self, x: Inputs) -> Inputs:
        return x if x.q.ndim != 4 or x.k.ndim != 4 else replace(x, bias=cut(x.bias, x.shape))


@fault("SDPA-1", "an error for Sq ≠ Sk", "llama 899, flash-attention 20")
class EqualLengthsRequired(Attention):
    """The code supports only self-attention."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        if x.shape[2] != x.shape[3]:
            raise ValueError("query and key lengths differ")


@fault("SDPA-33", "an error for grouped heads", "rocm-libraries 5888")
class HeadsCheckedBackwards(Attention):
    """The code tests whether Hkv is a multiple of Hq, and not the reverse."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        if x.k.shape[1] % max(1, x.q.shape[1]):
            raise ValueError("heads do not divide")
