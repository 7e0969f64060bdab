"""The gradients of the multi-head layer written out in NumPy, the chain rule through ``impls.numpy.layer``.

Source: the clauses GRAD-17 to GRAD-25.  Half precision is computed in float32 throughout and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impls.layers import check_layer
from impls.numpy.eager import attention
from impls.numpy.gradients import gradients
from impls.numpy.layer import _batch_first, _combine, _project, _split
from impls.numpy.parts import working_dtype


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
    """The gradients of x_q, w_q, w_k and w_v in their shapes, then of each other array that is given (GRAD-16).

    ``grad_output`` is the gradient of the output of ``mha``, in its shape; keywords as there.  Raises ValueError or
    TypeError for what does not fit together.
    """
    check_layer(heads, x_q, x_kv, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o)
    dtype, work, batched, source = x_q.dtype, working_dtype(x_q.dtype), x_q.ndim == 3, x_q if x_kv is None else x_kv
    shape = (*x_q.shape[:-1], (w_v if w_o is None else w_o).shape[1])
    if grad_output.shape != shape:
        raise ValueError(f"grad_output must have the shape of the output, {shape}, got {grad_output.shape}")
    for name, array in {"grad_output": grad_output, "bias": bias}.items():
        if array is not None and array.dtype != dtype:
            raise TypeError(f"{name} must have the dtype of x_q, {dtype}, got {array.dtype}")
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
    """The gradient of the weight that makes d's array of x: the sum over the rows of all samples."""
    return np.matmul(x.reshape(-1, x.shape[2]).T, d.reshape(-1, d.shape[2]))


def _returned(d: np.ndarray, batched: bool, sequence_first: bool) -> np.ndarray:
    """The gradient of an input in its form."""
    return _batch_first(d, sequence_first) if batched else d[0]


#: Which operator the function is of, as a plug-in says it.
layer_gradients.operator = "mha_grad"  # type: ignore[attr-defined]
