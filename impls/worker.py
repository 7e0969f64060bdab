"""The process in which implementations run: takes jobs from its parent one by one until the parent is gone.

A job is the name of a function (``module:function``) and its arguments; the answer is its result or its
exception.  Started by ``impls.isolation`` as ``python -m impls.worker FD``.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from impls.isolation import SCRATCH
from impls.loading import load

#: Seconds between two looks at whether the parent still lives.
WATCH = 1.0


def main(descriptor: int) -> None:
    """Serve jobs from the connection with this file descriptor until it is closed."""
    faulthandler.enable(all_threads=False)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # What an implementation prints is kept apart from the answers, and behind what its crash says.
    os.dup2(2, 1)
    connection = Connection(descriptor)
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):  # the parent is gone, or has closed the connection to end this process
            _end()
        try:
            answer = (True, load(name)(*arguments))
        except Exception as error:
            answer = (False, (error, traceback.format_exc()))
        _send(connection, answer)


def _end_with_parent(parent: int) -> None:
    """End this process when its parent is gone: one that was killed could not end it, and a job may never return."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    _end()


def _end() -> NoReturn:
    """End this process, and leave nothing behind on disk."""
    if os.getpgrp() == os.getpid():  # with the programs that a job started: they are one process group
        shutil.rmtree(os.environ.get(SCRATCH, ""), ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _send(connection: Connection, answer: tuple[bool, object]) -> None:
    try:
        connection.send(answer)
    except OSError:  # the parent is gone
        _end()
    except Exception as error:  # an answer that cannot be pickled
        connection.send((False, (TypeError(f"the answer cannot be sent: {error}"), traceback.format_exc())))


if __name__ == "__main__":
    main(int(sys.argv[1]))
