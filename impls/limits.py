"""What a job may take besides time: memory, and room for what it prints.

The parent looks at the memory of the worker, and of the programs that it started, while it waits for the answer.  A
limit that the system keeps (RLIMIT_AS, RLIMIT_DATA) counts address space, of which frameworks reserve far more than
they use, and what goes beyond it shows as some error deep in a library; a cgroup takes rights that few users have.
So a job may go beyond its limit for the time between two looks.  Where there is no /proc (macOS) nothing is bounded.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

#: Seconds between two looks.  A core writes new memory at 1 to 4 GiB/s, so a job goes beyond its limit by little.
LOOK = 0.05

#: Seconds between two looks at what is printed where memory is not bounded: jobs that are timed are left alone.
SELDOM = 1.0

#: Part of the time that looks at all processes may take, to find the programs that a job started.
LOOKING = 0.02

#: Bytes that a job may print.  They lie in a file, and a loop that prints could fill the disk within its time.
PRINTED = 1 << 28

#: A worker that holds more than this part of its limit after a job is replaced, so that what one case leaves behind is
#: not the failure of another one.
KEPT = 0.5

#: Part of the machine's memory that a job may take if nothing else is said: the rest is for the system and the parent,
#: so that it is the job that is ended, and not what the system picks when memory runs out.
SHARE = 0.8

_PROC = Path("/proc")

#: Files that say how much memory there is for this process, in containers (cgroup v2, v1).
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_PAGE = os.sysconf("SC_PAGE_SIZE")

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}iB": 1024**_power, f"{_letter}B": 1000**_power}

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


def size(text: str) -> int:
    """The bytes that a text like "4GiB" or "500 MB" says.  Raises ValueError with one sentence for any other."""
    found = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or not float(found[1]):
        raise ValueError(f"{text}: expected a size such as 4GiB or 500MB")
    return int(float(found[1]) * units[found[2].lower()])


def size_text(number: float) -> str:
    """A number of bytes with the largest unit that leaves one or more of it: "4 GiB", "1.5 GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.3g} {unit}"
    return f"{number:.0f} bytes"


def bounded() -> bool:
    """Whether memory can be bounded on this system."""
    return (_PROC / "self" / "statm").exists()


def default() -> int | None:
    """The memory that a job may take if nothing else is said."""
    if not bounded():
        return None
    most = [_PAGE * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such cgroup, or the word "max"
            most.append(int(path.read_text()))
    return int(SHARE * min(most))


def resident(process: int | str = "self") -> int:
    """Bytes of memory that a process holds; 0 if it is gone, or nothing is known."""
    try:
        return _PAGE * int((_PROC / str(process) / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class Held:
    """The memory that a job holds, with the programs that it started: processes of one session."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._others = 0
        self._next = 0.0

    def now(self) -> int:
        """Bytes; what the programs hold may be from a while ago, as it takes longer to find out."""
        started = time.monotonic()
        if started >= self._next:
            names = [name for name in os.listdir(_PROC) if name.isdecimal() and name != str(self._session)]
            self._others = sum(resident(name) for name in names if _session(name) == self._session)
            ended = time.monotonic()
            self._next = ended + (ended - started) / LOOKING
        return resident(self._session) + self._others


def _session(process: str) -> int:
    """The session of a process: the fourth field behind its name, which is in brackets and may hold anything."""
    try:
        return int((_PROC / process / "stat").read_text(errors="replace").rpartition(")")[2].split()[3])
    except (OSError, IndexError, ValueError):  # it is gone
        return 0


def kills() -> int:
    """How many processes the system has ended so far because memory ran out; 0 where it does not count them."""
    with contextlib.suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", (_PROC / "vmstat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0
