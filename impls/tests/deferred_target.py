"""A module that only the test of deferred functions imports."""

from __future__ import annotations

from typing import Any


def attention(q: Any, k: Any, v: Any, *, scale: Any = None) -> tuple[Any, ...]:
    """The arguments it was called with."""
    return q, k, v, scale


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
