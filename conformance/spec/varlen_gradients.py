"""(GRAD-30 to 34) Gradients of packed sequences in float64 NumPy: the gradients of sdpa, sequence by sequence.

Gradients are not defined again here: each sequence is a batch element of sdpa_grad, alone or with others of its
lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec.gradients import GradExpected, sdpa_grad
from attention_conformance.conformance.spec.sdpa import Array, InvalidInput
from attention_conformance.conformance.spec.varlen import check_packs


@dataclass(frozen=True)
class GradPart:
    """G sequences of the same lengths Sq and Sk: rows (G, Sq) and keys (G, Sk) of the pack, and their gradients."""

    rows: Array
    keys: Array
    expected: GradExpected


@dataclass(frozen=True)
class PackedGradExpected:
    """Gradients of a pack, in float64 and in the shapes of q, k and v, and the parts that make them up."""

    grad_q: Array
    grad_k: Array
    grad_v: Array
    parts: tuple[GradPart, ...]


def varlen_grad(
    q: Array,
    k: Array,
    v: Array,
    grad_output: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> PackedGradExpected:
    """The gradients of a loss whose gradient with respect to the output of varlen is ``grad_output``.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, causal_offset, window, scale, softcap
        As for varlen.
    grad_output
        (Tq, Hq, Dv), of the dtype of q.
    max_seqlen_q, max_seqlen_k
        Lengths that change no result (VARLEN-6).

    Returns
    -------
    PackedGradExpected
        Zeros for a row or key in no sequence, a row without keys, and a key without rows (GRAD-32).

    Raises
    ------
    InvalidInput
        Where VARLEN-11 or GRAD-34 requires an exception.
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    if grad_output.shape != (*q.shape[:2], v.shape[2]) or grad_output.dtype != q.dtype:
        raise InvalidInput("GRAD-34", f"grad_output is {grad_output.dtype}{grad_output.shape}")
    starts = cu_seqlens_q[:-1].astype(int), cu_seqlens_k[:-1].astype(int)
    lengths = list(zip(np.diff(cu_seqlens_q).tolist(), np.diff(cu_seqlens_k).tolist(), strict=True))
    grad_q, grad_k, grad_v = (np.zeros(array.shape) for array in (q, k, v))
    parts = []
    for queries, count in dict.fromkeys(lengths):
        members = [n for n, each in enumerate(lengths) if each == (queries, count)]
        rows, keys = (
            start[members][:, None] + np.arange(length) for start, length in zip(starts, (queries, count), strict=True)
        )
        offset = np.broadcast_to(count - queries if causal_offset is None else causal_offset, len(lengths))  # VARLEN-3
        own = ((q, rows), (k, keys), (v, keys), (grad_output, rows))
        expected = sdpa_grad(
            *(array[at].swapaxes(1, 2) for array, at in own),
            is_causal=is_causal,
            causal_offset=offset[members],
            window=window,
            scale=scale,
            softcap=softcap,
        )
        grad_q[rows] = expected.grad_q.swapaxes(1, 2)
        grad_k[keys] = expected.grad_k.swapaxes(1, 2)
        grad_v[keys] = expected.grad_v.swapaxes(1, 2)
        parts.append(GradPart(rows, keys, expected))
    return PackedGradExpected(grad_q, grad_k, grad_v, tuple(parts))
