"""Ring attention over ranks of torch.distributed, written out: blocks of keys go from rank to rank.

Source: Liu, Zaharia & Abbeel 2023 (ring attention), with the online softmax of Milakov & Gimelshein 2018.  Shards are
contiguous; lengths need not divide by the ranks, and shards may be empty.  Half precision is computed in float32.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import and_
from typing import Any

import torch
import torch.distributed as dist

from attention_conformance.impls.validate import check_inputs


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any,
    lengths: tuple[int, int],
    is_causal: bool = False,
    causal_offset: int | torch.Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """The output of a rank's rows, and on request their lse; rows and keys are counted over all ranks (SDPA-14)."""
    check_inputs(q, k, v, None, None, sinks)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    dtype, work, repeats = q.dtype, torch.promote_types(q.dtype, torch.float32), q.shape[1] // k.shape[1]
    shard, block = (-(-length // size) for length in lengths)
    rows = rank * shard + torch.arange(q.shape[2])[:, None]
    scale = (1 / math.sqrt(q.shape[3]) if q.shape[3] else 1.0) if scale is None else scale
    before, after = (scale, 1.0) if abs(scale) <= 1 else (1.0, scale)
    top = torch.full((*q.shape[:3], 1), -math.inf, dtype=work)
    if sinks is not None:
        top = sinks.to(work).reshape(-1, 1, 1).expand(top.shape)
    total = (top != -math.inf).to(work)
    sums = torch.zeros((*q.shape[:3], v.shape[3]), dtype=work)
    reached = torch.zeros((*q.shape[:3], 3 * v.shape[3]), dtype=work)
    held, widths = torch.cat([k, v], dim=3), (k.shape[3], v.shape[3])
    for step in range(size):
        source = (rank - step) % size
        keys = source * block + torch.arange(held.shape[2])
        own_k, own_v = (x.repeat_interleave(repeats, dim=1).to(work) for x in held.split(widths, dim=3))
        scores = (q.to(work) * before) @ own_k.mT * after
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        allowed = _allowed(rows, keys, is_causal, causal_offset, window, kv_lengths).expand(scores.shape)
        scores = scores.masked_fill(~allowed, -math.inf)
        new = scores.detach().amax(-1, keepdim=True) if len(keys) else top
        new = torch.maximum(top, new).detach()  # nothing depends on the maximum, so it is a constant
        base = new.masked_fill(new == -math.inf, 0)
        powers, shrink = torch.exp(scores - base), torch.exp(top - base)
        total = total * shrink + powers.sum(-1, keepdim=True)
        finite = own_v.isfinite()
        sums = sums * shrink + powers @ own_v.masked_fill(~finite, 0)
        if not finite.all():  # such a value reaches only rows that may see its key; 0 · NaN would reach others too
            places = torch.cat([own_v.isnan(), own_v == math.inf, own_v == -math.inf], dim=3)
            reached = reached + allowed.to(work) @ places.to(work)
        top = new
        if step < size - 1:
            arriving = min(max(lengths[1] - (source - 1) % size * block, 0), block)
            held = _Passed.apply(held, arriving, group)
    total = total.masked_fill(total == 0, 1)
    output = sums / total
    for kind, special in zip(reached.tensor_split(3, dim=3), (math.nan, math.inf, -math.inf), strict=True):
        output = torch.where(kind > 0, output + special, output)
    return (output.to(dtype), (top + total.log())[..., 0]) if return_lse else output.to(dtype)


class _Passed(torch.autograd.Function):
    """Exchange of what this rank has for what the rank before has; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, held: torch.Tensor, arriving: int, group: Any) -> torch.Tensor:
        ctx.size, ctx.group = held.shape[2], group
        return _exchanged(held, arriving, 1, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _exchanged(grads[0], ctx.size, -1, ctx.group), None, None


def passed_on(held: torch.Tensor, group: Any) -> torch.Tensor:
    """Tensor of the rank before, (B, H, keys, width) with as many keys."""
    return _exchanged(held, held.shape[2], 1, group)


def _exchanged(sent: torch.Tensor, arriving: int, by: int, group: Any) -> torch.Tensor:
    """Tensor that arrives from the other side, once this rank's is sent ``by`` ranks on."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    received = sent.new_empty((*sent.shape[:2], arriving, sent.shape[3]))
    works = []
    if sent.numel():
        works.append(dist.P2POp(dist.isend, sent.contiguous(), (rank + by) % size, group))
    if received.numel():
        works.append(dist.P2POp(dist.irecv, received, (rank - by) % size, group))
    for work in dist.batch_isend_irecv(works) if works else ():
        work.wait()
    return received


def _allowed(
    rows: torch.Tensor,
    keys: torch.Tensor,
    is_causal: bool,
    causal_offset: int | torch.Tensor | None,
    window: tuple[int | None, int | None] | None,
    kv_lengths: torch.Tensor | None,
) -> torch.Tensor:
    """SDPA-9 to SDPA-12: which keys the rows may attend to, broadcastable to (B, 1, rows, keys)."""
    offset = 0 if causal_offset is None else causal_offset
    diagonal = rows + (offset.reshape(-1, 1, 1, 1) if isinstance(offset, torch.Tensor) else offset)
    left, right = window or (None, None)
    tests = [torch.ones((len(rows), len(keys)), dtype=torch.bool)]
    if is_causal:
        tests.append(keys <= diagonal)
    if left is not None:
        tests.append(keys >= diagonal - left)
    if right is not None:
        tests.append(keys <= diagonal + right)
    if kv_lengths is not None:
        tests.append(keys < kv_lengths.reshape(-1, 1, 1, 1))
    return reduce(and_, tests)


vars(attention).update(ranks=(2, 3, 4, 8), uneven=True, dtypes=("float32", "bfloat16"), profiles={"bfloat16": "wide"})
