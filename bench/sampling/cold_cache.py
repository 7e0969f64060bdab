"""Cold cache: before a call a buffer of twice the last cache is copied, which leaves nothing else in it.

NumPy copies it on the CPU, with all threads of the worker, as every core has nearer caches of its own; the framework
itself does on another device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process import threads

#: Content of the caches when a call begins: what the calls before it left, or nothing of its own.
WARM, COLD = "warm", "cold"

#: Text above the table, as every time depends on it.
MEANING = {
    WARM: "the inputs rotate among three sets; as much stays in the caches as fits",
    COLD: "before every call a buffer of twice the last cache was copied",
}

#: The buffer's size in caches: one of a cache's own size does not clear it, unless the oldest data are dropped first.
TIMES = 2

#: Bytes of the last cache where they are unknown.  CPU: a guess.  GPU: the buffer has the 256 MiB that Triton clears
#: before each call (get_empty_cache_for_benchmark in third_party/nvidia/backend/driver.py).
UNTOLD = {"cpu": 2**26, "cuda": 2**27}


@dataclass(frozen=True)
class Buffer:
    """Clears the caches when it is called; ``size`` bytes are read, and as many written."""

    size: int
    copy: Callable[[], Any]
    wait: Callable[[Any], None]

    def __call__(self) -> None:
        """Copy, and wait for it, so that it adds nothing to the time of the call that follows."""
        self.wait(self.copy())


@functools.cache
def buffer(framework: Framework, device: str) -> Buffer:
    """The buffer of a device, one in a process.  Raises NotImplementedError if the framework cannot copy there."""
    arrays: Backend = backend(Framework.NUMPY if device == "cpu" else framework)
    told = last_bytes() if device == "cpu" else arrays.cache_bytes(device)
    size = TIMES * (told or UNTOLD[device])
    try:
        made = Buffer(size, arrays.copy(arrays.put(np.ones(size // 4, np.float32), device)), arrays.wait)
    except NotImplementedError:
        raise NotImplementedError(f"no cold caches: {framework} has no copy on {device}") from None
    made()  # takes its memory before any cell's is measured
    return made


def last_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of the last caches of the usable cores together, as Linux reports them; None elsewhere."""
    return sum(threads.last_caches(threads.affinity(), root / "sys/devices/system/cpu").values()) or None
