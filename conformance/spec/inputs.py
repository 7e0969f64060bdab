"""Inputs of an implementation: the arguments of its operator, and keywords."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class _Arguments:
    """Arguments as fields, then keywords."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "keywords"}


@dataclass(frozen=True)
class Inputs(_Arguments):
    """Inputs of sdpa: q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerInputs(_Arguments):
    """Inputs of mha and sublayer: x_q (B, Sq, E), w_q (E, H · D), w_k (Ekv, H · D), w_v (Ekv, H · Dv)."""

    x_q: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientInputs(_Arguments):
    """Inputs of sdpa_grad: q, k, v as for sdpa, and the gradient with respect to the output, (B, Hq, Sq, Dv)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    grad_output: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerGradientInputs(_Arguments):
    """Inputs of mha_grad: x_q and the weights as for mha, and the gradient with respect to the output, in its shape."""

    x_q: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    grad_output: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PackedInputs(_Arguments):
    """Inputs of varlen: q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv), and boundaries of sequences, int32 (N + 1,)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PackedGradientInputs(_Arguments):
    """Inputs of varlen_grad: q, k, v as for varlen, the gradient of the output, (Tq, Hq, Dv), and boundaries."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    grad_output: np.ndarray
    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeInputs(_Arguments):
    """Inputs of merge: outputs (P, B, H, S, Dv), and lses (P, B, H, S) in float32 or wider."""

    outputs: np.ndarray
    lses: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeGradientInputs(_Arguments):
    """Inputs of merge_grad: outputs and lses as for merge, and the gradient of the output, (B, H, S, Dv)."""

    outputs: np.ndarray
    lses: np.ndarray
    grad_output: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LatentInputs(_Arguments):
    """Inputs of latent: q (B, H, Sq, D), q_rope (B, H, Sq, Dr), latents (B, Sk, R), k_rope (B, Sk, Dr), weights."""

    q: np.ndarray
    q_rope: np.ndarray
    latents: np.ndarray
    k_rope: np.ndarray
    w_uk: np.ndarray
    w_uv: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PagedInputs(_Arguments):
    """Inputs of paged: q (Tq, Hq, D), caches (pages, page size, Hkv, width), boundaries (N + 1,), table, lengths."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    cu_seqlens_q: np.ndarray
    block_table: np.ndarray
    kv_lengths: np.ndarray
    keywords: dict[str, Any] = field(default_factory=dict)
