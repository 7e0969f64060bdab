"""Two kernels of Triton that show whether its interpreter multiplies numbers of a dtype, or their bits."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton is not installed where types are checked
def dot(given: Any, out: Any) -> None:
    """A product of two 16 × 16 matrices, in float32."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(given + at)
    tl.store(out + at, tl.dot(tile, tile, input_precision="ieee"))


@triton.jit  # type: ignore[untyped-decorator]  # Triton is not installed where types are checked
def multiply(given: Any, out: Any) -> None:
    """The square of each element, in the dtype, then as float32."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(given + at)
    tl.store(out + at, (tile * tile).to(tl.float32))
