"""Processes that Ctrl-C ends, whatever this one was told about it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Seconds to wait for an end, and how often Ctrl-C is pressed.
PATIENCE, PRESSES = 8, 15


@contextlib.contextmanager
def interruptible(command: Sequence[str], folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a folder, with the usual meaning of SIGINT; it is killed if it is still there at the end.

    A job that a shell starts in the background ignores SIGINT, and so do the processes that it starts.
    """
    process = subprocess.Popen(
        command, cwd=folder, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> int:
    """Press Ctrl-C until the process ends; its exit status.

    Once is not always enough: Python ignores exceptions in the callbacks of its garbage collector, of which
    Hypothesis has one.
    """
    for _ in range(PRESSES):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(PATIENCE)
    raise subprocess.TimeoutExpired(process.args, PRESSES * PATIENCE)
