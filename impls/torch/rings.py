"""Attention over ranks of torch.distributed, as PyTorch publishes it: its ring, and heads of DTensor.

The rings are the template of ``torch.distributed.tensor.experimental``, forward and backward, over the flash kernel of
the CPU, as ``context_parallel`` calls it over those of a GPU, with both ways to rotate and with load balancing or
without; ``context_parallel`` itself is ``public``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor.experimental._context_parallel import _attention as published
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten


@contextlib.contextmanager
def _options(balanced: bool, rotation: str) -> Iterator[None]:
    """The options that the template reads, which hold for the process."""
    options = published._cp_options
    before = options.enable_load_balance, options.rotate_method
    options.enable_load_balance, options.rotate_method = balanced, published._RotateMethod[rotation]
    try:
        yield
    finally:
        options.enable_load_balance, options.rotate_method = before


class _Ring(torch.autograd.Function):
    """The template over the kernel, and its own backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, group: Any, is_causal: bool, scale: Any, how: Any) -> torch.Tensor:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu
        with _options(*how):
            output, lse = published._templated_ring_attention(
                group, 2, kernel, query=q, key=k, value=v, is_causal=is_causal, scale=scale
            )
        ctx.save_for_backward(q, k, v, output, lse)
        ctx.group, ctx.is_causal, ctx.scale, ctx.how = group, is_causal, scale, how
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, output, lse = ctx.saved_tensors
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        with _options(*ctx.how):
            found = published._templated_ring_attention_backward(
                ctx.group,
                2,
                kernel,
                grads[0],
                "grad_out",
                q,
                k,
                v,
                output,
                lse,
                ctx.is_causal,
                dropout_p=0.0,
                scale=ctx.scale,
            )
        return (*found[:3], None, None, None, None)


def ring(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    is_causal: bool = False,
    scale: float | None = None,
    how: tuple[bool, str] = (False, "ALL_GATHER"),
) -> torch.Tensor:
    """Contiguous shards; keys and values of all ranks are gathered once, as by default."""
    result: torch.Tensor = _Ring.apply(q, k, v, group, is_causal, scale, how)
    return result


def rotating(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Contiguous shards; keys and values go round rank by rank."""
    return ring(q, k, v, group=group, is_causal=is_causal, scale=scale, how=(False, "ALL_TO_ALL"))


def balanced(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Shards in zigzag, and keys and values that go round rank by rank."""
    return _balanced(q, k, v, group, is_causal, scale, "ALL_TO_ALL")


def balanced_gathered(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Shards in zigzag, and keys and values of all ranks gathered once."""
    return _balanced(q, k, v, group, is_causal, scale, "ALL_GATHER")


def _balanced(q: Any, k: Any, v: Any, group: Any, is_causal: bool, scale: Any, rotation: str) -> torch.Tensor:
    if not is_causal:
        raise NotImplementedError("Load balancing requires `is_causal=True`.")
    return ring(q, k, v, group=group, is_causal=is_causal, scale=scale, how=(True, rotation))


def public(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    scale: float | None = None,
) -> torch.Tensor:
    """``context_parallel`` around scaled_dot_product_attention, as published; by the composition, as only that has
    gradients on the CPU.

    It shards a buffer of positions, as a model's; q, k and v are already a rank's.  It is for as many keys as rows:
    with others every rank gets all rows.  There is no ``is_causal``, as in ``heads``.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.experimental import context_parallel

    mesh = DeviceMesh.from_group(group, "cpu")
    positions, grouped = torch.arange(2 * mesh.size()), q.shape[1] != k.shape[1]
    parallel = context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0])
    with _options(False, "ALL_GATHER"), sdpa_kernel(SDPBackend.MATH), parallel:
        # It replaces the function in its module, so the function must be called through the module.
        found: Any = functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    result: torch.Tensor = found.to_local() if hasattr(found, "to_local") else found
    return result


def heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    scale: float | None = None,
) -> torch.Tensor:
    """SDPA of DTensors whose heads are sharded, by the kernel that they have on the CPU.

    There is no ``is_causal``: the library raises for it, "got mixed torch.Tensor and DTensor", as its mask is a plain
    tensor (``attention-conformance ledger issue torch-dtensor-causal``).
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(group, "cpu")
    grouped = q.shape[1] != k.shape[1]
    q, k, v = (DTensor.from_local(each, mesh, [Shard(1)], run_check=False) for each in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):  # "…flash_attention_for_cpu does not have a sharding strategy registered"
        found: Any = functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    result: torch.Tensor = found.to_local()
    return result


for _each in (ring, rotating, balanced, balanced_gathered, public, heads):
    vars(_each).update(ranks=(2, 3, 4, 8), dtypes=("float32", "bfloat16"), profiles={"bfloat16": "fused"})
for _each in (ring, rotating, balanced, balanced_gathered):
    vars(_each).update(equal_widths=True)  # of the flash kernel of the CPU
for _each in (balanced, balanced_gathered):
    vars(_each).update(sharding="zigzag")
vars(public).update(length_relation="Sq = Sk")
vars(heads).update(sharding="heads", ranks=(2, 4, 8))  # heads must divide by all of them: three would make 24
