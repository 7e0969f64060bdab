"""Modules in KernelBench's form as functions of q, k and v."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_a_module_is_as_exact_after_a_narrower_dtype_as_before() -> None:
    """After a call in a narrower dtype, weights and buffers are rounded again from the original ones."""
    from attention_conformance.impls.torch.kernelbench import function

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), 1 / 3))
            self.register_buffer("shift", torch.full((3,), 1 / 7))

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return v * self.weight + self.shift

    attention = function(Scaled(), (0, 1, 2), "BHSD")
    wide = torch.ones(1, 1, 2, 3)
    before = attention(wide, wide, wide)
    assert attention(*[wide.half()] * 3).dtype == torch.float16
    assert torch.equal(attention(wide, wide, wide), before)
