"""Memory layouts of the inputs: the same elements with other strides, or between guards (SDPA-30)."""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable

import numpy as np

#: Elements of NaN (or of garbage, for integers and booleans) before and after a guarded array.
GUARD = 64

#: Elements from which on an offset is not a signed 32-bit number.
FAR = 2**31

#: A flag of mmap on Linux, where Python does not name it: pages that are never written do not count as memory.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def contiguous(array: np.ndarray) -> np.ndarray:
    """Row-major, in memory of its own."""
    return np.array(array, order="C")


def transposed(array: np.ndarray) -> np.ndarray:
    """Heads and sequence swapped in memory, as a (B, S, H, D) projection leaves them."""
    if array.ndim != 4:
        return contiguous(array)
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def inner(array: np.ndarray) -> np.ndarray:
    """The last two axes swapped in memory, so that the innermost stride is not 1."""
    if array.ndim < 2:
        return contiguous(array)
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def sliced(array: np.ndarray) -> np.ndarray:
    """Every second element of a buffer twice as wide, whose other elements are NaN or garbage."""
    buffer = _garbage((*array.shape, 2), array.dtype)
    buffer[..., 0] = array
    return buffer[..., 0]


def expanded(array: np.ndarray) -> np.ndarray:
    """Stride 0 along every axis on which the array repeats its first entry."""
    view = array
    for axis in range(array.ndim):
        first = view[(slice(None),) * axis + (slice(0, 1),)]
        if array.shape[axis] > 1 and np.array_equal(np.broadcast_to(first, view.shape), view):
            view = first
    return np.broadcast_to(np.array(view), array.shape)


def guarded(array: np.ndarray) -> np.ndarray:
    """Contiguous, with NaN or garbage directly before and after it."""
    buffer = _garbage((array.size + 2 * GUARD,), array.dtype)
    inside = buffer[GUARD : GUARD + array.size]
    inside[:] = array.ravel()
    return inside.reshape(array.shape)


def far(array: np.ndarray, axis: int = 0) -> np.ndarray:
    """The entries of an axis so far apart that the last one is FAR elements behind the first.

    With three entries or more no stride is FAR itself, so that the product of an index and a stride is not a 32-bit
    number, and the stride is.  The memory between entries is never touched, and takes no space.
    """
    if array.ndim <= axis or array.shape[axis] < 2 or not array.size:
        return contiguous(array)
    first = contiguous(np.moveaxis(array, axis, 0))
    others, inside = len(first) - 1, first[0].size
    stride = max(-(-FAR // others), inside)
    stride += -stride % GUARD  # as aligned as entries that lie together
    size = (stride * others + inside) * array.itemsize
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | _NORESERVE
    buffer = np.frombuffer(mmap.mmap(-1, size, flags=flags), array.dtype)
    strides = (stride * array.itemsize, *first.strides[1:])
    view = np.lib.stride_tricks.as_strided(buffer, first.shape, strides)
    view[...] = first
    return np.moveaxis(view, 0, axis)


def _garbage(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_ or dtype.kind in "iu":
        return np.ones(shape, dtype)
    return np.full(shape, np.nan, dtype)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    f.__name__: f for f in (contiguous, transposed, inner, sliced, expanded, guarded)
}
#: Layouts that no case has: entries far apart along each axis but the last one, of up to four axes.
FAR_LAYOUTS = {f"far-{axis}": functools.partial(far, axis=axis) for axis in range(3)}


def lay_out(array: np.ndarray, name: str) -> np.ndarray:
    """The array's elements in memory as ``name`` (a key of LAYOUTS or FAR_LAYOUTS) says; never shares memory with it.

    Parameters
    ----------
    array
        Array of any shape.
    name
        A key of LAYOUTS or FAR_LAYOUTS.

    Returns
    -------
    np.ndarray
        Equal to the array, with other strides or another offset.
    """
    return (LAYOUTS.get(name) or FAR_LAYOUTS[name])(array)
