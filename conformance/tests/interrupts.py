"""Processes that Ctrl-C ends, even if this process ignores SIGINT."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Seconds to wait for the process to end, and the number of times Ctrl-C is pressed.
PATIENCE, PRESSES = 8, 15


@contextlib.contextmanager
def interruptible(command: Sequence[str], folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a folder, with the default handling of SIGINT; kill it if it still runs at the end.

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
    """Press Ctrl-C until the process ends; return its exit status.

    One press is not always enough: Python ignores exceptions in callbacks of its garbage collector, and Hypothesis
    has such a callback.
    """
    for _ in range(PRESSES):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(PATIENCE)
    raise subprocess.TimeoutExpired(process.args, PRESSES * PATIENCE)
