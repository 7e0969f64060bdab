"""Noise of a call: how much it prints, and how often it warns.

A worker's standard streams are a file (impls.process.pool), so output shows as the growth of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

#: Warnings of one call that are reported.  NumPy warns once per operation, and a loop over blocks has dozens.
STORM = 100

#: Bytes of the output that are quoted.
QUOTED = 60

#: The standard streams by their descriptors.
_STREAMS = (1, 2)

_C: Any = ctypes.CDLL(None)


class Noise:
    """A context manager around a call; ``side_effects`` are set at its end."""

    def __init__(self, warned: Callable[[Warning | str], None] | None = None) -> None:
        """``warned`` gets each warning, too."""
        self._told = warned
        self.side_effects: tuple[str, ...] = ()
        self._warned = 0
        self._first = ""
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> Noise:
        self._sizes = sizes()
        self._filters.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._count
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._filters.__exit__(kind, value, trace)
        printed = self._printed()
        storm = f"{self._warned} in one call, the first {self._first!r}"
        self.side_effects = (
            *([f"prints: {printed}"] if printed else []),
            *([f"warnings: {storm}"] if self._warned >= STORM else []),
        )

    def _count(self, message: Warning | str, category: type[Warning], *rest: Any, **keywords: Any) -> None:
        self._first = self._first or f"{category.__name__}: {message}"[:QUOTED]
        self._warned += 1
        if self._told is not None:
            self._told(message)

    def _printed(self) -> str:
        count = 0
        beginning = ""
        for descriptor, before, size in grown(self._sizes):
            count += size - before
            with contextlib.suppress(OSError):  # a file that may only be written
                beginning = beginning or os.pread(descriptor, QUOTED, before).decode(errors="replace")
        return f"{count} bytes, beginning with {beginning!r}" if count else ""


def sizes() -> dict[tuple[int, int], tuple[int, int]]:
    """Descriptor and size of the files that the standard streams are; nothing for a terminal or a pipe."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    _C.fflush(None)  # what C and Fortran printed
    found = {}
    for descriptor in _STREAMS:
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                found[status.st_dev, status.st_ino] = (descriptor, status.st_size)
    return found


def grown(earlier: dict[tuple[int, int], tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Files of the standard streams that have grown since ``sizes`` was called: descriptor, size then and now.

    Parameters
    ----------
    earlier
        Sizes that ``sizes`` gave; a stream that was another file then is left out.

    Yields
    ------
    tuple[int, int, int]
        One for each file.
    """
    for file, (descriptor, size) in sizes().items():
        before = earlier.get(file, (descriptor, size))[1]
        if size > before:
            yield descriptor, before, size
