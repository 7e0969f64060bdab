"""Transformers' attention function ``flex_attention``, with the masks that its models make for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.nn.attention.flex_attention import create_block_mask
from transformers.integrations.flex_attention import flex_attention_forward


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """A mask is a ``BlockMask``, a bias a tensor; ``softcap`` and ``s_aux``."""
    if mask is not None and bias is not None:
        raise NotImplementedError("attention_mask: Union[torch.Tensor, BlockMask]")
    given = bias
    if bias is not None:
        given = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        given = given.expand(q.shape[0], given.shape[1], q.shape[2], k.shape[2])
    if mask is not None:
        full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        full = full.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        given = create_block_mask(lambda b, h, i, j: full[b, h, i, j], *full.shape, device="cpu")  # type: ignore[misc]
    module = SimpleNamespace(training=False)
    options = {"scaling": scale, "softcap": softcap, "s_aux": sinks}
    return flex_attention_forward(module, q, k, v, given, **options)[0].transpose(1, 2)
