"""Gradients through ``torch.autograd`` of any function of an operator that has gradients, as ways to prepare a call.

Source: https://pytorch.org/docs/stable/generated/torch.autograd.grad.html.  The forward pass and the backward pass are
timed together, as neither is of use without the other.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from attention_conformance.impls.contract import Call, Function, as_accepted
from attention_conformance.impls.operators import OPERATORS, SDPA_GRAD
from attention_conformance.impls.torch.compiled import compile_function, warmed

#: Beginnings of the exceptions with which PyTorch says that a kernel has no backward pass for a combination.
REFUSALS = ("derivative for aten::",)


def prepare(function: Function, call: Call) -> Function:
    """Bind the plain keywords of ``gradient(function)``; nothing is compiled, nothing is cached."""
    return functools.partial(gradient(function, call.operator), **call.static)


def compiled(function: Function, call: Call) -> Function:
    """Prepare the compiled function, whose backward pass is then compiled too.

    Compiled here, forwards and backwards, by a call with zeros, so that running is only running.  Code that cannot be
    compiled as a whole raises.
    """
    return warmed(gradient(compile_function(function), call.operator), call)


@functools.cache
def gradient(function: Function, operator: str = SDPA_GRAD.name) -> Function:
    """The gradients of a function by autograd, as a function of an operator of gradients with the same keywords."""
    names = OPERATORS[operator].differentiated

    @functools.wraps(function)
    def gradients(*arguments: torch.Tensor, **keywords: Any) -> tuple[torch.Tensor, ...]:
        """The gradients of the arguments in their shapes, and of those keywords that have one and are given.

        Raises what the function raises, ValueError or TypeError for a ``grad_output`` unlike its output, and
        NotImplementedError where PyTorch has no backward pass.
        """
        given = {**dict(zip(OPERATORS[operator].arguments, arguments, strict=False)), **keywords}
        grad_output, grad_lse = given.pop("grad_output"), given.pop("grad_lse", None)
        # Leaves of a graph of their own: the caller's tensors are not made to require gradients.
        leaves = {name: given[name].detach().requires_grad_() for name in names if given.get(name) is not None}
        with torch.enable_grad():
            returned = function(**{**given, **leaves})
        output, lse = _output_and_lse(returned)
        if output.shape != grad_output.shape:
            raise ValueError(f"grad_output must have the shape of the output, {output.shape}, got {grad_output.shape}")
        if output.dtype != grad_output.dtype:
            raise TypeError(f"grad_output must have the dtype of the output, {output.dtype}, got {grad_output.dtype}")
        results, upstream = [output], [grad_output]
        if grad_lse is not None:
            if lse.shape != grad_lse.shape:
                raise ValueError(f"grad_lse must have the shape of lse, {lse.shape}, got {grad_lse.shape}")
            results, upstream = [output, lse], [grad_output, grad_lse.to(lse.dtype)]
        try:
            return torch.autograd.grad(results, tuple(leaves.values()), upstream)
        except RuntimeError as error:
            if str(error).startswith(REFUSALS):
                # says "derivative for aten::… is not implemented"
                raise NotImplementedError(str(error)) from error
            raise

    return gradients


def _output_and_lse(returned: Any) -> tuple[Any, Any]:
    """Output and lse, or None, of a function that is differentiated.  Raises TypeError for other than one or two."""
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) not in (1, 2) or not all(isinstance(each, torch.Tensor) for each in values):
        found = ", ".join(type(each).__name__ for each in values)
        raise as_accepted(TypeError(f"expected a torch tensor, or the output and lse, got {found or 'nothing'}"))
    return values[0], values[1] if len(values) == 2 else None
