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
import time

#: PR_SET_PDEATHSIG of Linux' prctl: the signal that a process is sent when its parent ends.
PARENT_ENDED = 1

#: How Linux numbers the CPU clock of a process (include/linux/posix-timers_types.h): of its inverted number and a kind.
CLOCK_SHIFT, CLOCK_OF_THE_SCHEDULER = 3, 2


def cpu_seconds(pid: int) -> float | None:
    """CPU time that all threads of a process have taken; None where the system does not tell, or the process is gone.

    The clock of a process has the number that clock_getcpuclockid(3) gives it.  Those of /proc count ticks of 10 ms.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime(~pid << CLOCK_SHIFT | CLOCK_OF_THE_SCHEDULER)
    except OSError:
        return None


def end_with_parent() -> bool:
    """Have this process killed when its parent ends, even while it is stopped.  False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(PARENT_ENDED, signal.SIGKILL, 0, 0, 0) == 0


def stop(pid: int) -> None:
    """Stop a child process, and wait until all of its threads are; it does nothing until ``go_on``.

    The signal alone takes 0.1 ms, and up to 8 ms were seen: the thread that gets it has to be scheduled first, on a
    core where another one may spin.
    """
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # how it ended is its owner's to collect


def go_on(pid: int) -> None:
    """Let a stopped process go on."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
