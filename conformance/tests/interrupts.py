"""Processes that Ctrl-C ends, whatever this one was told about it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def interruptible(command: Sequence[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a folder with the usual meaning of SIGINT.

    A job that a shell starts in the background ignores it, and so do the processes that it starts.
    """
    return subprocess.Popen(  # noqa: S603  (our own command)
        command, cwd=folder, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options
    )
