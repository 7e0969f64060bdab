"""ggml's ``ggml_flash_attn_ext`` on the CPU, through ggml-python."""

from __future__ import annotations

import ctypes
from typing import Any

import ggml
import numpy as np

_TYPES = {"float32": ggml.GGML_TYPE_F32, "float16": ggml.GGML_TYPE_F16}


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """A mask is added, of half precision, (n_kv, n_batch padded, 1 or heads, 1 or sequences): causal is one, too."""
    if bias is not None and np.any(bias.astype(np.float16) != bias):
        raise NotImplementedError("GGML_ASSERT(mask->type == GGML_TYPE_F16)")
    rows, columns = q.shape[2], k.shape[2]
    added = None if bias is None else bias.astype(np.float16)
    hidden = [] if mask is None else [~mask]
    hidden += [~np.tri(rows, columns, dtype=bool)] if is_causal else []  # as llama.cpp fills its KQ_mask
    for each in hidden:
        added = np.where(each, np.float16(-np.inf), np.float16(0) if added is None else added)
    params = ggml.ggml_init_params(mem_size=(64 << 20) + 8 * sum(a.nbytes for a in (q, k, v)), mem_buffer=None)
    context = ggml.ggml_init(params)
    try:
        given = None
        if added is not None:
            shape = (1,) * (4 - added.ndim) + added.shape
            full = np.broadcast_to(added.reshape(shape), (*shape[:2], rows, columns))
            padded = np.zeros((*shape[:2], -(-rows // 64) * 64, columns), np.float16)  # GGML_KQ_MASK_PAD
            padded[:, :, :rows] = full
            given = _tensor(context, padded)
        factor = q.shape[3] ** -0.5 if scale is None else scale
        tensors = [_tensor(context, each) for each in (q, k, v)]
        found = ggml.ggml_flash_attn_ext(context, *tensors, given, factor, 0.0, softcap or 0.0)
        if sinks is not None:
            ggml.ggml_flash_attn_ext_add_sinks(found, _tensor(context, sinks))
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, found)
        if ggml.ggml_graph_compute_with_ctx(context, graph, 1) != 0:
            raise RuntimeError("GGML_STATUS_SUCCESS is 0")
        shape = (q.shape[0], rows, q.shape[1], v.shape[3])  # "permuted"
        data = ctypes.string_at(ggml.ggml_get_data(found), 4 * int(np.prod(shape)))
        return np.frombuffer(data, np.float32).reshape(shape).transpose(0, 2, 1, 3)
    finally:
        ggml.ggml_free(context)


def _tensor(context: Any, array: Any) -> Any:
    """A tensor with the axes of the array, in reverse as ggml writes them."""
    array = np.ascontiguousarray(array)
    sizes = array.shape[::-1] + (1,) * (4 - array.ndim)
    made = ggml.ggml_new_tensor_4d(context, _TYPES[array.dtype.name], *sizes)
    ctypes.memmove(ggml.ggml_get_data(made), array.ctypes.data, array.nbytes)
    return made


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
