"""Jobs in NumPy on as many threads as its BLAS is set to, each with a BLAS of one thread meanwhile.

A threaded BLAS shares out matrix products alone, and waits for its threads in each of them; exp and the other passes
over an array stay on one.  A thread that takes whole jobs shares out both, as NumPy lets go of the interpreter in them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Job = TypeVar("Job")

#: The number of threads of a BLAS belongs to the process, so only one call at a time may change it.
_ONE_AT_A_TIME = Lock()


@functools.cache
def blas() -> ThreadpoolController:
    """NumPy's BLAS, and any other that the process holds; none that threadpoolctl knows, as on macOS, is empty."""
    return ThreadpoolController().select(user_api="blas")


def available() -> int:
    """The threads that NumPy's BLAS is set to (by OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, threadpoolctl)."""
    return min((each.num_threads for each in blas().lib_controllers), default=1)


def share_out(jobs: Sequence[Job], work: Callable[[Job, np.ndarray], None], scratch: Sequence[np.ndarray]) -> None:
    """Do the jobs in order, each with the scratch of its thread; the first is the caller's own.

    Each scratch has a thread, but there is none beyond the caller's and one for each core.
    Raises the first exception of any of them.
    """
    todo = iter(jobs)  # shared: each thread that is free takes the next one

    def serve(own: np.ndarray) -> None:
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other; the setting is the thread's own
            for job in todo:
                work(job, own)

    if len(scratch) == 1:
        serve(scratch[0])
        return
    with _ONE_AT_A_TIME, blas().limit(limits=1):
        others = [_helpers().submit(serve, own) for own in scratch[1:]]
        try:
            serve(scratch[0])
        finally:
            wait(others)  # whatever happened: they use memory that is the caller's
        for each in others:
            each.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that wait for the next call: starting one took 0.2 ms, of a call of 2 ms."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="numpy-tiled")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of its parent's threads
