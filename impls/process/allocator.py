"""Allocator retention: freed memory stays with a process that timings are made in, and is not requested again.

By itself glibc gives freed memory back when the last block of its heap is free, or when a block is a large one.  The
next call then takes it again, page by page, which may cost more than the call computes.  Whether it does depends on
what else is in the heap, so on chance that stays the same as long as a process lives: for the same function some
processes would be slower than others by half.  Programs that call attention often are advised to keep their memory
(https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html, "Switch memory allocator").
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import sys
from collections.abc import Iterator

#: No block is mapped by itself, and the end of the heap is never given back.  Variables of glibc (mallopt(3)); other
#: C libraries read neither.
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62)}


def environment() -> dict[str, str]:
    """The variables of a process that keeps what it frees, without those that the user has set.

    Returns
    -------
    dict[str, str]
        Values by the names of the variables.
    """
    return {name: value for name, value in KEEPING.items() if name not in os.environ}


def description() -> str:
    """Allocator retention in a process with ``environment``, for the record of a run.

    Returns
    -------
    str
        A part of a sentence.
    """
    if platform.libc_ver()[0] != "glibc":
        return "as the system does"
    if os.environ.get("LD_PRELOAD"):
        return "as by LD_PRELOAD"
    return "as MALLOC_ variables say" if len(environment()) < len(KEEPING) else "stays with the process"


def trim() -> None:
    """Give back free memory, where the C library can, so that a process holds what it uses."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if function is not None:
            function(0)


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """No garbage collection inside the block; the previous setting is restored afterwards.

    Yields
    ------
    None
        Nothing; the context lasts as long as the block.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
