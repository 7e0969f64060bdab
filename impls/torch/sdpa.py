"""torch.nn.functional.scaled_dot_product_attention: as PyTorch dispatches it, and each of its kernels by force.

Source: https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html and
``torch.nn.attention.sdpa_kernel``.  It has one ``attn_mask``, boolean or additive, so mask and bias
together are not expressible; its causal offsets are 0 (``is_causal``) and Sk − Sq
(``torch.nn.attention.bias.causal_lower_right``).  It has no window, lengths, softcap, weights or lse.
Past keys and values are put in front of the new ones before the call, as models do.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.impls.torch.eager import with_past

#: Beginnings of the exceptions with which PyTorch says that a kernel, or the function, does not have a combination.
REFUSALS = (
    "No available kernel.",
    "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True",
)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_offset: int | torch.Tensor | None = None,
    scale: float | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
) -> Any:
    """The output (B, Hq, Sq, Dv), from the kernel that PyTorch chooses, and with a past the present.

    Raises NotImplementedError for what the function cannot express or refuses by name.
    """
    if mask is not None and bias is not None:
        # "Two types of masks are supported."
        raise NotImplementedError("attn_mask is boolean or additive: mask and bias together have no place")
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    given: Any = mask if mask is not None else bias
    if is_causal and not (isinstance(offset, int) and offset == 0):
        if not isinstance(offset, int) or offset != k.shape[-2] - q.shape[-2]:
            # "The attention masking has the form of the upper left causal bias"
            raise NotImplementedError("causal offsets are 0 (is_causal) or Sk - Sq (causal_lower_right)")
        if given is not None:
            # "An error is thrown if both attn_mask and is_causal are set."
            raise NotImplementedError("causal_lower_right takes the place of attn_mask")
        from torch.nn.attention.bias import causal_lower_right  # imports the compiler, which takes two seconds

        given, is_causal = causal_lower_right(q.shape[-2], k.shape[-2]), False
    try:
        output = scaled_dot_product_attention(
            q, k, v, attn_mask=given, is_causal=is_causal, scale=scale, enable_gqa=grouped(q, k)
        )
    except RuntimeError as error:
        if str(error).startswith(REFUSALS):
            # "Each of the fused kernels has specific input limitations."
            raise NotImplementedError(str(error)) from error
        raise
    return (output, *present) if present else output


def grouped(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether there are more query heads than key heads, which the function must know."""
    return q.ndim == k.ndim >= 3 and q.shape[-3] != k.shape[-3]


def masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv) with what a model that is exported for one shape has: a mask or ``is_causal``."""
    return attention(q, k, v, mask=mask, is_causal=is_causal)


def aten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv) of the flash operator of the CPU, and on request its lse (B, Hq, Sq).

    A mask becomes the biases that ``scaled_dot_product_attention`` makes of it before it calls the operator.  Raises
    NotImplementedError for mask and bias together, and for a call in which that function does not call the operator.
    """
    if mask is not None and bias is not None:
        # "Two types of masks are supported."
        raise NotImplementedError("attn_mask is additive: mask and bias together have no place")
    if mask is not None:
        bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    chosen = torch._fused_sdp_choice(q, k, v, bias, 0.0, is_causal, scale=scale, enable_gqa=grouped(q, k))
    if chosen != SDPBackend.FLASH_ATTENTION.value:
        # says "No available kernel."
        raise NotImplementedError("scaled_dot_product_attention does not take the flash kernel here")
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale
    )
    return (output, lse) if return_lse else output


def _forced(kernel: SDPBackend) -> Any:
    """``attention`` with one kernel allowed and no other."""

    @functools.wraps(attention)
    def forced(*arguments: Any, **keywords: Any) -> Any:
        with sdpa_kernel(kernel):
            return attention(*arguments, **keywords)

    forced.__name__ = forced.__qualname__ = kernel.name.lower()
    forced.__doc__ = f"``attention`` by the kernel {kernel.name}; NotImplementedError where it refuses."
    return forced


math = _forced(SDPBackend.MATH)
flash = _forced(SDPBackend.FLASH_ATTENTION)
efficient = _forced(SDPBackend.EFFICIENT_ATTENTION)
cudnn = _forced(SDPBackend.CUDNN_ATTENTION)
