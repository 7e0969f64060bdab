"""Packed sequences in correct steps, around the attention of sdpa.py: one sequence after the other.

A fault overrides the rows and keys that a sequence has, the place of its diagonal, or the way its results are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Model
from attention_conformance.impls.validate import check_pack_bias, check_packs


@dataclass(frozen=True)
class Pack:
    """One call: its arrays unchanged, the maxima, the requested offset, and the other options."""

    q: Array
    k: Array
    v: Array
    cu_seqlens_q: Array
    cu_seqlens_k: Array
    causal_offset: int | Array | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    return_lse: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """N, the number of sequences."""
        return len(self.cu_seqlens_q) - 1

    @property
    def positions(self) -> bool:
        """Whether the position of the diagonal matters."""
        return bool(self.options.get("is_causal")) or self.options.get("window") is not None


class Packed(Model):
    """The steps of varlen, each correct; ``x`` is the call, ``n`` the sequence."""

    operator: ClassVar[str] = "varlen"
    #: The attention of every sequence.
    attention: ClassVar[type[Attention]] = Attention

    def __init__(self) -> None:
        self.inner = self.attention()

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens_q: Array,
        cu_seqlens_k: Array,
        *,
        causal_offset: int | Array | None = None,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        return_lse: bool = False,
        **options: Any,
    ) -> Any:
        """Varlen, called as a plug-in is."""
        x = Pack(q, k, v, cu_seqlens_q, cu_seqlens_k, causal_offset, max_seqlen_q, max_seqlen_k, return_lse, options)
        self.check(x)
        return self.results(x, *self.computed(x))

    def computed(self, x: Pack) -> tuple[Array, Array]:
        """Output and lse of all sequences, one after the other; the output has the width that the first one gives."""
        output, lse = self.empty(x)
        for n in range(self.count(x)):
            part = self.sequence(x, n)
            if n == 0 and part[0].shape[2] != output.shape[2]:
                other = np.zeros((*x.v.shape[:2], part[0].shape[2]), x.v.dtype)
                output, lse = self.empty(replace(x, v=other))
            self.write(x, n, output, lse, *part)
        return output, lse

    def check(self, x: Pack) -> None:
        """VARLEN-11: refuse inputs that do not fit together."""
        check_packs(x.q, x.k, x.v, x.cu_seqlens_q, x.cu_seqlens_k)
        self.check_bias(x)

    def check_bias(self, x: Pack) -> None:
        """VARLEN-16: refuse a bias that does not fit."""
        check_pack_bias(x.options.get("bias"), x.q, x.cu_seqlens_q, x.max_seqlen_q, x.max_seqlen_k)

    def empty(self, x: Pack) -> tuple[Array, Array]:
        """VARLEN-4: output and lse of rows that nothing is written to."""
        lse = np.full((x.q.shape[1], len(x.q)), -np.inf, np.float64 if x.q.dtype == np.float64 else np.float32)
        return np.zeros((*x.q.shape[:2], x.v.shape[2]), x.q.dtype), lse

    def count(self, x: Pack) -> int:
        """Number of sequences that are computed."""
        return x.sequences

    # Which rows and keys, as indices.

    def starts(self, x: Pack, boundaries: Array) -> Array:
        """The boundaries as numbers to compute with."""
        return boundaries.astype(np.int64)

    def rows(self, x: Pack, n: int) -> Array:
        """VARLEN-1: the queries of a sequence."""
        start, end = self.starts(x, x.cu_seqlens_q)[n : n + 2]
        return np.arange(start, end)

    def keys(self, x: Pack, n: int) -> Array:
        """VARLEN-1: the keys of a sequence."""
        start, end = self.starts(x, x.cu_seqlens_k)[n : n + 2]
        return np.arange(start, end)

    # One sequence.

    def offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        """VARLEN-3: the causal offset of a sequence."""
        if x.causal_offset is None:
            return self.default_offset(x, n, queries, keys)
        return int(x.causal_offset if np.ndim(x.causal_offset) == 0 else x.causal_offset[n])  # type: ignore[index]

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        """VARLEN-3: the offset that aligns the diagonal bottom-right."""
        return keys - queries

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        """VARLEN-5: the options of a sequence."""
        return x.options

    def sequence(self, x: Pack, n: int) -> tuple[Array, Array]:
        """VARLEN-2: output (Sq, Hq, Dv) and lse (Hq, Sq) of a sequence."""
        rows, keys = self.rows(x, n), self.keys(x, n)
        q, k, v = (array.swapaxes(0, 1)[None] for array in self.taken(x, n, rows, keys))
        offset = self.offset(x, n, len(rows), len(keys))
        options = self.options(x, n)
        if options.get("bias") is not None:
            options = options | {"bias": self.bias(x, n, np.arange(len(rows)), np.arange(len(keys)))[None]}
        output, lse = self.inner(q, k, v, causal_offset=offset, return_lse=True, **options)
        return output[0].swapaxes(0, 1), lse[0]

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        """VARLEN-16: the bias of rows i and keys j of a sequence, (Hq or 1, Sq, Sk)."""
        whole = x.options["bias"]
        return self.bias_at(whole[self.bias_of(x, n) % len(whole)], i[:, None], j)

    def bias_of(self, x: Pack, n: int) -> int:
        """VARLEN-16: the sequence whose bias is used."""
        return n

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        """VARLEN-16: ``bias`` (Hq or 1, longest, longest) at rows (Sq, 1) and keys, which are clamped to its ends."""
        return bias[:, np.clip(i, 0, bias.shape[1] - 1), np.clip(j, 0, bias.shape[2] - 1)]

    def taken(self, x: Pack, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        """The queries, keys and values of a sequence, (length, heads, width)."""
        return x.q[rows], x.k[keys], x.v[keys]

    # What is returned.

    def write(self, x: Pack, n: int, output: Array, lse: Array, found: Array, of_rows: Array) -> None:
        """Put the results of a sequence where its rows are."""
        rows = self.written(x, n)
        output[rows], lse[:, rows] = found, of_rows

    def written(self, x: Pack, n: int) -> Array:
        """The rows that a sequence's results go to."""
        return self.rows(x, n)

    def results(self, x: Pack, output: Array, lse: Array) -> Any:
        """The output, and the lse where it is requested."""
        return (output, self.stored_lse(x, lse)) if x.return_lse else output

    def stored_lse(self, x: Pack, lse: Array) -> Array:
        """VARLEN-10: the lse as it is returned."""
        return lse
