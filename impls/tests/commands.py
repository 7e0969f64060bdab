"""Commands in processes forked from one that has already imported what they import, which saves seconds.

``run`` takes a command as ``subprocess.run`` does.  ``python -m MODULE …`` is run in a fork.  Any other command is
started normally, and so is one with a pytest plugin of its own, which may hide what has been imported, one with
variables that are read when Python or NumPy starts, and every command where there is no ``fork``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Modules that nearly every command imports; no framework is among them.
PRELOADED = (
    "numpy",
    "ml_dtypes",
    "pytest",
    "_pytest.terminal",
    "hypothesis.internal.observability",
    "attention_conformance.conformance.plugin",
)

#: Prefixes of the variables that Python and NumPy read when they start.
_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_")

_SERVER: list[subprocess.Popen[str]] = []
_STARTED_WITH = dict(os.environ)


def run(
    command: Sequence[str], *, cwd: Path, timeout: float = 300, env: Mapping[str, str] | None = None, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a folder; its exit status and what it printed.  Raises TimeoutExpired.

    ``first`` names a function, "module:function", that a fork calls before it becomes the command: one that leaves out
    slow steps that the test does not look at.  A command that is started normally does everything.
    """
    environment = dict(os.environ if env is None else env)
    if not _forked(command, environment):
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    with tempfile.TemporaryDirectory() as folder:
        names = {"out": f"{folder}/out", "err": f"{folder}/err"}
        request = {"words": [*command[2:]], "cwd": str(cwd), "env": environment, "first": first, **names}
        status = _status_of(request, command, timeout)
        out, err = (Path(names[name]).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    return subprocess.CompletedProcess(command, status, out, err)


def _forked(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    if not hasattr(os, "fork") or list(command[:2]) != [sys.executable, "-m"]:
        return False
    if any(name == "-p" and not each.startswith("no:") for name, each in itertools.pairwise(command)):
        return False
    names = {name for name in {*environment, *_STARTED_WITH} if name.startswith(_AT_START)}
    return all(environment.get(name) == _STARTED_WITH.get(name) for name in names)


def _status_of(request: Mapping[str, Any], command: Sequence[str], timeout: float) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({**request, "timeout": timeout}) + "\n")
    server.stdin.flush()
    status = int(server.stdout.readline() or -1)
    if status == _LATE:
        raise subprocess.TimeoutExpired(command, timeout)
    return status


def _server() -> subprocess.Popen[str]:
    """The process that forks, started with the first command and ended with this process."""
    if not _SERVER or _SERVER[0].poll() is not None:
        here = Path(__file__).parents[2]
        start = "from attention_conformance.impls.tests.commands import serve; serve()"
        command = [sys.executable, "-c", start]
        _SERVER[:] = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here)]
        atexit.register(_SERVER[0].terminate)
    return _SERVER[0]


# In the process that forks.

#: The status that is answered for a command that did not end in time.
_LATE = 1000


def serve() -> None:
    """Fork a process for each line of JSON on standard input, and answer its exit status."""
    path = [each for each in sys.path if each != str(Path(__file__).parents[2]) and each]
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _become(request, path)
        print(_ended(child, request["timeout"]), flush=True)


def _ended(child: int, timeout: float) -> int:
    """A child's exit status, as subprocess reports it; a child that takes too long is killed with what it started."""
    deadline, pause = time.monotonic() + timeout, 0.002
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return _LATE
        time.sleep(pause := min(2 * pause, 0.02))


def _become(request: Mapping[str, Any], path: Sequence[str]) -> NoReturn:
    """Become ``python -m MODULE …`` in the folder."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT), number)
    modes = ((0, "r"), (1, "w"), (2, "w"))
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, encoding="utf-8", closefd=False) for n, mode in modes)  # noqa: SIM115
    if request["first"]:
        name, _, function = request["first"].partition(":")
        getattr(importlib.import_module(name), function)()
    module, *arguments = request["words"]
    if module == "pytest":  # modules that are already imported cannot be rewritten, and need not be
        arguments = ["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]
    sys.argv, sys.path[:] = ["-m", *arguments], [request["cwd"], *path]
    sys.orig_argv = [sys.executable, "-m", *request["words"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)
