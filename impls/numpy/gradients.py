"""The gradients of attention written out in NumPy, as a user would write a backward pass: no framework, no autograd.

Source: the clauses GRAD-2 to GRAD-8.  Half precision is computed in float32 and rounded once at the end.  It
expresses every keyword; its memory is a few arrays of B · Hq · Sq · Sk elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impls.numpy.eager import attention
from impls.numpy.parts import split_scale, working_dtype
from impls.validate import check_inputs


def gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    grad_output: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    is_causal: bool = False,
    causal_offset: int | np.ndarray = 0,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """The gradients of q, k and v in their shapes, and of bias where it is given.

    ``grad_output`` (B, Hq, Sq, Dv) is the gradient of the output.  Raises ValueError or TypeError for inputs that
    do not fit together (GRAD-12).
    """
    check_inputs(q, k, v, mask, bias)
    if grad_output.shape != (*q.shape[:3], v.shape[3]):
        raise ValueError(f"grad_output must have shape {(*q.shape[:3], v.shape[3])}, got {grad_output.shape}")
    if grad_output.dtype != q.dtype:
        raise TypeError(f"grad_output must have the dtype of q, {q.dtype}, got {grad_output.dtype}")
    dtype, work, heads = q.dtype, working_dtype(q.dtype), k.shape[1]
    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        q, k, v, grad_output = (array.astype(work, copy=False) for array in (q, k, v, grad_output))
        weights = attention(
            q,
            k,
            v,
            mask=mask,
            bias=None if bias is None else bias.astype(work, copy=False),
            is_causal=is_causal,
            causal_offset=causal_offset,
            window=window,
            kv_lengths=kv_lengths,
            scale=scale,
            softcap=softcap,
            return_weights=True,
        )[1]
        k, v = (np.repeat(array, q.shape[1] // heads, axis=1) for array in (k, v))
        before, after = split_scale(scale, q.shape[3])
        q = q * work(before)

        d_weights = np.matmul(grad_output, v.swapaxes(2, 3))
        d_scores = weights * (d_weights - np.sum(weights * d_weights, axis=3, keepdims=True))
        d_raw = d_scores * work(after)
        if softcap is not None:
            d_raw *= 1 - np.tanh(np.matmul(q, k.swapaxes(2, 3)) * work(after) / work(softcap)) ** 2
        results = [
            np.matmul(d_raw, k) * work(before),
            _over_groups(np.matmul(d_raw.swapaxes(2, 3), q), heads),
            _over_groups(np.matmul(weights.swapaxes(2, 3), grad_output), heads),
        ]
        if bias is not None:
            results.append(_sum_to(d_scores, bias.shape))
        return tuple(result.astype(dtype, copy=False) for result in results)


def _over_groups(array: np.ndarray, heads: int) -> np.ndarray:
    """GRAD-6: the sum over the query heads of each key head, (B, Hkv, Sk, X)."""
    batch, query_heads, *rest = array.shape
    return array.reshape(batch, heads, query_heads // heads, *rest).sum(axis=2)


def _sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """GRAD-5: the sum over the axes along which an array of ``shape`` was broadcast."""
    aligned = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, length in enumerate(aligned) if length == 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)


#: Which operator the function is of, as a plug-in says it.
gradients.operator = "sdpa_grad"  # type: ignore[attr-defined]
