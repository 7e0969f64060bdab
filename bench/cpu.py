"""Who works: the CPU time of a process, and how an idle one is really kept idle.

Libraries keep threads that wait for work by spinning (ONNX Runtime's pool, OpenMP with an active wait policy), and
some run timers.  A process that is stopped by a signal does nothing at all, whatever its libraries would, and goes on
where it was; so between its turns a worker is stopped.  ``python -m bench turns`` shows what it would take otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

#: PR_SET_PDEATHSIG of Linux' prctl: the signal that a process is sent when its parent ends.
PARENT_ENDED = 1


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has taken, in steps of a clock tick (10 ms); None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_with_parent() -> bool:
    """Have this process killed when its parent ends, even while it is stopped.  False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(PARENT_ENDED, signal.SIGKILL, 0, 0, 0) == 0


def stop(pid: int) -> None:
    """Stop a process; it does nothing until ``go_on``."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """Let a stopped process go on."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
