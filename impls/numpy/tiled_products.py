"""The two matrix products of a tile, cut into pieces that NumPy's BLAS multiplies without packing them first.

OpenBLAS copies what it multiplies into an order of its own.  Its kernels for AVX-512 read matrices where they lie
instead, if the product has at most a million multiply-adds and the right matrix is not transposed
(kernel/x86_64/sgemm_small_kernel_permit_skylakex.c), which takes up to a sixth less.  ``matmul`` of a stack of pieces
makes such calls one after the other without going back to Python.
"""

from __future__ import annotations

import functools

import numpy as np

from impls.numpy.tiled_threads import blas

#: Multiply-adds of a product up to which OpenBLAS packs nothing, by the kernels that it has chosen.
UNPACKED = {"SkylakeX": 10**6}

#: Rows of a piece are a multiple of this, so that the kernels are full and the usual blocks leave no rows over.
PIECE = 8

#: Rows from which on a transposed copy of the keys takes no longer than what it saves; what both take where there are
#: many stands in impls/SPEED.md.
MANY = 128


def product(left: np.ndarray, right: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``left`` (N · R, K) @ ``right`` (N, K, C), R rows with each of those, into ``out`` (N · R, C).

    ``left`` and ``out`` are contiguous.
    """
    stack, inner, columns = right.shape
    rows = len(left) // stack
    out = np.empty((len(left), columns), left.dtype) if out is None else out
    source, target = left.reshape(stack, rows, inner), out.reshape(stack, rows, columns)
    is_transposed = right.strides[2] != right.itemsize
    piece = 0 if is_transposed else unpacked() // max(1, inner * columns) // PIECE * PIECE
    whole = rows // piece * piece if 0 < piece < rows else 0
    if whole:
        pieces, into = (each[:, :whole].reshape(stack, -1, piece, each.shape[2]) for each in (source, target))
        np.matmul(pieces, right[:, None], out=into)
    if whole < rows:
        np.matmul(source[:, whole:], right, out=target[:, whole:])
    return out


def transposed(keys: np.ndarray, rows: int) -> np.ndarray:
    """``keys`` (N, C, D) as the right side (N, D, C) of a product with so many rows, copied where that pays."""
    right = keys.transpose(0, 2, 1)
    return np.ascontiguousarray(right) if unpacked() and rows >= MANY * len(keys) else right


@functools.cache
def unpacked() -> int:
    """Multiply-adds up to which no BLAS that NumPy may have packs a product; 0 where that is not known."""
    return min((UNPACKED.get(each.get("architecture", ""), 0) for each in blas().info()), default=0)
