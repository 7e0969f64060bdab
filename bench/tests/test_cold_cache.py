"""Clearing the caches: their sizes, and when all of them are overwritten.  test_figures tests the effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.sampling import cold_cache
from attention_conformance.bench.sampling.cold_cache import TIMES, UNTOLD, buffer, last_bytes
from attention_conformance.bench.sampling.stopwatch import stopwatch
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework


@pytest.fixture(autouse=True)
def _own_buffer() -> Iterator[None]:
    """Each test has its own buffer."""
    buffer.cache_clear()
    yield
    buffer.cache_clear()


def system(root: Path, core: int, *levels: tuple[str, str, str]) -> Path:
    """Linux' files on a core's caches: level, size and the cores that share it."""
    for number, (level, size, sharing) in enumerate(levels):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{number}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "shared_cpu_list").write_text(f"{sharing}\n")
        if size:
            (folder / "size").write_text(f"{size}\n")
    return root


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores are usable")
def test_last_caches_of_all_usable_cores_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores share a cache and a third has another one; nearer caches and unusable cores do not count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    for core, sharing in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (4, "4-5")):
        system(tmp_path, core, ("1", "48K", str(core)), ("2", "1024K", str(core)), ("3", "32768K", sharing))
    assert last_bytes(tmp_path) == 2 * 2**25


def test_caches_that_are_not_told_have_a_stated_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is used on macOS, and if the kernel knows a cache but not its size."""
    assert last_bytes(tmp_path) is None
    for core in range(os.cpu_count() or 1):
        system(tmp_path, core, ("3", "", "0"))
    assert last_bytes(tmp_path) is None
    monkeypatch.setattr(cold_cache, "last_bytes", lambda: None)
    assert buffer(Framework.NUMPY, "cpu").size == TIMES * UNTOLD["cpu"]


def test_caches_are_cleared_before_every_call_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole buffer is copied before the call begins; warm calls are left alone."""
    log: list[str] = []
    arrays: Any = backend(Framework.NUMPY)
    made = arrays.copy

    def copy(array: np.ndarray) -> Callable[[], Any]:
        copied = made(array)

        def run() -> Any:
            log.append(f"copied {array.nbytes}")
            return copied()

        return run

    monkeypatch.setattr(arrays, "copy", copy)
    monkeypatch.setattr(cold_cache, "last_bytes", lambda: 2**20)
    warm, cold = (stopwatch(arrays, Framework.NUMPY, "cpu", cold) for cold in (False, True))
    log.clear()
    for watch in (cold, warm, cold):
        watch.time(lambda: log.append("call"), {})
    assert log == ["copied 2097152", "call", "call", "copied 2097152", "call"]


def test_copying_writes_all_of_a_buffer() -> None:
    """The copy equals the original to its last byte."""
    array = np.arange(2**16, dtype=np.float32)
    copied = backend(Framework.NUMPY).copy(array)()
    assert not np.shares_memory(copied, array)
    np.testing.assert_array_equal(copied, array)
