"""Limits of a job: its memory, and the size of its output; and the memory that is available, and that is held.

The parent looks at the memory of the worker, and of the programs that it started, while it waits for the answer.  A
limit of the system (RLIMIT_AS, RLIMIT_DATA) counts address space, of which frameworks reserve far more than they use,
and exceeding it shows as some error deep in a library; a cgroup requires rights that few users have.
So a job may exceed its limit for the time between two looks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from pathlib import Path

import psutil

#: Seconds between two looks.  A core writes new memory at 1 to 4 GiB/s, so a job exceeds its limit by little.
LOOK = 0.05

#: Seconds between two looks at what is printed where memory is not bounded: jobs that are timed are left alone.
SELDOM = 1.0

#: Part of the time that looks at all processes may take, to find the programs that a job started.
LOOKING = 0.02

#: Bytes that a job may print.  They go into a file, and a loop that prints could fill the disk within its time.
PRINTED = 1 << 28

#: A worker that holds more than this part of its limit after a job is replaced, so that the memory one case leaves
#: behind does not fail another one.
KEPT = 0.5

#: Part of the machine's memory that a job may take by default: the rest is for the system and the parent, so that the
#: job is ended, and not a process that the system picks when memory runs out.  Each of the jobs that run side by side
#: (``--parallel``) may take this much: several large ones at once are left to the system, unless ``--case-memory``
#: gives each less.
SHARE = 0.8

#: Linux's files about this process.
PROC = Path("/proc/self")

#: Where the kernel's files begin.
ROOT = Path("/")

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}iB": 1024**_power, f"{_letter}B": 1000**_power}

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


def size(text: str) -> int:
    """The bytes that a text like "4GiB" or "500 MB" means.

    Parameters
    ----------
    text
        A number above 0 and a unit, with or without a space.

    Returns
    -------
    int
        Bytes; a K and a KiB are 1024 of them, a KB 1000.

    Raises
    ------
    ValueError
        In one sentence, for any other text.
    """
    found = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or not float(found[1]):
        raise ValueError(f"{text}: expected a size such as 4GiB or 500MB")
    return int(float(found[1]) * units[found[2].lower()])


def size_text(number: float) -> str:
    """A number of bytes with the largest unit that leaves one or more of it: "4 GiB", "1.5 GiB".

    Parameters
    ----------
    number
        Number of bytes.

    Returns
    -------
    str
        Three significant digits and a unit of 1024.
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.3g} {unit}"
    return f"{number:.0f} bytes"


def default(root: Path = ROOT) -> int:
    """The memory that a job may take by default, in bytes.

    Parameters
    ----------
    root
        Folder where the files of the kernel begin; another one in tests.

    Returns
    -------
    int
        Bytes: a share of the machine's memory or of the narrowest control group's.
    """
    allowed = (limit for folder in control_groups("memory", root) if (limit := _memory_group(folder)[0]) is not None)
    return int(SHARE * min([psutil.virtual_memory().total, *allowed]))


def available(root: Path = ROOT) -> int:
    """Bytes that processes may still take: what is free on the machine, or the rest of a control group.

    Parameters
    ----------
    root
        Folder where the files of the kernel begin; another one in tests.

    Returns
    -------
    int
        Bytes, not below 0.
    """
    groups = map(_memory_group, control_groups("memory", root))
    rests = (max(limit - used, 0) for limit, used in groups if limit is not None)
    return min([psutil.virtual_memory().available, *rests])


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time that the narrowest control group may use; None if none has a limit.

    Parameters
    ----------
    root
        Folder where the files of the kernel begin; another one in tests.

    Returns
    -------
    float | None
        Cores, such as 1.5 for three halves of one.
    """
    quotas = []
    for folder in control_groups("cpu", root):
        first = [system_file(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        allowed, _, period = (system_file(folder / "cpu.max") or " ".join(first)).partition(" ")
        if allowed.isdigit() and period.isdigit():  # "max" and -1 are no limit
            quotas.append(int(allowed) / int(period))
    return min(quotas, default=None)


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of the control groups (version 1 and 2) that this process is in, the outer ones included."""
    found = [root / "sys/fs/cgroup", root / "sys/fs/cgroup" / controller]
    for line in system_file(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        named = controller in controllers.split(",")
        base = found[1] if named else found[0]
        if named or not controllers:
            own = base / path.lstrip("/")
            found += [each for each in (own, *own.parents) if each != base and base in each.parents]
    return found


def _memory_group(folder: Path) -> tuple[int | None, int]:
    """Bytes that a control group may take (None: no limit) and has taken, without pages of files that it can drop."""
    for limit, usage, dropped in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed, used = system_file(folder / limit), system_file(folder / usage)
        if allowed.isdigit():  # else no such group, or "max"
            counted = dict(line.split() for line in system_file(folder / "memory.stat").splitlines())
            return int(allowed), int(used or 0) - int(counted.get(dropped, 0))
    return None, 0


def resident(process: int | None = None) -> int:
    """Bytes of memory that a process (by default this one) holds; 0 if it is gone.

    Parameters
    ----------
    process
        Number of the process; None for this one.

    Returns
    -------
    int
        Bytes.
    """
    try:
        return int(_process(process or os.getpid()).memory_info().rss)
    except psutil.Error:
        return 0


@functools.lru_cache(maxsize=8)
def _process(number: int) -> psutil.Process:
    return psutil.Process(number)


def memory_maps() -> int:
    """Memory maps of this process; 0 where the system does not list them, and has no such limit."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def restart_peak() -> None:
    """Restart ``peak`` at what this process holds (proc(5): 5).  Raises OSError where the system cannot."""
    (PROC / "clear_refs").write_text("5")


def peak() -> int:
    """The most bytes that this process held (VmHWM) since ``restart_peak``; psutil does not report them.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    OSError
        Where the system does not report them either.
    """
    found = re.search(r"^VmHWM:\s*(\d+) kB$", (PROC / "status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError("no VmHWM")
    return int(found[1]) * 1024


class Held:
    """The memory that a job holds, with the programs that it started: processes of one session."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._others = 0
        self._next = 0.0

    def now(self) -> int:
        """Bytes; the programs' part may be from a while ago, as it takes longer to find."""
        started = time.monotonic()
        if started >= self._next:
            self._others = sum(map(resident, of_session(self._session)))
            ended = time.monotonic()
            self._next = ended + (ended - started) / LOOKING
        return resident(self._session) + self._others


def of_session(first: int) -> list[int]:
    """Processes of a session other than its first one.

    Parameters
    ----------
    first
        Number of the process that leads the session.

    Returns
    -------
    list[int]
        Numbers of processes; none where there is no such session.
    """
    return [pid for pid in psutil.pids() if pid != first and _session(pid) == first]


def _session(process: int) -> int:
    try:
        return os.getsid(process)
    except OSError:  # it is gone, or another user's
        return 0


def kills() -> int:
    """Number of processes that the system has ended so far for lack of memory; 0 where it does not count them."""
    found = re.search(r"^oom_kill (\d+)$", system_file(Path("/proc/vmstat")), re.MULTILINE)
    return int(found[1]) if found else 0


def system_file(path: Path) -> str:
    """Content of a file of the system; "" where there is none.

    Parameters
    ----------
    path
        Path, such as ``/proc/self/status``.

    Returns
    -------
    str
        Content without blanks at either end.
    """
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
