"""flash-linear-attention's softmax attention: ``parallel_attn`` and ``attn_decoding_one_step``, in Triton.

Isolated from the distribution ``fla-core``: the files of the two and the files that they import, without the package's
``__init__``, which imports every operator, and with stand-ins for code that looks for the device and other backends.
It needs ``einops``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any

import torch

from attention_conformance.impls.kernels import compiled, declared, fit, isolated

DISTRIBUTION, VERSION = "fla-core", "0.6.0"
DTYPES = ("float32", "float16", "bfloat16")


def _file(*names: str, **stand_ins: Any) -> Any:
    given = {f"fla.{name.replace('_', '.')}": attributes for name, attributes in stand_ins.items()}
    given["fla"] = {"__version__": VERSION}
    return isolated.module(DISTRIBUTION, VERSION, *(f"fla.{name}" for name in names), stand_ins=given)


_env = _file("utils.env", utils_hardware={"custom_device_ctx": lambda index: contextlib.nullcontext()})
_decorators = _file("utils.decorators")
_UTILS = {
    "autotune_cache_kwargs": _env.autotune_cache_kwargs,
    "autocast_custom_fwd": functools.partial(torch.amp.custom_fwd, device_type="cuda"),
    "autocast_custom_bwd": functools.partial(torch.amp.custom_bwd, device_type="cuda"),
    "check_shared_mem": lambda architecture="none", index=0: False,
    "contiguous": _decorators.contiguous,
    "input_guard": _decorators.input_guard,
    "tensor_cache": _decorators.tensor_cache,
    "IS_GATHER_SUPPORTED": True,
    "IS_NVIDIA_BLACKWELL": False,
}
_index = _file("ops.utils.index", utils=_UTILS, backends={"dispatch": lambda operation: lambda function: function})
_attn = _file(
    "ops.utils.constant", "ops.utils.cache", "ops.utils.op", "ops.utils.cumsum", "ops.attn.parallel",
    ops_utils={"prepare_chunk_indices": _index.prepare_chunk_indices},
)  # fmt: skip
_decoding = _file("ops.attn.decoding")


def _width(window: Any) -> int | None:
    """``window_size``: keys up to the query itself, or None; its windows end at the query."""
    return None if window is None or window[0] is None else window[0] + 1


def _causal(is_causal: bool, window: Any) -> None:
    if not is_causal and (window is None or window[1] != 0):
        raise NotImplementedError("parallel_attn is causal alone")


@declared(**compiled(layout="BSHD", length_relation="Sq = Sk", head_widths="up to 256", dtypes=DTYPES))
def parallel_attn(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, window: Any = None, scale: float | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """Causal attention, as many queries as keys."""
    fit(q, k, v, heads=2)
    _causal(is_causal, window)
    return _attn.parallel_attn(q, k, v, scale=scale, window_size=_width(window), sink_bias=sinks)


@declared(**compiled(layout="BSHD", query_lengths=1, head_widths="up to 256", dtypes=DTYPES))
def decoding_one_step(
    q: Any, k: Any, v: Any, *, kv_lengths: Any = None, scale: float | None = None, sinks: Any = None
) -> Any:
    """``attn_decoding_one_step``: one query at the end of each sequence of keys, which are packed for it."""
    fit(q, k, v, heads=2)
    lengths = [k.shape[1]] * len(k) if kv_lengths is None else kv_lengths.tolist()
    k, v = (
        torch.cat([x[:0].flatten(0, 1), *(x[n, :length] for n, length in enumerate(lengths))])[None] for x in (k, v)
    )
    ends = torch.tensor([0, *itertools.accumulate(lengths)], device=q.device)
    found = _decoding.attn_decoding_one_step(q.transpose(0, 1), k, v, scale=scale, cu_seqlens=ends, sink_bias=sinks)
    return found.transpose(0, 1)
