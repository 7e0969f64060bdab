"""(MLA-1 to 8) Attention over latents in float64 NumPy, in its expanded and in its absorbed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.spec.sdpa import Array, Expected, InvalidInput, sdpa
from attention_conformance.impls.validate import check_latent


@dataclass(frozen=True)
class LatentExpected:
    """Expected result of a call, with intermediate results for an error analysis; all float64.

    Shapes: ``output`` (B, H, Sq, Dv), ``lse`` (B, H, Sq).  ``expanded`` is sdpa over each head's keys and values,
    ``absorbed`` sdpa over the latents, whose output is (B, H, Sq, R); the arrays are the arguments.
    """

    output: Array
    lse: Array
    expanded: Expected
    absorbed: Expected
    q: Array
    latents: Array
    w_uk: Array
    w_uv: Array


def latent(
    q: Array,
    q_rope: Array,
    latents: Array,
    k_rope: Array,
    w_uk: Array,
    w_uv: Array,
    *,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    kv_lengths: Array | None = None,
    scale: float | None = None,
    rows: Array | None = None,
) -> LatentExpected:
    """Attention over latents as SPEC.md defines it.

    Parameters
    ----------
    q, q_rope
        (B, H, Sq, D) and (B, H, Sq, Dr): the part of a query for the projected keys, and the rotary part.
    latents, k_rope
        (B, Sk, R) and (B, Sk, Dr), shared by all heads.
    w_uk, w_uv
        (H, R, D) and (H, R, Dv): projections to a head's keys and values.
    is_causal, causal_offset, kv_lengths, scale
        As for sdpa (MLA-5); ``scale`` is 1/√(D + Dr) by default (MLA-4).
    rows
        Indices of query rows: only those are computed, in that order.

    Returns
    -------
    LatentExpected
        Results and intermediate results, in float64.

    Raises
    ------
    InvalidInput
        Where MLA-8 requires an exception.
    """
    check(q, q_rope, latents, k_rope, w_uk, w_uv)
    q, q_rope, latents, k_rope, w_uk, w_uv = (
        array.astype(np.float64) for array in (q, q_rope, latents, k_rope, w_uk, w_uv)
    )
    if scale is None:
        scale = 1 / np.sqrt(q.shape[3] + q_rope.shape[3])
    c, rope, heads = latents[:, None], k_rope[:, None], q.shape[1]
    options: dict[str, Any] = {
        "is_causal": is_causal,
        "causal_offset": causal_offset,
        "kv_lengths": kv_lengths,
        "scale": scale,
        "rows": rows,
    }
    with np.errstate(all="ignore"):
        keys = np.concatenate([c @ w_uk, np.repeat(rope, heads, axis=1)], axis=3)
        expanded = sdpa(np.concatenate([q, q_rope], axis=3), keys, c @ w_uv, **options)
        absorbed = sdpa(
            np.concatenate([q @ w_uk.swapaxes(1, 2), q_rope], axis=3), np.concatenate([c, rope], axis=3), c, **options
        )
    q = q if rows is None else q[:, :, np.asarray(rows)]
    return LatentExpected(expanded.output, expanded.lse, expanded, absorbed, q, latents, w_uk, w_uv)


def check(*arrays: Array) -> None:
    """(MLA-8) Refuse arguments that do not fit together.

    Parameters
    ----------
    arrays
        The six arguments in their order.

    Raises
    ------
    InvalidInput
        For the first argument that does not fit.
    """
    try:
        check_latent(*arrays)
    except (TypeError, ValueError) as error:
        raise InvalidInput("MLA-8", str(error)) from None
