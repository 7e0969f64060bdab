"""SGLang's Triton kernels: prefill, decoding over a token table, extend in two forms, and ``merge_state_triton``.

Isolated from the distribution ``sglang``: only files of ``sglang/kernels/ops/attention``, with stand-ins for
``sglang.srt.utils`` (CUDA where there is a GPU, no ROCm; one core) and ``sglang.srt.environ``.  ``pip install
--no-deps`` is enough.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

from attention_conformance.impls.kernels import compiled, declared, fit, isolated, on_gpu, paging

DISTRIBUTION, VERSION = "sglang", "0.5.23"
_OPS = "sglang.kernels.ops.attention"


def _no(*_: Any) -> bool:
    return False


_STAND_INS: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": {
        "is_cuda": on_gpu,
        "is_hip": _no,
        "is_gfx95_supported": _no,
        "is_gfx1250_supported": _no,
        "get_device_core_count": lambda device=0: 1,
    },
    "sglang.srt.environ": {
        "envs": SimpleNamespace(SGLANG_TRITON_FP8_PREFILL_ATTN=None, SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS=None)
    },
}


def _file(*names: str) -> Any:
    return isolated.module(DISTRIBUTION, VERSION, *(f"{_OPS}.{name}" for name in names), stand_ins=_STAND_INS)


_prefill = _file("prefill_attention")
_decode = _file("score_mod", "decode_attention")
_extend = _file("extend_attention")
_merge = _file("merge_state")

#: Number of parts into which the decoding kernel splits the keys of a sequence.
SPLITS = 4

#: Every dtype of the kernels; half precision is cast to it for the product with v.
DTYPES = ("float32", "float16", "bfloat16")


def _same(*arrays: Any) -> None:
    if len({each.dtype for each in arrays}) > 1:
        raise TypeError("q, k and v differ in dtype")  # the kernels leave this to their caller


def _slots(block_table: Any, lengths: Any, size: int, first: Any = None) -> tuple[Any, Any]:
    """``kv_indptr`` and ``kv_indices``: the slot of every key of every sequence, from a table of pages."""
    device = block_table.device
    ends = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=device)
    ends[1:] = torch.cumsum(lengths, 0)
    rows = []
    for n, length in enumerate(lengths.tolist()):
        j = torch.arange(length, device=device) + (0 if first is None else int(first[n]))
        rows.append(block_table[n, j // size].long() * size + j % size)
    return ends, torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64, device=device)


def _window_left(window: Any, is_causal: bool) -> int:
    """``sliding_window_size``: how far back a window reaches, −1 for any."""
    if window is None or window[0] is None:
        return -1
    if not is_causal or window[0] == 0:
        raise NotImplementedError("sliding_window_size: 0 is none, and a window ends at the query")
    return int(window[0])


@declared(**compiled(layout="BSHD", length_relation="Sq = Sk", equal_widths=True, dtypes=DTYPES))
def prefill(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    """``context_attention_fwd``: self-attention of packed sequences, as many keys as queries; all of one length."""
    fit(q, k, v, heads=2)
    out = q.new_full(q.shape, math.nan)
    batch, rows = q.shape[:2]
    _prefill.context_attention_fwd(
        *(each.flatten(0, 1) for each in (q, k, v)),
        out.flatten(0, 1),
        torch.arange(batch, dtype=torch.int32, device=q.device) * rows,
        torch.full((batch,), rows, dtype=torch.int32, device=q.device),
        rows,
        is_causal=is_causal,
        sm_scale=scale,
    )
    return out


def _decoded(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    _same(q, k_cache, v_cache)
    heads, width = q.shape[1], v_cache.shape[3]
    ends, slots = _slots(block_table, kv_lengths, k_cache.shape[1])
    out = q.new_full((len(q), heads, width), math.nan)
    _decode.decode_attention_fwd(
        q,
        k_cache.flatten(0, 1),
        v_cache.flatten(0, 1),
        out,
        ends,
        slots,
        q.new_full((len(q), heads, SPLITS, width), math.nan, dtype=torch.float32),
        q.new_full((len(q), heads, SPLITS), math.nan, dtype=torch.float32),
        q.new_full((len(q),), SPLITS, dtype=torch.int32),
        SPLITS,
        q.shape[2] ** -0.5 if scale is None else scale,
        1.0,
        1.0,
        logit_cap=0.0 if softcap is None else softcap,
        sinks=sinks,
    )
    return out


@declared(**compiled(query_lengths=1, dtypes=DTYPES))
def decode(
    q: Any, k: Any, v: Any, *, kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """``decode_attention_fwd``: one query for each sequence over a table of tokens, its keys split in parts."""
    options = {"scale": scale, "softcap": softcap, "sinks": sinks}
    return paging.dense(_decoded, 4, q, k, v, kv_lengths=kv_lengths, **options)


@declared(**compiled(operator="paged", dtypes=DTYPES))
def extend(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool = False, window: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None, k_new: Any = None, v_new: Any = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """``extend_attention_fwd``: the keys of the queries' own tokens are passed separately from the earlier keys."""
    _same(q, k_cache, v_cache)
    counts, size = cu_seqlens_q.diff(), k_cache.shape[1]
    before = kv_lengths - counts
    if bool((before < 0).any()):
        raise NotImplementedError("k_extend: every query has a key")
    k_cache, v_cache = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    if k_new is None:
        _, new = _slots(block_table, counts, size, before)
        k_new, v_new = k_cache[new], v_cache[new]
    ends, slots = _slots(block_table, before, size)
    out = q.new_full((*q.shape[:2], v_cache.shape[2]), math.nan)
    lse = q.new_full(q.shape[:2], math.nan, dtype=torch.float32) if return_lse else None
    _extend.extend_attention_fwd(
        q.contiguous(),
        k_new.contiguous(),
        v_new.contiguous(),
        out,
        k_cache,
        v_cache,
        cu_seqlens_q,
        ends,
        slots,
        None,
        is_causal,
        None,
        max_seqlen_q,
        1.0,
        1.0,
        sm_scale=scale,
        logit_cap=0.0 if softcap is None else softcap,
        sliding_window_size=_window_left(window, is_causal),
        sinks=sinks,
        lse_extend=lse,
    )
    return out if lse is None else (out, lse.T)


@declared(**compiled(operator="paged", dtypes=DTYPES))
def extend_unified(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool = False, window: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """``extend_attention_fwd_unified``: all keys are in the cache, those of the queries' own tokens last."""
    _same(q, k_cache, v_cache)
    before = kv_lengths - cu_seqlens_q.diff()
    if bool((before < 0).any()):
        raise NotImplementedError("prefix_lens: every query has a key")
    ends, slots = _slots(block_table, kv_lengths, k_cache.shape[1])
    out = q.new_full((*q.shape[:2], v_cache.shape[3]), math.nan)
    _extend.extend_attention_fwd_unified(
        q.contiguous(),
        out,
        k_cache.flatten(0, 1),
        v_cache.flatten(0, 1),
        1.0,
        1.0,
        cu_seqlens_q,
        ends,
        slots,
        before,
        max_seqlen_q,
        sm_scale=scale,
        logit_cap=0.0 if softcap is None else softcap,
        is_causal=is_causal,
        sliding_window_size=_window_left(window, is_causal),
        sinks=sinks,
    )
    return out


@declared(operator="merge", dtypes=DTYPES)
def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> Any:
    """``merge_state_triton``: two partial results joined."""
    return _merge.merge_state_triton(v_a.contiguous(), s_a.contiguous(), v_b.contiguous(), s_b.contiguous())
