"""(GRAD-2 to GRAD-8, GRAD-16) Gradients of attention and of the multi-head layer, written out in NumPy.

A backward pass as a user would write it, without autograd.  Half precision is computed in float32 and rounded once at
the end.  It expresses every keyword; its memory is a few arrays of B · Hq · Sq · Sk elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.numpy.layer import _batch_first, _combine, _project, _split
from attention_conformance.impls.numpy.parts import split_scale, working_dtype
from attention_conformance.impls.validate import check_inputs, check_layer


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

    Parameters
    ----------
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv), of one dtype; Hq is a multiple of Hkv.
    grad_output
        (B, Hq, Sq, Dv): the gradient of the output, in the dtype of q.
    mask, bias, is_causal, causal_offset, window, kv_lengths, scale, softcap
        As in ``eager.attention``.

    Returns
    -------
    Any
        Three arrays, or four with the gradient of the bias, in the dtype of q.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (GRAD-12).
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


def layer_gradients(
    x_q: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    grad_output: np.ndarray,
    *,
    heads: int,
    x_kv: np.ndarray | None = None,
    w_o: np.ndarray | None = None,
    b_q: np.ndarray | None = None,
    b_k: np.ndarray | None = None,
    b_v: np.ndarray | None = None,
    b_o: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    is_causal: bool = False,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
) -> Any:
    """(GRAD-16) The gradients of x_q, w_q, w_k and w_v in their shapes, then of each other array that is given.

    By the chain rule through ``mha``.  ``grad_output`` is the gradient of the output of ``mha``, in its shape; keywords
    are those of ``mha``.  Raises ValueError or TypeError for inputs that do not fit together.
    """
    given = {"w_o": w_o, "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o, "bias": bias, "grad_output": grad_output}
    check_layer(heads, x_q, x_kv, w_q=w_q, w_k=w_k, w_v=w_v, **given)
    dtype, work, batched, source = x_q.dtype, working_dtype(x_q.dtype), x_q.ndim == 3, x_q if x_kv is None else x_kv
    shape = (*x_q.shape[:-1], (w_v if w_o is None else w_o).shape[1])
    if grad_output.shape != shape:
        raise ValueError(f"grad_output must have the shape of the output, {shape}, got {grad_output.shape}")
    first = sequence_first and batched
    x, y, d_output = (_batch_first(a.astype(work), first) for a in (x_q, source, grad_output))
    options: dict[str, Any] = {"mask": mask, "is_causal": is_causal, "kv_lengths": kv_lengths, "scale": scale}
    options["bias"] = None if bias is None else bias.astype(work)
    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        w_q, w_k, w_v = (w.astype(work) for w in (w_q, w_k, w_v))
        q, k, v = (_split(_project(*each), heads) for each in ((x, w_q, b_q), (y, w_k, b_k), (y, w_v, b_v)))
        d_combined = d_output if w_o is None else np.matmul(d_output, w_o.astype(work).T)
        d_heads = gradients(q, k, v, _split(d_combined, heads), **options)
        d_q, d_k, d_v = (_combine(each) for each in d_heads[:3])
        d_x, d_y = np.matmul(d_q, w_q.T), np.matmul(d_k, w_k.T) + np.matmul(d_v, w_v.T)
        found = [
            _returned(d_x + d_y if x_kv is None else d_x, batched, first),
            *map(_of_weight, (x, y, y), (d_q, d_k, d_v)),
        ]
        if x_kv is not None:
            found.append(_returned(d_y, batched, first))
        if w_o is not None:
            found.append(_of_weight(_combine(attention(q, k, v, **options)), d_output))
        of_biases = zip((b_q, b_k, b_v, b_o), (d_q, d_k, d_v, d_output), strict=True)
        found += [each.sum(axis=(0, 1)) for b, each in of_biases if b is not None]
        found += d_heads[3:]
        return tuple(each.astype(dtype) for each in found)


def _of_weight(x: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The gradient of the weight that x is multiplied by to give d's array: the sum over the rows of all samples."""
    return np.matmul(x.reshape(-1, x.shape[2]).T, d.reshape(-1, d.shape[2]))


def _returned(d: np.ndarray, batched: bool, sequence_first: bool) -> np.ndarray:
    """The gradient of an input in the input's form."""
    return _batch_first(d, sequence_first) if batched else d[0]


# The functions' operators, as plug-ins declare them.
gradients.operator = "sdpa_grad"  # type: ignore[attr-defined]
layer_gradients.operator = "mha_grad"  # type: ignore[attr-defined]
