"""Paged caches in correct steps: the table gives the slots of every sequence, and varlen.py attends over them.

The caches are flattened to one row of slots, page after page, so that the keys of a sequence are indices, as in a pack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.models.varlen import Pack, Packed
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_pages


@dataclass(frozen=True)
class Pages(Pack):
    """One call; ``k`` and ``v`` are the caches as slots, (pages · P, Hkv, width); ``cu_seqlens_k`` is not used."""

    table: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    lengths: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    page: int = 1
    k_new: Array | None = None
    v_new: Array | None = None


class Paged(Packed):
    """The steps of paged, each correct; ``x`` is the call, ``n`` the sequence, ``j`` the places of keys in it."""

    operator: ClassVar[str] = "paged"

    def __call__(  # type: ignore[override]  # another operator
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        cu_seqlens_q: Array,
        block_table: Array,
        kv_lengths: Array,
        *,
        causal_offset: int | Array | None = None,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        k_new: Array | None = None,
        v_new: Array | None = None,
        k_scale: Array | None = None,
        v_scale: Array | None = None,
        return_lse: bool = False,
        **options: Any,
    ) -> Any:
        """Paged, called as a plug-in is; over caches with scales it computes in float32 at least."""
        scales = () if k_scale is None and v_scale is None else (k_scale, v_scale)
        self.check_pages(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, *scales)
        dtype = q.dtype
        if k_scale is not None and v_scale is not None:
            q = q.astype(working_dtype(dtype))
            counts = -(-kv_lengths[:, None] // max(k_cache.shape[1], 1))
            own = np.where(np.arange(block_table.shape[1]) < counts, block_table, -1)  # −1 behind the last page
            k_cache, v_cache = self.dequantised(k_cache, v_cache, k_scale, v_scale, own, q.dtype)
            if options.get("sinks") is not None:
                options["sinks"] = options["sinks"].astype(q.dtype)
        x = Pages(
            q,
            k_cache.reshape(-1, *k_cache.shape[2:]),
            v_cache.reshape(-1, *v_cache.shape[2:]),
            cu_seqlens_q,
            cu_seqlens_q,
            causal_offset,
            max_seqlen_q,
            max_seqlen_k,
            return_lse,
            options,
            block_table,
            kv_lengths,
            k_cache.shape[1],
            k_new,
            v_new,
        )
        output, lse = self.computed(x)
        return self.results(x, output.astype(dtype), lse)

    def dequantised(
        self, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array, table: Array, dtype: np.dtype
    ) -> tuple[Array, Array]:
        """PAGED-14: the numbers that the caches stand for."""
        k, v = self.numbers(k_cache).astype(dtype), self.numbers(v_cache).astype(dtype)
        return k * self.key_scale(k_scale, table).astype(dtype), v * self.value_scale(v_scale, k_scale).astype(dtype)

    def numbers(self, cache: Array) -> Array:
        """Stored values, as numbers."""
        return cache

    def key_scale(self, scale: Array, table: Array) -> Array:
        """PAGED-14: the scale of the keys."""
        return scale

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        """PAGED-14: the scale of the values."""
        return scale

    def check_pages(self, *arrays: Array) -> None:
        """PAGED-12: refuse inputs that do not fit together."""
        check_pages(*arrays)

    def length(self, x: Any, n: int) -> int:
        """The keys of a sequence."""
        return int(x.lengths[n])

    def places(self, x: Any, n: int) -> Array:
        """The places j of the keys that are read."""
        return np.arange(self.length(x, n))

    def row(self, x: Any, n: int) -> Array:
        """The row of the table that is the sequence's own."""
        return x.table[n]

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        """PAGED-1: the page of each place."""
        return self.row(x, n)[j // x.page].astype(np.int64)

    def slots(self, x: Any, n: int, j: Array) -> Array:
        """PAGED-1: the slot of each place in its page."""
        return j % x.page

    def keys(self, x: Any, n: int) -> Array:
        """PAGED-1: the slots of a sequence's keys; slots beyond the cache are clamped to its ends."""
        j = self.places(x, n)
        return np.clip(self.blocks(x, n, j) * x.page + self.slots(x, n, j), 0, len(x.k) - 1)

    def taken(self, x: Any, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        """The queries, keys and values of a sequence, including the new ones."""
        q, k, v = super().taken(x, n, rows, keys)
        if x.k_new is not None and x.v_new is not None and len(rows):
            at = self.new_places(x, n, rows, keys)
            k[at], v[at] = self.new_keys(x, rows), x.v_new[rows]
        return q, k, v

    def new_places(self, x: Any, n: int, rows: Array, keys: Array) -> Array:
        """PAGED-11: where the new keys of a sequence are among its keys."""
        return np.arange(len(keys) - len(rows), len(keys))

    def new_keys(self, x: Any, rows: Array) -> Array:
        """PAGED-11: the new keys of some rows."""
        return x.k_new[rows]
