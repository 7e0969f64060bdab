"""SageAttention 1: ``sageattn``, which multiplies q and k in int8.

Isolated from the distribution ``sageattention``: its files, loaded one by one.  The function asserts that q is on a
CUDA device, so it gets tensors that claim to be on one; nothing else about them differs.  It subtracts the mean of the
keys from k in place, in the caller's array.
"""

from __future__ import annotations

from typing import Any

import torch

from attention_conformance.impls.kernels import declared, isolated

DISTRIBUTION, VERSION = "sageattention", "1.0.6"
FILES = (
    "quant_per_block",
    "quant_per_block_varlen",
    "quant_per_block_hd96",
    "attn_qk_int8_per_block_h96",
    "attn_qk_int8_per_block_h96_causal",
    "attn_qk_int8_per_block",
    "attn_qk_int8_per_block_causal",
    "attn_qk_int8_block_varlen",
    "attn_qk_int8_per_block_causal_varlen",
    "core",
)
_core = isolated.module(DISTRIBUTION, VERSION, *(f"sageattention.{name}" for name in FILES))


class _OnDevice(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


def _on_device(*arrays: Any) -> list[Any]:
    return [each if each.is_cuda else each.as_subclass(_OnDevice) for each in arrays]


def _plain(array: Any) -> Any:
    return array.as_subclass(torch.Tensor)


@declared(
    head_widths=(64, 96, 128),
    equal_widths=True,
    dtypes=("float32", "float16", "bfloat16"),
)
def sageattn(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    """The function of the package's README, smoothing of k included; causal is for as many queries as keys."""
    if is_causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError("is_causal: Only applicable when qo_len == kv_len.")
    return _plain(_core.sageattn(*_on_device(q, k, v), is_causal=is_causal, sm_scale=scale))
