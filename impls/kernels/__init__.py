"""Adapters of real device kernels that other packages ship, one small file each.

They are plugged in by module, ``attention_conformance.impls.kernels.pallas_gpu:mha@pallas``, and are not part of a run
of the built-in implementations.  An adapter translates names and layouts, and says what a kernel takes; no source of a
kernel is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def declared(**attributes: Any) -> Callable[[Any], Any]:
    """A decorator that sets the attributes of a plug-in (impls/PLUGINS.md)."""

    def decorate(function: Any) -> Any:
        for name, value in attributes.items():
            setattr(function, name, value)
        return function

    return decorate


def compiled(**attributes: Any) -> dict[str, Any]:
    """Attributes of a Triton kernel whose products are ``tl.dot`` without an ``input_precision``, and other attributes.

    Such a product is in TF32 for float32 on NVIDIA GPUs, and takes at least 16 columns; kernels pad widths to powers
    of 2.  The interpreter multiplies in float32, any width.
    Source: https://triton-lang.org/main/python-api/generated/triton.language.dot.html.

    Parameters
    ----------
    **attributes
        Other attributes.

    Returns
    -------
    dict[str, Any]
        Attributes for ``declared``.
    """
    profiles = {"cuda-float32": "tf32"}
    return {"profiles": profiles} | ({"head_widths": "at least 9"} if on_gpu() else {}) | attributes


def fit(q: Any, k: Any, v: Any, heads: int = 1) -> None:
    """Refuse mistakes that a kernel does not see, as rows are packed for it and it takes its dtype from one array.

    Parameters
    ----------
    q, k, v
        Inputs of sdpa, with their heads on the axis ``heads``.
    heads
        1 or 2.

    Raises
    ------
    TypeError
        If they differ in dtype.
    ValueError
        If they differ in rank or batch, or k and v in length.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError("q, k and v differ in rank, or have not four axes")
    length = 3 - heads
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[length] != v.shape[length]:
        raise ValueError("q, k and v differ in batch, or k and v in length")


def on_gpu() -> bool:
    """Whether Triton compiles kernels for a GPU here, and interprets none: the answer of a server's platform layer."""
    import torch

    return torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"


def compute_capability() -> tuple[int, int]:
    """Compute capability of the GPU that kernels are compiled for, (0, 0) where they are interpreted."""
    import torch

    return torch.cuda.get_device_capability() if on_gpu() else (0, 0)
