"""(SDPA-44) Rotary embedding, for arrays of any framework."""

from __future__ import annotations

from typing import Any

from attention_conformance.impls.merging import module_of


def rotated(x: Any, cos: Any, sin: Any, place: Any, interleaved: bool) -> Any:
    """Rows x (B, H, S, D) turned by the angles of their places (B or 1, S) in tables (P, W / 2).

    Parameters
    ----------
    x
        (B, H, S, D), of any framework.
    cos, sin
        (P, W / 2): of the angle of each place and pair; columns beyond W are not turned.
    place
        (B or 1, S): the row of the tables.
    interleaved
        Whether a pair is side by side, instead of W / 2 apart.

    Returns
    -------
    Any
        (B, H, S, D).
    """
    module, half = module_of(x), cos.shape[1]
    c, s = cos[place][:, None], sin[place][:, None]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    a, b = a * c - b * s, a * s + b * c
    both = module.stack([a, b], -1).reshape(turned.shape) if interleaved else module.concatenate([a, b], -1)
    return module.concatenate([both, rest], -1)


def check_rotary(q: Any, cos: Any, sin: Any) -> None:
    """(SDPA-36) Refuse tables that do not fit each other or q (B, Hq, Sq, D).

    Parameters
    ----------
    q
        (B, Hq, Sq, D).
    cos, sin
        (P, W / 2) each, or both None.

    Raises
    ------
    ValueError
        For one table without the other, and for a shape that does not fit.
    """
    if (cos is None) != (sin is None):
        raise ValueError("rotary_cos and rotary_sin must be given together")
    if cos is not None and (cos.ndim != 2 or tuple(cos.shape) != tuple(sin.shape) or 2 * cos.shape[1] > q.shape[3]):
        shapes = f"{tuple(cos.shape)} and {tuple(sin.shape)}"
        raise ValueError(f"rotary_cos and rotary_sin must be (P, W / 2) with W up to {q.shape[3]}, got {shapes}")
