"""Worker process, the process's side: takes jobs from its parent one by one until the parent is gone.

A job is the name of a function (``module:function``) and its arguments; the answer is its result or its exception,
as ``wire.py`` writes it.
``pool.py`` runs this file by its path, as ``python -P worker.py DESCRIPTOR SETTINGS``.  The suite's packages
are imported from where SETTINGS say, before anything else is, so that neither the folder that the worker runs in nor
PYTHONPATH can replace them.  So the top of this file imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import importlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, NoReturn

#: Variable that names a folder of the worker's own.  Files that a killed job left there are removed with the worker.
SCRATCH = "ATTENTION_CONFORMANCE_SCRATCH"

#: The folder's name.
_SCRATCH = ""

#: Seconds between two looks at whether the parent still lives.
WATCH = 1.0

#: PR_SET_PDEATHSIG of Linux' prctl: the signal that a process gets when its parent ends.
PARENT_ENDED = 1


#: File descriptors among which the connection's is drawn.
DESCRIPTORS = range(64, 512)

#: Message where the connection is closed, which only the job can have done.
CLOSED = "the job closed the connection of its process"

#: The job that asks whether the parent may stop this process between two jobs.
STOPPABLE = ""


def main(
    descriptor: int, packages: Mapping[str, Sequence[str]], cores: Sequence[int], stoppable: bool, largest: int
) -> None:
    """Serve jobs from the connection with this file descriptor until it is closed.

    Parameters
    ----------
    packages
        Folders of modules, by each import package of the suite.
    cores
        Numbers of the cores that this process may use; none for all.
    stoppable
        Whether the parent wants to stop this process between two jobs.
    largest
        Most bytes of arrays in an answer.
    """
    global _SCRATCH
    _SCRATCH = os.environ.get(SCRATCH, "")  # which a gate's worker has no longer in its environment
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    faulthandler.enable(all_threads=False)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # An implementation's output is kept apart from the answers, and goes where the message of its crash goes.
    os.dup2(2, 1)
    descriptor = private(descriptor)
    stoppable = stoppable and _killed_with_parent()
    wire = module_beside("wire")
    import_packages(packages)
    with contextlib.suppress(OSError):  # the folder is gone
        sys.path.append(os.getcwd())  # for package.module:function; after all else, so that it shadows nothing
    from attention_conformance.impls.loading import load

    with contextlib.suppress(ImportError):  # another revision may have none
        importlib.import_module("attention_conformance.impls.process.clocks")  # before any foreign code
    while True:
        try:
            kind, number, job = wire.read_request(descriptor)
            if kind == wire.SEAL:
                wire.write_answer(descriptor, wire.sealed(number))
                continue
        except (EOFError, OSError) as error:  # the parent is gone, or has closed the connection to end this process
            _end(error)
        name, arguments = job
        started = perf_counter()  # bound before any foreign code was loaded
        try:
            answer: Any = stoppable if name == STOPPABLE else load(name)(*arguments)
            answer = wire.result(number, answer, perf_counter() - started, largest)
        except Exception as error:
            answer = wire.failure(number, error, perf_counter() - started)
        try:
            wire.write_answer(descriptor, answer)
        except OSError as error:  # the parent is gone
            _end(error)
        del job, arguments, answer


def private(descriptor: int) -> int:
    """The connection at a number that no argument and no variable names, which no program inherits."""
    with contextlib.suppress(OSError):  # fewer files are allowed
        found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, secrets.choice(DESCRIPTORS))
        os.close(descriptor)
        return found
    os.set_inheritable(descriptor, False)
    return descriptor


def module_beside(name: str) -> ModuleType:
    """A module next to this file: the parent's own, even where the packages are those of another checkout."""
    spec = importlib.util.spec_from_file_location(
        f"_attention_conformance_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def import_packages(packages: Mapping[str, Sequence[str]]) -> None:
    """Import packages from their folders, the first of which has the ``__init__.py``, whatever sys.path has.

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
    """End this process when its parent is gone: a killed parent could not end it, and a job may never return."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    _end()


def _end(error: BaseException | None = None) -> NoReturn:
    """End this process, and leave nothing behind on disk."""
    if isinstance(error, OSError) and error.errno in (errno.EBADF, errno.ENOTSOCK):
        print(CLOSED, file=sys.stderr, flush=True)
    if os.getpgrp() == os.getpid():  # with the programs that a job started: they are one process group
        shutil.rmtree(_SCRATCH, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    given = sys.argv[1:]
    del sys.argv[1:]  # libraries read it
    main(int(given[0]), **json.loads(given[1]))
