"""Tokamax's ``dot_product_attention`` by XLA, at once or in chunks: what it is where its kernels do not run."""

from __future__ import annotations

from typing import Any

import tokamax


def xla(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None,
) -> Any:  # fmt: skip
    """``implementation="xla"``: all scores at once."""
    return _attention("xla", q, k, v, bias, mask, is_causal, window, kv_lengths, scale, softcap)


def chunked(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None,
) -> Any:  # fmt: skip
    """``implementation="xla_chunked"``: 512 queries and 1024 keys at a time."""
    return _attention("xla_chunked", q, k, v, bias, mask, is_causal, window, kv_lengths, scale, softcap)


def _attention(
    implementation: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any, is_causal: bool, window: Any, kv_lengths: Any,
    scale: float | None, softcap: float | None,
) -> Any:  # fmt: skip
    if window is not None and None in window:
        raise NotImplementedError("local_window_size: int | tuple[int, int] | None")
    return tokamax.dot_product_attention(
        q,
        k,
        v,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        key_value_seq_lengths=kv_lengths,
        local_window_size=window,
        logits_soft_cap=softcap,
        implementation=implementation,
    )


xla.layout = "BSHD"  # type: ignore[attr-defined]
chunked.layout = "BSHD"  # type: ignore[attr-defined]
