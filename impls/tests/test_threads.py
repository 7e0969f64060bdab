"""Cores: the one on which a round begins."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from attention_conformance.impls.process import threads

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' sched_setaffinity")


def here() -> int:
    """The core of this thread."""
    return int(ctypes.CDLL(None).sched_getcpu())


@linux
def test_rounds_begin_on_the_cores_by_their_numbers() -> None:
    """The cores are used in turn; afterwards the thread, and those that it starts, may use all of them."""
    usable = os.sched_getaffinity(0)
    found = threads.near()
    for number in range(2 * len(found)):
        seen = []
        for _ in range(20):  # the system may move it on at once, but rarely does
            threads.begin_on(number)
            seen.append(here())
        assert seen.count(found[number % len(found)]) > 10
        assert os.sched_getaffinity(0) == usable
    allowed: list[set[int]] = []
    thread = threading.Thread(target=lambda: allowed.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    assert allowed == [usable]


def core_of(thread: int) -> int:
    """The core that another thread of this process last ran on (proc(5), field 39)."""
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[36])


@pytest.mark.slow(1)
@linux
@pytest.mark.skipif(len(threads.near()) < 2, reason="needs two cores")
def test_a_thread_that_spins_on_the_core_leaves_it() -> None:
    """A library's thread may spin between two calls; it is moved away, and may use all cores again afterwards."""
    usable = os.sched_getaffinity(0)
    spinner = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 4_000_000))
    spinner.start()
    thread = spinner.native_id
    assert thread is not None
    for number, core in enumerate(threads.near()):
        os.sched_setaffinity(thread, {core})
        while core_of(thread) != core:
            time.sleep(0.001)
        threads.begin_on(number)
        assert core_of(thread) == core  # it is bound to that core: nothing is changed
        os.sched_setaffinity(thread, usable)
        seen = set()
        for _ in range(3):
            threads.begin_on(number)
            seen.add(core_of(thread))
        assert seen != {core}
        assert os.sched_getaffinity(thread) == usable
    assert spinner.is_alive()
    spinner.join()


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 3), (0.5, 1), (100.0, 8)])
def test_a_quota_is_no_more_cores_than_it_gives_time_for(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may see all cores of its machine but use the time of only a few."""
    monkeypatch.setattr(threads, "affinity", lambda: frozenset(range(8)))
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    assert threads.usable_cores() == cores


@linux
def test_no_core_is_used_that_is_not_allowed() -> None:
    """A thread that is bound to one core stays there whatever the number."""
    usable = os.sched_getaffinity(0)
    one = max(usable)
    os.sched_setaffinity(0, {one})
    try:
        for number in range(3):
            threads.begin_on(number)
            assert here() == one
            assert os.sched_getaffinity(0) == {one}
    finally:
        os.sched_setaffinity(0, usable)


def test_where_threads_cannot_be_moved_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads cannot be moved on macOS."""
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    threads.begin_on(1)
    assert threads.near() == ()


@pytest.mark.parametrize(
    ("shared", "near"),
    [("0-1", (0, 1)), ("0,2-3", (0, 2, 3)), ("4-7", (0,)), (None, (0, 1, 2, 3)), ("", (0, 1, 2, 3))],
)
def test_cores_with_another_last_cache_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: str | None, near: tuple[int, ...]
) -> None:
    """Cores that share the first one's cache take part; all do where the system does not say."""
    for level, text in (("1", "0"), ("3", shared)):
        if text is not None and shared is not None:
            folder = tmp_path / f"cpu0/cache/index{level}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(level + "\n")
            (folder / "shared_cpu_list").write_text(text + "\n")
    monkeypatch.setattr(threads, "PROCESSORS", tmp_path)
    assert threads._near.__wrapped__(frozenset(range(4))) == near


@linux
def test_places_are_groups_of_cores_of_which_the_first_has_the_first_cores() -> None:
    """Places are as many as fit into the cores that share a cache; a larger process has all, an unbound one none."""
    found = threads.near()
    assert threads.places(1) == tuple((core,) for core in found)
    assert threads.places(len(found)) == (found,)
    every = tuple(sorted(os.sched_getaffinity(0)))
    assert threads.places(len(every) + 1) == (every,)
    assert threads.places(0) == ((),)


@linux
@pytest.mark.skipif(len(threads.near()) < 2, reason="needs two cores")
def test_all_threads_of_a_process_are_moved() -> None:
    """Existing threads are moved, and those that they start follow."""
    usable = os.sched_getaffinity(0)
    one, other = threads.near()[:2]
    waits = threading.Event()
    thread = threading.Thread(target=waits.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        for core in (one, other):
            threads.move([core])
            assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == {core}
    finally:
        threads.move(sorted(usable))
        waits.set()
        thread.join()
    assert os.sched_getaffinity(0) == usable
