"""What a job may take: sizes in words, and the memory that processes hold."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from impls import limits

needs_proc = pytest.mark.skipif(not limits.bounded(), reason="memory is looked up in /proc")


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
    """A size is said in the largest unit that fits."""
    assert limits.size_text(size) == text


@needs_proc
def test_memory_that_is_taken_is_seen() -> None:
    """What a process holds grows by what it takes."""
    before = limits.resident()
    taken = np.ones(1 << 26, np.uint8)
    assert limits.resident() - before >= 0.9 * taken.nbytes


#: Starts a program that takes 128 MiB, in its own session or in another one, and ends with its standard input.
STARTER = """
import subprocess, sys
code = "import sys; kept = b'x' * (1 << 27); print(flush=True); sys.stdin.read()"
subprocess.run([sys.executable, "-c", code], start_new_session=sys.argv[1] == "apart")
"""


@needs_proc
@pytest.mark.parametrize("where", ["together", "apart"])
def test_programs_of_a_session_count(where: str) -> None:
    """A program that a process started counts with it, and one of another session does not."""
    with subprocess.Popen(  # noqa: S603  (our own lines)
        [sys.executable, "-c", STARTER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        held = limits.Held(starter.pid).now()
        starter.communicate()
    assert (held >= 1 << 27) == (where == "together")


@needs_proc
def test_a_process_that_is_gone_holds_nothing() -> None:
    """Between two looks a process may end."""
    with subprocess.Popen([sys.executable, "-c", ""]) as program:
        program.wait()
    assert limits.resident(program.pid) == 0


def test_the_default_is_less_than_there_is() -> None:
    """Without an option a job may take most of the machine's memory, and not all of it."""
    default = limits.default()
    assert default is None or default < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
