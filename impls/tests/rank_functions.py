"""Functions over ranks of torch: some correct ones, and some whose second rank does something else than the first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import pad, scaled_dot_product_attention

Function = Callable[..., Any]


def declared(**attributes: Any) -> Callable[[Function], Function]:
    """A decorator that sets attributes: two ranks, float32, and those that are given."""

    def decorate(function: Function) -> Function:
        vars(function).update({"ranks": 2, "dtypes": ("float32",), **attributes})
        return function

    return decorate


def gathered(array: torch.Tensor, group: Any) -> torch.Tensor:
    """The shards of all ranks, concatenated; all_gather's own backward pass needs contiguous gradients."""
    rank, ranks, length = dist.get_rank(group), dist.get_world_size(group), array.shape[2]
    return all_reduce(pad(array, (0, 0, rank * length, (ranks - 1 - rank) * length)), group=group)  # type: ignore[no-any-return]


@declared()
def right(q: Any, k: Any, v: Any, *, group: Any, lengths: Any = None, is_causal: bool = False) -> torch.Tensor:
    """Attention over the keys of all ranks; the causal mask is that of the rank's rows."""
    k, v = gathered(k, group), gathered(v, group)
    assert lengths is None or lengths[1] == k.shape[2]
    rows = dist.get_rank(group) * q.shape[2] + torch.arange(q.shape[2])
    mask = torch.arange(k.shape[2]) <= rows[:, None] if is_causal else None
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


@declared(sharding="heads")
def heads(q: Any, k: Any, v: Any, *, group: Any, is_causal: bool = False) -> torch.Tensor:
    """Attention in which each rank computes its own heads."""
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


def second(group: Any) -> bool:
    """Whether this is rank 1."""
    return bool(dist.get_rank(group) == 1)


@declared()
def dies(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """The second rank dies by a signal."""
    if second(group):
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(q, k, v, group=group)


@declared(rank_seconds=4)
def hangs(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """The first rank returns, the second one sleeps."""
    time.sleep(1000 * second(group))
    return torch.zeros_like(q)


@declared()
def raises(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """The second rank raises; the first one waits for its shard."""
    if second(group):
        raise ValueError("no such block")
    return right(q, k, v, group=group)


@declared()
def refuses(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """Both ranks refuse, so that nothing must be restarted."""
    raise NotImplementedError("five heads")


@declared()
def accepts(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """Accept any input, and return half a shard."""
    return q[:, :, :1]


@declared(replicated=True)
def disagrees(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """Each rank returns the whole result, and the second one adds 1 to it."""
    return gathered(right(q, k, v, group=group), group) + second(group)


@declared()
def writes(q: Any, k: Any, v: Any, *, group: Any) -> torch.Tensor:
    """The second rank writes into its shard of k."""
    output = right(q, k, v, group=group)
    if second(group):
        k += 1
    return output
