"""Merging of partial results in jax.numpy; half precision is computed in float32 and rounded once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.nn import logsumexp

from attention_conformance.impls.validate import check_merge


def merge(outputs: jax.Array, lses: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights by log-sum-exp over the parts; (B, H, S, Dv) and (B, H, S).

    Raises ValueError for inputs that do not fit together (MERGE-15).
    """
    check_merge(outputs, lses)
    empty = jnp.isneginf(lses)
    none = empty.all(axis=0)
    # Where no part has a key, 0 replaces −inf: log and exp have no derivative there, and NaN · 0 is NaN.
    used = jnp.where(none, 0, lses)
    lse = logsumexp(used, axis=0)
    weights = jnp.exp(used - lse)
    parts = jnp.where(empty[..., None], 0, outputs.astype(lses.dtype))
    output = (weights[..., None] * parts).sum(axis=0).astype(outputs.dtype)
    return output, jnp.where(none, -jnp.inf, lse)
