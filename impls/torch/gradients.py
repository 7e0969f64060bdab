"""Gradients through ``torch.autograd`` of any function of sdpa, as a way to prepare a call: eager and compiled.

Source: https://pytorch.org/docs/stable/generated/torch.autograd.grad.html.  What is timed is the forward pass and
the backward pass together, as neither is of use without the other.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from impls.contract import Call, Function
from impls.torch import prepare as forward_only

#: How PyTorch says that a kernel has no backward pass for a combination: start of the exception's text.
REFUSALS = ("derivative for aten::",)


def prepare(function: Function, call: Call) -> Function:
    """Bind the plain keywords of ``gradient(function)``; nothing is compiled, nothing is cached."""
    return functools.partial(gradient(function), **call.static)


def compiled(function: Function, call: Call) -> Function:
    """As ``prepare`` for the compiled function, whose backward pass is then compiled too.

    Compiled here, forwards and backwards, by a call with zeros, so that running is only running.  Code that cannot be
    compiled as a whole raises.
    """
    run = functools.partial(gradient(forward_only._compile(function)), **call.static)
    dtype = getattr(torch, call.dtype)
    shapes = call.shapes
    run(
        **{
            name: torch.zeros(s, dtype=forward_only._ARRAY_DTYPES.get(name, dtype), device=call.device)
            for name, s in shapes
        }
    )
    return run


@functools.cache
def gradient(function: Function) -> Function:
    """The function of sdpa_grad that a function of sdpa has by autograd, with its keywords."""

    @functools.wraps(function)
    def gradients(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        grad_output: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        **rest: Any,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v in their shapes, and of bias where it is given.

        Raises what the function raises, ValueError or TypeError for a ``grad_output`` unlike its output, and
        NotImplementedError where PyTorch has no backward pass.
        """
        # Leaves of a graph of their own: what the caller holds is not made to require gradients.
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        if bias is not None:
            leaves.append(bias.detach().requires_grad_())
            rest["bias"] = leaves[3]
        with torch.enable_grad():
            output = function(*leaves[:3], **rest)
        if output.shape != grad_output.shape:
            raise ValueError(f"grad_output must have the shape of the output, {output.shape}, got {grad_output.shape}")
        if output.dtype != grad_output.dtype:
            raise TypeError(f"grad_output must have the dtype of the output, {output.dtype}, got {grad_output.dtype}")
        try:
            return torch.autograd.grad(output, leaves, grad_output)
        except RuntimeError as error:
            if str(error).startswith(REFUSALS):
                raise NotImplementedError(str(error)) from error
            raise

    return gradients
