"""What a process held of memory at its peak, as the system tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

#: What the process held before its first cell.
_START: list[int] = []


def growth(device: str, since_start: bool = False) -> Callable[[], int | None]:
    """A function that says how many bytes this process has held, at most, since now, beyond what it holds now.

    With ``since_start`` beyond what it held before its first cell.  Linux keeps the peak of the resident set and lets
    a process reset its own; the function tells of the time since the last reset.
    """
    if device != "cpu":
        return lambda: None
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        if since_start:
            _START[:] = _START or [before]
            before = _START[0]
    except (OSError, KeyError):
        return lambda: None
    return lambda: max(_status("VmHWM") - before, 0)


def beyond(prepared: int | None, called: int | None, inputs: int) -> int | None:
    """The larger of two peaks without the inputs, which are counted by their sizes."""
    return None if prepared is None or called is None else max(max(prepared, called) - inputs, 0)


def _status(field: str) -> int:
    """A field of /proc/self/status that is given in kB, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int({line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}[field]) * 1024
