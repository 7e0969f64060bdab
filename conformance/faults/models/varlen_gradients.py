"""Backward pass of packed sequences in correct steps, around that of gradients.py: one sequence after the other.

A fault overrides the rows and keys that a sequence has in the backward pass, or the computation of its gradients.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.sdpa import Array, Model
from attention_conformance.conformance.faults.models.varlen import Pack
from attention_conformance.impls.validate import check_packs


class PackedBackward(Model):
    """The steps of varlen_grad, each correct; ``x`` is the call, ``g`` the given gradient, ``n`` the sequence."""

    operator: ClassVar[str] = "varlen_grad"
    #: The backward pass of every sequence.
    backward: ClassVar[type[Backward]] = Backward

    def __init__(self) -> None:
        self.inner = self.backward()

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        grad_output: Array,
        cu_seqlens_q: Array,
        cu_seqlens_k: Array,
        *,
        causal_offset: int | Array | None = None,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        **options: Any,
    ) -> Any:
        """The gradients of q, k and v."""
        x = Pack(q, k, v, cu_seqlens_q, cu_seqlens_k, causal_offset, max_seqlen_q, max_seqlen_k, False, options)
        self.check(x, grad_output)
        found = self.empty(x)
        for n in range(x.sequences):
            rows, keys = self.rows(x, n), self.keys(x, n)
            own = self.sequence(x, n, grad_output, rows, keys)
            for array, at, gradient in zip(found, (rows, keys, keys), own, strict=True):
                array[at] = gradient
        return tuple(found)

    def check(self, x: Pack, g: Array) -> None:
        """GRAD-34: refuse inputs that do not fit together."""
        check_packs(x.q, x.k, x.v, x.cu_seqlens_q, x.cu_seqlens_k)
        if g.shape != (*x.q.shape[:2], x.v.shape[2]):
            raise ValueError(f"grad_output of shape {g.shape} does not fit")

    def empty(self, x: Pack) -> list[Array]:
        """GRAD-32: gradients of rows and keys that nothing is written to."""
        return [np.zeros(array.shape, array.dtype) for array in (x.q, x.k, x.v)]

    def rows(self, x: Pack, n: int) -> Array:
        """VARLEN-1: the queries of a sequence."""
        return np.arange(x.cu_seqlens_q[n], x.cu_seqlens_q[n + 1])

    def keys(self, x: Pack, n: int) -> Array:
        """VARLEN-1: the keys of a sequence."""
        return np.arange(x.cu_seqlens_k[n], x.cu_seqlens_k[n + 1])

    def offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        """VARLEN-3: the causal offset of a sequence."""
        if x.causal_offset is None:
            return self.default_offset(x, n, queries, keys)
        return int(x.causal_offset if np.ndim(x.causal_offset) == 0 else x.causal_offset[n])  # type: ignore[index]

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        """VARLEN-3: the offset that aligns the diagonal bottom-right."""
        return keys - queries

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        """GRAD-31: gradients of a sequence's queries, keys and values, each (length, heads, width)."""
        return self.over(x, n, g, rows, keys, self.offset(x, n, len(rows), len(keys)))

    def over(self, x: Pack, n: int, g: Array, rows: Array, keys: Array, offset: int) -> tuple[Array, Array, Array]:
        """The gradients for some rows and keys of the pack."""
        own = (array[at].swapaxes(0, 1)[None] for array, at in ((x.q, rows), (x.k, keys), (x.v, keys), (g, rows)))
        grad_q, grad_k, grad_v = self.inner(*own, causal_offset=offset, **x.options)
        return grad_q[0].swapaxes(0, 1), grad_k[0].swapaxes(0, 1), grad_v[0].swapaxes(0, 1)
