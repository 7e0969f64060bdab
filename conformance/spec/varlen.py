"""(VARLEN-…) Attention over packed sequences in float64 NumPy: the reference of sdpa, sequence by sequence.

Attention is not defined again here: each sequence is a batch element of sdpa, alone or with others of its lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec.sdpa import Array, Expected, InvalidInput, sdpa
from attention_conformance.impls.validate import check_pack_bias


@dataclass(frozen=True)
class Part:
    """G sequences of the same lengths Sq and Sk: rows of the pack (G, Sq), and sdpa's results for a batch of G."""

    rows: Array
    expected: Expected


@dataclass(frozen=True)
class PackedExpected:
    """Expected results of a pack, in float64: output (Tq, Hq, Dv), lse (Hq, Tq), and the parts that make them up."""

    output: Array
    lse: Array
    parts: tuple[Part, ...]


def varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    bias: Array | None = None,
) -> PackedExpected:
    """Attention over packed sequences as SPEC.md defines it.

    Parameters
    ----------
    q, k, v
        (Tq, Hq, D), (Tk, Hkv, D) and (Tk, Hkv, Dv), of one floating dtype (VARLEN-1).
    cu_seqlens_q, cu_seqlens_k
        (N + 1,) each: sequence n has the rows from element n up to element n + 1.
    is_causal, causal_offset, window
        As for sdpa, per sequence; the offset is one for all, or (N,), and Sk − Sq by default (VARLEN-3).
    scale, softcap, sinks
        As for sdpa (VARLEN-5).
    max_seqlen_q, max_seqlen_k
        Lengths that change no result (VARLEN-6), and are the size of ``bias``.
    bias
        (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k): for row i and key j of each sequence (VARLEN-16).

    Returns
    -------
    PackedExpected
        Results of every row, and the sdpa results that they come from.

    Raises
    ------
    InvalidInput
        Where VARLEN-11 or VARLEN-16 requires an exception.
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    check_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    starts, ends = cu_seqlens_k[:-1], cu_seqlens_k[1:]
    keys = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    return attend(
        q,
        cu_seqlens_q,
        [k[rows] for rows in keys],
        [v[rows] for rows in keys],
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        bias=bias,
    )


def attend(
    q: Array,
    cu_seqlens_q: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    *,
    is_causal: bool,
    causal_offset: int | Array | None,
    window: tuple[int | None, int | None] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Array | None,
    bias: Array | None = None,
) -> PackedExpected:
    """(VARLEN-2) Every sequence as if alone: its queries over its own keys (Sk, Hkv, D) and values (Sk, Hkv, Dv).

    Parameters
    ----------
    q
        Packed queries (Tq, Hq, D).
    cu_seqlens_q
        Boundaries of the sequences' queries, (N + 1,).
    keys
        Keys of each sequence, (Sk, Hkv, D).
    values
        Values of each sequence, (Sk, Hkv, Dv).
    is_causal
        Whether row i attends to keys up to i + offset.
    causal_offset
        Offset of the diagonal, one or (N,).
    window
        Keys to the left and right of the diagonal; None for all.
    scale
        None for 1/√D.
    softcap
        Limit of the scores; None for none.
    sinks
        (Hq,).
    bias
        (N or 1, Hq or 1, longest queries, longest keys).

    Returns
    -------
    PackedExpected
        Output (Tq, Hq, Dv) and lse (Hq, Tq), float64.
    """
    lengths = [
        (int(end) - int(start), len(k)) for start, end, k in zip(cu_seqlens_q, cu_seqlens_q[1:], keys, strict=False)
    ]
    total, heads = q.shape[:2]
    output = np.zeros((total, heads, values[0].shape[2] if values else 0))
    lse = np.full((heads, total), -np.inf)
    parts = []
    for queries, count in dict.fromkeys(lengths):
        members = [n for n, each in enumerate(lengths) if each == (queries, count)]
        rows = np.array([np.arange(queries) + int(cu_seqlens_q[n]) for n in members]).reshape(len(members), queries)
        offset = np.broadcast_to(count - queries if causal_offset is None else causal_offset, len(lengths))  # VARLEN-3
        expected = sdpa(
            q[rows].swapaxes(1, 2),
            np.stack([keys[n] for n in members]).swapaxes(1, 2),
            np.stack([values[n] for n in members]).swapaxes(1, 2),
            is_causal=is_causal,
            causal_offset=offset[members],
            window=window,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            bias=None if bias is None else of_sequences(bias, members)[:, :, :queries, :count],
        )
        output[rows] = expected.output.swapaxes(1, 2)
        lse[:, rows] = expected.lse.swapaxes(0, 1)
        parts.append(Part(rows, expected))
    return PackedExpected(output, lse, tuple(parts))


def of_sequences(bias: Array, members: list[int]) -> Array:
    """(VARLEN-16) The bias of some sequences, which may share one.

    Parameters
    ----------
    bias
        (N or 1, Hq or 1, longest queries, longest keys).
    members
        Indices of sequences, G of them.

    Returns
    -------
    Array
        (G or 1, Hq or 1, longest queries, longest keys).
    """
    return bias if len(bias) == 1 else bias[members]


def check_bias(
    bias: Array | None, q: Array, cu_seqlens_q: Array, max_seqlen_q: int | None, max_seqlen_k: int | None
) -> None:
    """(VARLEN-16) Refuse a bias that does not fit.

    Parameters
    ----------
    bias
        (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k), or None.
    q
        Packed queries (Tq, Hq, D).
    cu_seqlens_q
        Boundaries of the sequences' queries, (N + 1,).
    max_seqlen_q, max_seqlen_k
        As given; None and 0 are ignored.

    Raises
    ------
    InvalidInput
        For a dtype or shape that does not fit.
    """
    try:
        check_pack_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    except (TypeError, ValueError) as error:
        raise InvalidInput("VARLEN-16", str(error)) from None


def check_packs(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array) -> None:
    """(VARLEN-11) Refuse packs that do not fit together.

    Parameters
    ----------
    q
        Packed queries (Tq, Hq, D).
    k
        Packed keys (Tk, Hkv, D).
    v
        Packed values (Tk, Hkv, Dv).
    cu_seqlens_q
        Boundaries of the sequences' queries, (N + 1,).
    cu_seqlens_k
        Boundaries of the sequences' keys, (N + 1,).

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    if not q.ndim == k.ndim == v.ndim == 3:
        raise InvalidInput("VARLEN-11", f"q, k, v have ranks {q.ndim}, {k.ndim}, {v.ndim}")
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.ndim != 1:
        raise InvalidInput("VARLEN-11", f"boundaries of shapes {cu_seqlens_q.shape} and {cu_seqlens_k.shape}")
    if len(k) != len(v):
        raise InvalidInput("VARLEN-11", f"{len(k)} keys and {len(v)} values")
    check_heads("VARLEN-11", q, k, v)


def check_heads(clause: str, q: Array, k: Array, v: Array) -> None:
    """(SDPA-32, SDPA-33, SDPA-35) Refuse arrays (…, heads, width) whose dtypes, widths or heads do not fit.

    Parameters
    ----------
    clause
        Clause that the exception names.
    q
        Packed queries (Tq, Hq, D).
    k
        Keys (…, Hkv, D).
    v
        Values (…, Hkv, Dv).

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidInput(clause, f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise InvalidInput(clause, f"q has width {q.shape[-1]}, k has width {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2] or k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise InvalidInput(clause, f"q, k, v have {q.shape[-2]}, {k.shape[-2]}, {v.shape[-2]} heads")
