"""NumPy's tiled attention on several threads: the same bits, every exception, and the BLAS left unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.impls.numpy import tiled as tiled_plan
from attention_conformance.impls.numpy.tiled import attention as tiled
from attention_conformance.impls.numpy.tiled import available, share_out
from attention_conformance.impls.process.threads import blas

pytestmark = pytest.mark.slow

THREADS = 3


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call runs on three threads, however small it is."""
    monkeypatch.setattr(tiled_plan, "BLOCKS", ((8, 0),))
    monkeypatch.setattr(tiled_plan, "available", lambda: THREADS)


def _qkv() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((2, 3, 300, 16), dtype=np.float32) for _ in range(3))


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (40, 3)}], ids=["full", "causal", "window"])
def test_threads_change_no_bit(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call gives the same bits as on one thread, since each block is computed by one thread."""
    several = tiled(*_qkv(), **options)  # type: ignore[arg-type]
    monkeypatch.setattr(tiled_plan, "available", lambda: 1)
    with blas().limit(limits=1):  # as the BLAS is set where one thread is available
        alone = tiled(*_qkv(), **options)  # type: ignore[arg-type]
    assert several.tobytes() == alone.tobytes()


@pytest.mark.usefixtures("three_threads")
def test_infinities_raise_no_warning_on_any_thread() -> None:
    """NaN and infinities raise no warning on any thread, though each thread has its own NumPy error state."""
    q, k, v = _qkv()
    k[:] = np.inf
    with np.errstate(all="raise"):
        assert np.isnan(tiled(q, k, v)).all()


def test_each_job_is_done_once_by_threads_of_which_one_is_the_callers() -> None:
    """Three scratch arrays mean at most three threads; each job is done once, with the scratch of its thread."""
    done: list[tuple[int, int, str]] = []
    scratch = [np.empty(1) for _ in range(THREADS)]
    barrier = threading.Barrier(THREADS)

    def work(job: int, own: np.ndarray) -> None:
        if job < THREADS:
            barrier.wait(timeout=60)  # so that no thread does all of the jobs
        done.append((job, id(own), threading.current_thread().name))

    share_out(range(20), work, scratch)
    assert sorted(job for job, _, _ in done) == list(range(20))
    assert len({(own, name) for _, own, name in done}) == THREADS
    assert threading.current_thread().name in {name for _, _, name in done}


#: A separate process, as the copy of one that has other libraries' threads may hang in them.
COPIED = """
import os
import numpy as np
from attention_conformance.impls.numpy import tiled

tiled.BLOCKS, tiled.available = ((8, 0),), lambda: 3
q = k = v = np.random.default_rng(0).standard_normal((2, 3, 300, 16), dtype=np.float32)
expected = tiled.attention(q, k, v).tobytes()
copy = os.fork()
same = tiled.attention(q, k, v).tobytes() == expected
if not copy:
    os._exit(0 if same else 1)
assert same and os.waitpid(copy, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process cannot be copied here")
def test_the_copy_of_a_process_has_threads_of_its_own() -> None:
    """A forked process has none of its parent's waiting threads, and starts its own."""
    subprocess.run([sys.executable, "-c", COPIED], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_threads_wait_for_the_next_call() -> None:
    """Threads are kept between calls, and there are never more than the machine has cores."""
    for _ in range(50):
        share_out(range(3), lambda job, own: None, [np.empty(1) for _ in range(THREADS)])
    kept = [each for each in threading.enumerate() if each.name.startswith("numpy-tiled")]
    assert 1 <= len(kept) <= (os.cpu_count() or 1)


def test_an_exception_of_any_thread_reaches_the_caller() -> None:
    """An exception of a job is raised whichever thread did it."""
    raised = threading.Event()

    def work(job: int, own: np.ndarray) -> None:
        if threading.current_thread() is not threading.main_thread():
            raised.set()
            raise ZeroDivisionError
        assert raised.wait(timeout=60)

    with pytest.raises(ZeroDivisionError):
        share_out(range(2), work, [np.empty(1), np.empty(1)])


@pytest.mark.skipif(not blas().info(), reason="threadpoolctl knows no BLAS here")
def test_the_blas_has_one_thread_meanwhile_and_its_own_number_again_afterwards() -> None:
    """Jobs see a BLAS with one thread; afterwards, also after a job that raises, it has as many threads as before."""
    seen: list[int] = []

    def work(job: int, own: np.ndarray) -> None:
        seen.append(available())
        raise ZeroDivisionError

    with blas().limit(limits=2):
        with pytest.raises(ZeroDivisionError):
            share_out(range(2), work, [np.empty(1), np.empty(1)])
        assert set(seen) == {1}
        assert available() == 2
