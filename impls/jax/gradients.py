"""Gradients through ``jax.vjp`` of any function of an operator that has gradients, as ways to prepare a call.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.vjp.html.  Forward and backward pass are one program.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention_conformance.impls.contract import Call, Function, as_accepted
from attention_conformance.impls.jax import prepare as forward_only
from attention_conformance.impls.operators import OPERATORS, SDPA_GRAD


def prepare(function: Function, call: Call) -> Function:
    """Prepare ``gradient(function)`` as ``impls.jax.prepare.eager`` does a function."""
    return forward_only.eager(gradient(function, call.operator), call)


def jitted(function: Function, call: Call) -> Function:
    """Prepare ``gradient(function)`` as ``impls.jax.prepare.jitted`` does a function."""
    return forward_only.jitted(gradient(function, call.operator), call)


@functools.cache
def gradient(function: Function, operator: str = SDPA_GRAD.name) -> Function:
    """The gradients of a function by vjp, as a function of an operator of gradients with the same keywords."""
    names = OPERATORS[operator].differentiated

    @functools.wraps(function)
    def gradients(*arguments: jax.Array, **keywords: Any) -> tuple[jax.Array, ...]:
        """The gradients of the arguments in their shapes, and of those keywords that have one and are given.

        Raises what the function raises, and ValueError for a ``grad_output`` unlike its output.
        """
        given = {**dict(zip(OPERATORS[operator].arguments, arguments, strict=False)), **keywords}
        grad_output, grad_lse = given.pop("grad_output"), given.pop("grad_lse", None)
        leaves = {name: given.pop(name) for name in names if given.get(name) is not None}

        def forward(*differentiated: jax.Array) -> Any:
            return function(**dict(zip(leaves, differentiated, strict=True)), **given)

        returned, backward = jax.vjp(forward, *leaves.values())
        output, lse = _output_and_lse(returned)
        if output.shape != grad_output.shape or output.dtype != grad_output.dtype:
            raise ValueError(
                f"grad_output must be {output.dtype}{output.shape}, got {grad_output.dtype}{grad_output.shape}"
            )
        if lse is None:
            return backward(grad_output)
        grad_lse = jnp.zeros_like(lse) if grad_lse is None else grad_lse
        if lse.shape != grad_lse.shape:
            raise ValueError(f"grad_lse must have the shape of lse, {lse.shape}, got {grad_lse.shape}")
        return backward((grad_output, grad_lse.astype(lse.dtype)))

    return gradients


def _output_and_lse(returned: Any) -> tuple[jax.Array, jax.Array | None]:
    """Output and lse, or None, of a function that is differentiated.  Raises TypeError for other than one or two."""
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) not in (1, 2) or not all(isinstance(each, jax.Array) for each in values):
        found = ", ".join(type(each).__name__ for each in values)
        raise as_accepted(TypeError(f"expected a JAX array, or the output and lse, got {found or 'nothing'}"))
    return values[0], values[1] if len(values) == 2 else None
