"""What the jobs of the worker process answer (bench.sampler), and what an exception there says of a cell."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.stopwatch import WALL

#: What libraries say that have no exception of their own for it: XLA, PyTorch's CPU allocator, ONNX Runtime.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "DefaultCPUAllocator: can't allocate memory", "Failed to allocate memory")


@dataclass(frozen=True)
class Opened:
    """The first call of a cell, on its first input set.  ``status`` as in impls.calls.Reply, or "memory" if it ran out.

    ``results`` are by name, in layout (B, H, S, D); ``peak_bytes`` is what the process grew by during the first call.
    ``held_bytes`` is what it held at most since this cell was opened beyond what it held before the first cell of all,
    without the inputs of the cells that are open: a library may keep what an earlier call or its preparation took, and
    then takes it from there, so that growth alone would tell too little.  Both are None where the system does not tell
    and on other devices than the CPU.  ``clock`` times its calls, and ``emptied_bytes`` are copied before each.
    """

    status: str
    text: str = ""
    trace: str = ""
    results: dict[str, np.ndarray] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_bytes: int | None = None
    held_bytes: int | None = None
    clock: str = WALL
    emptied_bytes: int = 0


@dataclass(frozen=True)
class Chunk:
    """A turn of calls: seconds of each, in order.  ``status`` is one of Opened's, or "lost" if no such cell is open.

    The last call was on inputs that the implementation had never seen.  Reading its results back took
    ``readback_seconds``, and of plain copies ``plain_seconds`` (0 where the first is short); ``cores`` is CPU time ÷
    time, of all threads.  Of the last chunk of a visit there are the results, copied right after the call, and which of
    them (``unsettled``) had changed later.  ``host_seconds`` is the median of the calls by the host's clock, where
    ``seconds`` are by another.
    """

    status: str
    text: str = ""
    seconds: tuple[float, ...] = ()
    readback_seconds: float = 0.0
    plain_seconds: float = 0.0
    cores: float = 0.0
    results: dict[str, np.ndarray] = field(default_factory=dict)
    unsettled: tuple[str, ...] = ()
    host_seconds: float | None = None


def kind(error: BaseException) -> str:
    """The status "memory" for what libraries raise when an array does not fit, else "raised"."""
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    short = short or any(said in str(error) for said in OUT_OF_MEMORY)
    return "memory" if short else "raised"


def text(error: BaseException) -> str:
    """What an exception says, in one line; its type too, unless that is what "unsupported" says already."""
    lines = str(error).strip().splitlines() or [""]
    named = "" if isinstance(error, NotImplementedError) else f"{type(error).__name__}: "
    return f"{named}{lines[0][:300]}"
