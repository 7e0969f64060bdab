"""Threads and cores: how many threads a library may use, the cores this process may use, and where a round begins.

The number of threads is equal for all, and is set by the environment of the process that a library is imported in.

A thread stays on the core that it was on, round after round, and on a shared machine one core may be slower than
another by half for seconds, while a neighbour works on its other hardware thread.  Then one process is slow and another
is not, depending on the core that they happen to be on.  So rounds begin on the cores in turn; the command
``python -m studies cores`` measures the difference.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from threadpoolctl import ThreadpoolController

from attention_conformance.impls.process import limits
from attention_conformance.impls.process.limits import system_file

#: Variable with the number of threads for the libraries of this process; those without a variable of their own read it.
VARIABLE = "ATTENTION_CONFORMANCE_THREADS"

#: Variables that libraries read: OpenMP's runtimes, MKL, OpenBLAS, Accelerate, NumExpr, and XLA's pool (its NPROC).
VARIABLES = (
    VARIABLE,
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NPROC",
)

#: Where Linux lists which cores share which cache.
PROCESSORS = Path("/sys/devices/system/cpu")


def libraries() -> ThreadpoolController:
    """The linear algebra libraries and OpenMP runtimes that are loaded by now, with their threads."""
    return ThreadpoolController()


@functools.cache
def blas() -> ThreadpoolController:
    """NumPy's BLAS, and any other that the process holds; empty where threadpoolctl knows none, as on macOS.

    Returns
    -------
    ThreadpoolController
        Controller of their numbers of threads; the same one in every call.
    """
    return libraries().select(user_api="blas")


def environment(threads: int) -> dict[str, str]:
    """The variables of a process whose libraries must use this many threads.

    Parameters
    ----------
    threads
        1 or more.

    Returns
    -------
    dict[str, str]
        Values by the names of the variables.
    """
    return dict.fromkeys(VARIABLES, str(threads))


def wanted() -> int:
    """Threads that this process's libraries must use; 0 leaves it to them."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def affinity() -> frozenset[int]:
    """The cores that this thread may run on; none where the system does not let a thread be bound.

    Returns
    -------
    frozenset[int]
        Numbers of cores.
    """
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def usable_cores() -> int:
    """Number of cores that this process, and so its workers, may run on, or fewer where a quota limits its time.

    Returns
    -------
    int
        1 or more.
    """
    found, quota = len(affinity()) or os.cpu_count() or 1, _quota()
    return found if quota is None else min(found, max(1, math.ceil(quota)))


@functools.cache
def _quota() -> float | None:
    """Cores' worth of time of this process, which is read from files."""
    return limits.cpu_quota()


def begin_on(number: int) -> None:
    """Move the calling thread to the core that comes next by ``number``, and the others off it.

    The system may then place them all as it likes.  The cores are those that this process may use and that share the
    last cache with the first of them, so that a move never takes a thread away from its memory.  A thread that spins on
    that core, as those of ONNX Runtime do between two calls, would otherwise stay there for tens of milliseconds.
    Nothing is moved where the system does not allow it.  Threads that are started later may use all cores, as before.

    Parameters
    ----------
    number
        Number of the round; cores are taken in turn.
    """
    found = near()
    if len(found) > 1:
        core = found[number % len(found)]
        for thread in _others():
            _move_through(thread, lambda usable: usable - {core})
        _move_through(0, lambda usable: {core})


def _move_through(thread: int, wanted: Callable[[set[int]], set[int]]) -> None:
    """Let a thread use only the wanted ones of its cores for a moment, and then all of them again."""
    with contextlib.suppress(OSError):  # a thread that ended meanwhile, a core that was taken away
        usable = os.sched_getaffinity(thread)
        if some := wanted(usable):
            os.sched_setaffinity(thread, some)
            os.sched_setaffinity(thread, usable)


def _others() -> list[int]:
    """The other threads of this process; none where not listed.  psutil would read a file of each, in every round."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task") if int(name) != threading.get_native_id()]
    except OSError:
        return []


def near() -> tuple[int, ...]:
    """The cores that rounds begin on, in order; none where the system does not allow a thread to be moved."""
    usable = affinity()
    return _near(usable) if usable else ()


def places(count: int) -> tuple[tuple[int, ...], ...]:
    """Places for processes of ``count`` cores each, among those that share the last cache; timing uses the first place.

    Parameters
    ----------
    count
        Cores of a process; 0 for one that is not bound.

    Returns
    -------
    tuple[tuple[int, ...], ...]
        Numbers of cores, one place at least; an empty one where the system does not let a thread be bound.
    """
    found = near()
    if len(found) < count or not count:
        return (tuple(sorted(affinity())[:count]),)
    return tuple(found[at : at + count] for at in range(0, len(found) - count + 1, count))


def move(cores: Sequence[int]) -> None:
    """Bind all threads of this process to these cores; threads that are started later inherit it.

    Parameters
    ----------
    cores
        Numbers of cores.
    """
    for thread in (0, *_others()):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            os.sched_setaffinity(thread, cores)


def description() -> str:
    """Sentence about the cores that rounds begin on, for the record of a run.

    Returns
    -------
    str
        A part of a sentence.
    """
    return "on each core in turn" if len(near()) > 1 else "where the system likes"


@functools.cache
def _near(usable: frozenset[int]) -> tuple[int, ...]:
    """Cores that share the last cache with the first of them, in order; all where that is not known."""
    first = min(usable)
    sharing = next(iter(last_caches([first], PROCESSORS)), "")
    return tuple(sorted(usable & _listed(sharing) if sharing else usable)) or (first,)


def last_caches(cores: Iterable[int], processors: Path = PROCESSORS) -> dict[str, int]:
    """The last caches of the cores, as Linux lists them: the cores of each (``0-3,8``), and its bytes, 0 if not known.

    Parameters
    ----------
    cores
        Numbers of cores.
    processors
        The folder of the system that lists them; another one in tests.

    Returns
    -------
    dict[str, int]
        Bytes by the cores that share the cache.
    """
    found = {}
    for core in cores:
        levels = [_cache(path) for path in (processors / f"cpu{core}/cache").glob("index[0-9]*")]
        if levels:
            _, sharing, size = max(levels)
            found[sharing] = size
    return found


def _cache(folder: Path) -> tuple[int, str, int]:
    """Level, the cores that share it, and bytes of one cache."""
    level, sharing, size = (system_file(folder / name) for name in ("level", "shared_cpu_list", "size"))
    number = size.removesuffix("K")
    return int(level or 0), sharing, 1024 * int(number) if number.isdigit() else 0


def _listed(text: str) -> frozenset[int]:
    """The numbers of a list as Linux prints it: ``0-3,8``."""
    ranges = (part.partition("-") for part in text.split(","))
    return frozenset(number for low, _, high in ranges for number in range(int(low), int(high or low) + 1))
