"""Implementations in PyTorch."""

from __future__ import annotations

from impls.contract import Framework, Implementation, Profile

IMPLEMENTATIONS: tuple[Implementation, ...] = tuple(
    Implementation(name=f"torch-{n}", target=t, framework=Framework.TORCH, devices=d, profiles=p, requires=("torch", "ml_dtypes"), summary="")
    for n, t, d, p in (
        ("eager", "impls.torch.eager:attention", ("cpu", "cuda"), {}),
        ("sdpa", "impls.torch.sdpa:attention", ("cpu", "cuda"), {}),
        ("sdpa-math", "impls.torch.sdpa:math", ("cpu", "cuda"), {}),
        ("sdpa-flash", "impls.torch.sdpa:flash", ("cpu", "cuda"), {}),
        ("flex", "impls.torch.flex:attention", ("cpu", "cuda"), {}),
    )
)
