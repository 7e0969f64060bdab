"""Limits of a job: sizes in words, and the memory that processes hold."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from attention_conformance.impls.process import limits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("4 gib", 4 << 30), ("4G", 4 << 30), ("500MB", 500_000_000), ("1.5k", 1536), ("77", 77)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    """A size has the usual units, those with an i being powers of 1024."""
    assert limits.size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4 elephants", "-1GiB", "0", "nan", "inf", "1e3", "4GiB 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Anything else is refused in one sentence."""
    with pytest.raises(ValueError, match="expected a size such as 4GiB"):
        limits.size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(4 << 30, "4 GiB"), (3 << 29, "1.5 GiB"), (5000, "4.88 KiB"), (77, "77 bytes")]
)
def test_a_size_is_said(size: int, text: str) -> None:
    """A size is written in the largest unit that fits."""
    assert limits.size_text(size) == text


def test_memory_that_is_taken_is_seen() -> None:
    """The memory that a process holds grows by what it takes.

    The memory is mapped afresh, as an array may reuse memory of freed arrays that the process still holds.
    """
    before, size = limits.resident(), 1 << 26
    with mmap.mmap(-1, size) as taken:
        np.frombuffer(taken, np.uint8)[:] = 1
        assert limits.resident() - before >= 0.9 * size


#: Bytes.
GIB = 2**30

#: Starts a program that takes 128 MiB, in its own session or in another one, until its standard input is closed.
STARTER = """
import subprocess, sys
code = "import sys; kept = b'x' * (1 << 27); print(flush=True); sys.stdin.read()"
subprocess.run([sys.executable, "-c", code], start_new_session=sys.argv[1] == "apart")
"""


@pytest.mark.parametrize("where", ["together", "apart"])
def test_programs_of_a_session_count(where: str) -> None:
    """A program that a process started counts with it; a program in another session does not."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        held = limits.Held(starter.pid).now()
        starter.communicate()
    assert (held >= 1 << 27) == (where == "together")


def test_a_process_that_is_gone_holds_nothing() -> None:
    """A process may end between two looks."""
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        program.wait()
    assert limits.resident(program.pid) == 0


def test_the_default_is_less_than_there_is() -> None:
    """Without an option a job may take most of the machine's memory, but not all of it."""
    default = limits.default()
    assert default < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def _eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 8 of 16 GiB are free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=8 * GIB))


def system(root: Path, groups: str = "0::/", **files: Any) -> Path:
    """The kernel's files in a folder; ``files`` by their path below the control groups, with "__" for "/"."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"{groups}\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def numbers(prefix: str, allowed: str, used: int, dropped: int = 0) -> dict[str, Any]:
    """The files of a control group of version 2."""
    return {
        f"{prefix}memory.max": allowed,
        f"{prefix}memory.current": str(used),
        f"{prefix}memory.stat": f"anon 1\ninactive_file {dropped}\n",
    }


@pytest.mark.usefixtures("_eight")
def test_without_a_control_group_the_machine_decides(tmp_path: Path) -> None:
    """Without a control group the machine's available memory counts."""
    assert limits.available(system(tmp_path)) == 8 * GIB


@pytest.mark.usefixtures("_eight")
def test_a_group_without_a_limit_decides_nothing(tmp_path: Path) -> None:
    """The limit of such a group is the word max."""
    assert limits.available(system(tmp_path, **numbers("", "max", GIB))) == 8 * GIB


@pytest.mark.usefixtures("_eight")
def test_the_rest_of_a_group_is_free(tmp_path: Path) -> None:
    """A group's free memory is its limit minus what it uses, of which file pages can be dropped."""
    assert limits.available(system(tmp_path, **numbers("", str(4 * GIB), 3 * GIB, GIB))) == 2 * GIB


@pytest.mark.usefixtures("_eight")
def test_a_group_further_up_limits_those_below(tmp_path: Path) -> None:
    """The narrowest of all groups that the process is in counts."""
    inner, outer = numbers("a__b__", "max", GIB), numbers("a__", str(3 * GIB), GIB)
    root = system(tmp_path, groups="0::/a/b", **inner, **outer)
    assert limits.available(root) == 2 * GIB


@pytest.mark.usefixtures("_eight")
def test_a_group_of_the_first_version_limits_too(tmp_path: Path) -> None:
    """A group of the first version has files of other names."""
    files = {"limit_in_bytes": str(3 * GIB), "usage_in_bytes": str(GIB), "stat": "x 1\n"}
    named: dict[str, Any] = {f"memory__job__memory.{name}": text for name, text in files.items()}
    root = system(tmp_path, groups="4:memory:/job", **named)
    assert limits.available(root) == 2 * GIB


@pytest.mark.usefixtures("_eight")
def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """The rest is never negative."""
    assert limits.available(system(tmp_path, **numbers("", str(GIB), 2 * GIB))) == 0


def test_without_any_group_s_files_the_machine_decides(tmp_path: Path) -> None:
    """Without the files of control groups, as on macOS, psutil's number counts."""
    assert limits.available(tmp_path) <= psutil.virtual_memory().total
    assert limits.control_groups("memory", tmp_path / "none")


def test_the_default_is_a_part_of_what_the_narrowest_group_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is a part of the narrowest group's limit, or of the machine's memory where no group has a limit."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, available=8 * GIB))
    for allowed, most in (("max", 16 * GIB), (str(4 * GIB), 4 * GIB), (str(2**63 - 4096), 16 * GIB)):
        root = system(tmp_path / allowed, **numbers("", allowed, GIB))
        assert limits.default(root) == int(limits.SHARE * most)
