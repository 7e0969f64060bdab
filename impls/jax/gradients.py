"""Gradients through ``jax.vjp`` of any function of sdpa or mha, as a way to prepare a call: eager and jitted.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.vjp.html.  Forward and backward pass are one program.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.jax import prepare as forward_only
from attention_conformance.impls.operators import OPERATORS, SDPA_GRAD


def prepare(function: Function, call: Call) -> Function:
    """As ``impls.jax.prepare.eager``, for ``gradient(function)``."""
    return forward_only.eager(gradient(function, call.operator), call)


def jitted(function: Function, call: Call) -> Function:
    """As ``impls.jax.prepare.jitted``, for ``gradient(function)``."""
    return forward_only.jitted(gradient(function, call.operator), call)


@functools.cache
def gradient(function: Function, operator: str = SDPA_GRAD.name) -> Function:
    """The function of an operator of gradients that a function of sdpa or mha has by vjp, with its keywords."""
    names = OPERATORS[operator].differentiated

    @functools.wraps(function)
    def gradients(*arguments: jax.Array, **keywords: Any) -> tuple[jax.Array, ...]:
        """The gradients of the arguments in their shapes, and of those keywords that have one and are given.

        Raises what the function raises, and ValueError for a ``grad_output`` unlike its output.
        """
        given = {**dict(zip(OPERATORS[operator].arguments, arguments, strict=False)), **keywords}
        grad_output = given.pop("grad_output")
        leaves = {name: given.pop(name) for name in names if given.get(name) is not None}

        def forward(*differentiated: jax.Array) -> jax.Array:
            return function(**dict(zip(leaves, differentiated, strict=True)), **given)

        output, backward = jax.vjp(forward, *leaves.values())
        if output.shape != grad_output.shape or output.dtype != grad_output.dtype:
            raise ValueError(
                f"grad_output must be {output.dtype}{output.shape}, got {grad_output.dtype}{grad_output.shape}"
            )
        return backward(grad_output)

    return gradients
