"""Emptying the caches: how large they are, and that a call is slower without what it finds there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import caches
from bench.caches import TIMES, UNTOLD, buffer, last_bytes
from bench.stopwatch import stopwatch
from impls.backend import backend
from impls.contract import Framework

#: Bytes of what is read in a call: more than a core's nearest caches hold, and less than the last one does.
READ = 2**22

#: Calls from warm and from cold caches each, and how much longer the quickest cold one takes at least.
CALLS, SLOWER = 30, 1.2


@pytest.fixture(autouse=True)
def _own_buffer() -> Iterator[None]:
    """A test's buffer is its own."""
    buffer.cache_clear()
    yield
    buffer.cache_clear()


def system(root: Path, core: int, *levels: tuple[str, str, str]) -> Path:
    """What Linux tells of a core's caches: level, size and the cores that share it."""
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
    """Two that share one and a third with another have two; nearer ones and unusable cores do not count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    for core, sharing in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (4, "4-5")):
        system(tmp_path, core, ("1", "48K", str(core)), ("2", "1024K", str(core)), ("3", "32768K", sharing))
    assert last_bytes(tmp_path) == 2 * 2**25


def test_caches_that_are_not_told_have_a_stated_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, and on machines whose kernel knows the cache and not its size."""
    assert last_bytes(tmp_path) is None
    for core in range(os.cpu_count() or 1):
        system(tmp_path, core, ("3", "", "0"))
    assert last_bytes(tmp_path) is None
    monkeypatch.setattr(caches, "last_bytes", lambda: None)
    assert buffer(Framework.NUMPY, "cpu").size == TIMES * UNTOLD["cpu"]


def test_a_call_finds_nothing_in_cold_caches() -> None:
    """Reading 4 MiB again takes longer after the caches were emptied, the quickest of many calls each."""
    data = np.ones(READ // 4, np.float32)
    arrays = backend(Framework.NUMPY)
    watches = [stopwatch(arrays, Framework.NUMPY, "cpu", cold) for cold in (False, True)]
    times: tuple[list[float], list[float]] = [], []
    for _ in range(CALLS):
        for watch, taken in zip(watches, times, strict=True):
            data.sum()
            taken.append(watch.time(data.sum, {})[0])
    assert min(times[1]) > SLOWER * min(times[0])
