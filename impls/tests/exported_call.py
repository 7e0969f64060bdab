"""Worker jobs for a call of an exported model; only the function that needs torch imports it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.onnx import IMPLEMENTATIONS


def status(name: str) -> str:
    """The reply status of a small call of one of the ONNX implementations."""
    (implementation,) = (each for each in IMPLEMENTATIONS if each.name == name)
    q, k, v = (np.ones((2, 2, length, 8), np.float32) for length in (4, 9, 9))
    return call(implementation, Request.qkv("cpu", q, k, v)).status


def has_torch() -> bool:
    """Whether this process has imported torch."""
    return "torch" in sys.modules


def branching(q: Any, k: Any, v: Any) -> Any:
    """Attention that is causal for five or more queries."""
    from attention_conformance.impls.torch import eager

    return eager.attention(q, k, v, is_causal=q.shape[2] > 4)
