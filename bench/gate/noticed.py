"""Notices of the gate's worker: acts of a candidate, its calls of libraries, and whose code made a call."""

from __future__ import annotations

import ctypes
import functools
import inspect
import linecache
import logging
import os
import sys
import sysconfig
import tokenize
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

#: Notices, "kind: text" each, in order; ``take_events`` takes them.
_NOTICED: dict[str, None] = {}

#: Calls of libraries' own attention by name.
_COUNTS: dict[str, int] = {}


def notice(kind: str, text: str) -> None:
    """Note something that the candidate did."""
    _NOTICED[f"{kind}: {text}"] = None


def count(name: str) -> None:
    """Count a call of a library."""
    _COUNTS[name] = _COUNTS.get(name, 0) + 1


def take_events() -> tuple[str, ...]:
    """Events and numbers of library calls since the last call of this function."""
    found = (*_NOTICED, *(f"library: {name} {number}" for name, number in _COUNTS.items()))
    _NOTICED.clear()
    _COUNTS.clear()
    return found


#: Modules that ask for frames and functions on behalf of their callers, and functions of other modules that do.
_THROUGH = (ctypes.__file__, inspect.__file__, traceback.__file__)
_FRAME_OF = {logging.__file__: ("currentframe", "<lambda>")}

#: Modules through which code asks for the lines of a file.
_LINES = (linecache.__file__, inspect.__file__, traceback.__file__, tokenize.__file__)


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those of its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


class Callers:
    """Owner of the code that a frame runs: the candidate, or a library or the suite.

    Code that a candidate compiles from a text has a name in brackets and belongs to its caller.

    Parameters
    ----------
    own
        The candidate's file.
    suite
        Folders of the suite.
    """

    def __init__(self, own: str, suite: Sequence[str]) -> None:
        libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        places = (*(os.path.realpath(each) + os.sep for each in libraries if each), *suite)

        @functools.cache
        def foreign(file: str) -> bool:
            if file.startswith("<frozen"):
                return False
            path = os.path.realpath(file)
            library = any(each.startswith(places) or "/site-packages/" in each for each in (file, path))
            return path == own or not library

        self.foreign = foreign

    def direct(self, frame: FrameType) -> bool:
        """Whether foreign code asks, itself or through a module of Python's that asks on its behalf."""
        for each in callers(frame):
            code = each.f_code
            if code.co_filename in _THROUGH or code.co_name in _FRAME_OF.get(code.co_filename, ()):
                continue
            if code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen"):
                continue
            return bool(self.foreign(code.co_filename))
        return False

    def traced(self, frame: FrameType) -> bool:
        """The same for the frame of a traceback, which libraries that format one ask for."""
        for each in callers(frame):
            code = each.f_code
            if code.co_filename == inspect.__file__ or code.co_filename.startswith("<"):
                continue
            if code.co_filename == traceback.__file__ and code.co_name in ("walk_tb", "walk_stack"):
                continue
            return bool(self.foreign(code.co_filename))
        return False

    def anywhere(self, frame: FrameType) -> bool:
        """Whether foreign code runs at all."""
        return any(self.foreign(each.f_code.co_filename) for each in callers(frame))

    def shown(self, frame: FrameType) -> bool:
        """Whether a library asks for the lines of a file, as compilers do for their messages."""
        asking = None
        for each in callers(frame):
            file = each.f_code.co_filename
            if file in _LINES or file.startswith("<frozen"):
                asking = asking or (file if file == linecache.__file__ else None)
                continue
            return asking is not None and not self.foreign(file) and not file.startswith("<")
        return False


#: Bound before foreign code is loaded, as it is used after.
frame_of = sys._getframe
