"""Worker process, the process's side: takes jobs from its parent one by one until the parent is gone.

A job is the name of a function (``module:function``) and its arguments; the answer is its result or its exception.
``pool.py`` runs this file by its path, as ``python -P worker.py DESCRIPTOR SETTINGS``.  The suite's packages
are imported from where SETTINGS say, before anything else is, so that neither the folder that the worker runs in nor
PYTHONPATH can put others in their place.  So this file's top imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

#: Variable that names a folder of the worker's own.  What a job that was killed left there goes when the worker does.
SCRATCH = "ATTENTION_CONFORMANCE_SCRATCH"

#: Seconds between two looks at whether the parent still lives.
WATCH = 1.0

#: PR_SET_PDEATHSIG of Linux' prctl: the signal that a process is sent when its parent ends.
PARENT_ENDED = 1


def main(descriptor: int, packages: Mapping[str, Sequence[str]], cores: int, stoppable: bool) -> None:
    """Serve jobs from the connection with this file descriptor until it is closed.

    Parameters
    ----------
    packages
        Of each import package of the suite the folders that its modules are in.
    cores
        How many of the usable cores this process may use, the first ones; 0 for all.
    stoppable
        Whether the parent is told, as a first answer, if it may stop this process between two jobs.
    """
    faulthandler.enable(all_threads=False)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # What an implementation prints is kept apart from the answers, and behind what its crash says.
    os.dup2(2, 1)
    connection = Connection(descriptor)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if stoppable:
        _send(connection, (True, _killed_with_parent()))
    import_packages(packages)
    with contextlib.suppress(OSError):  # the folder is gone
        sys.path.append(os.getcwd())  # for package.module:function; behind all else, so that it shadows nothing
    from attention_conformance.impls.loading import load

    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):  # the parent is gone, or has closed the connection to end this process
            _end()
        try:
            answer: tuple[bool, object] = (True, load(name)(*arguments))
        except Exception as error:
            answer = (False, (error, traceback.format_exc()))
        _send(connection, answer)


def import_packages(packages: Mapping[str, Sequence[str]]) -> None:
    """Import packages from their folders, of which the first has the ``__init__.py``, whatever sys.path has.

    Raises ImportError where there is none.
    """
    for name, folders in packages.items():
        file = Path(folders[0], "__init__.py")
        if not file.is_file():
            raise ImportError(f"no package {name} in {file.parent}")
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=list(folders))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def _killed_with_parent() -> bool:
    """Have this process killed when its parent ends, even while it is stopped; False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PARENT_ENDED, signal.SIGKILL, 0, 0, 0) == 0)


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
    given = sys.argv[1:]
    del sys.argv[1:]  # libraries read it
    main(int(given[0]), **json.loads(given[1]))
