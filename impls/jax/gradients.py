"""Gradients through ``jax.vjp`` of any function of sdpa, as a way to prepare a call: eager and jitted.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.vjp.html.  Forward and backward pass are one program.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from impls.contract import Call, Function
from impls.jax import prepare as forward_only


def prepare(function: Function, call: Call) -> Function:
    """As ``impls.jax.prepare.eager``, for ``gradient(function)``."""
    return forward_only.eager(gradient(function), call)


def jitted(function: Function, call: Call) -> Function:
    """As ``impls.jax.prepare.jitted``, for ``gradient(function)``."""
    return forward_only.jitted(gradient(function), call)


def jitted_static(function: Function, call: Call) -> Function:
    """As ``impls.jax.prepare.jitted_static``, for ``gradient(function)``."""
    return forward_only.jitted_static(gradient(function), call)


@functools.cache
def gradient(function: Function) -> Function:
    """The function of sdpa_grad that a function of sdpa has by automatic differentiation, with its keywords."""

    @functools.wraps(function)
    def gradients(
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        grad_output: jax.Array,
        *,
        bias: jax.Array | None = None,
        **rest: Any,
    ) -> tuple[jax.Array, ...]:
        """The gradients of q, k and v in their shapes, and of bias where it is given.

        Raises what the function raises, and ValueError for a ``grad_output`` unlike its output.
        """

        def forward(*leaves: jax.Array) -> jax.Array:
            return function(*leaves[:3], **rest, **({} if bias is None else {"bias": leaves[3]}))

        output, backward = jax.vjp(forward, q, k, v, *(() if bias is None else (bias,)))
        if output.shape != grad_output.shape or output.dtype != grad_output.dtype:
            raise ValueError(
                f"grad_output must be {output.dtype}{output.shape}, got {grad_output.dtype}{grad_output.shape}"
            )
        return backward(grad_output)

    return gradients
