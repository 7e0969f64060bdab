"""Merging of partial results in jax.numpy; half precision is computed in float32 and rounded once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.nn import logsumexp

from attention_conformance.impls.validate import check_merge


def merge(outputs: jax.Array, lses: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights by log-sum-exp over the parts; (B, H, S, Dv) and (B, H, S).

    Raises ValueError for what does not fit together (MERGE-15).
    """
    check_merge(outputs, lses)
    lse = logsumexp(lses, axis=0)
    weights = jnp.exp(lses - jnp.where(jnp.isneginf(lse), 0, lse))
    parts = jnp.where(jnp.isneginf(lses)[..., None], 0, outputs.astype(lses.dtype))
    return (weights[..., None] * parts).sum(axis=0).astype(outputs.dtype), lse
