"""Workers forked from a process that has imported torch: each is its own process, but starts seconds sooner.

``workers`` has the part of ``subprocess`` that ``pool.py`` uses.  A worker runs the same code with the same arguments,
files and variables, and nothing of the suite is imported before the fork; only torch, and what torch imports, is there.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

#: Most bytes of a request and of an answer.
LARGEST = 1 << 20

#: Seconds between two checks whether a worker has ended.
LOOK = 0.01

_SERVERS: list[tuple[subprocess.Popen[bytes], socket.socket]] = []


class Forked:
    """A worker process with the interface of ``subprocess.Popen``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int],
        stdout: Any,
        env: Mapping[str, str],
        cwd: Any,
        **_: Any,
    ) -> None:  # fmt: skip
        file, descriptor, settings = command[-3:]
        assert [int(descriptor)] == list(pass_fds)
        asked = {"file": file, "settings": settings, "env": dict(env), "cwd": None if cwd is None else str(cwd)}
        self.pid: int = _asked(asked, [pass_fds[0], stdout.fileno()])
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = _asked({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.  Raises TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            time.sleep(LOOK)
        return status


#: A replacement for the module ``subprocess``.
workers = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def _asked(request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
    if not _SERVERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The server is given only the number of its connection; -P, as workers are started.
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        _SERVERS.append((process, ours))
        atexit.register(_close)
    _, connection = _SERVERS[0]
    socket.send_fds(connection, [json.dumps(request).encode()], files)
    return json.loads(connection.recv(LARGEST))


def _close() -> None:
    process, connection = _SERVERS.pop()
    connection.close()
    process.wait()


# The server's side.


def serve(connection: socket.socket) -> None:
    """Fork workers until the connection is closed."""
    while True:
        data, files, *_ = socket.recv_fds(connection, LARGEST, 2)
        if not data:
            return
        request = json.loads(data)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            connection.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            continue
        pid = os.fork()
        if pid == 0:
            connection.close()
            _work(files, **request)
        for each in files:
            os.close(each)
        connection.send(json.dumps(pid).encode())


def _work(files: Sequence[int], file: str, settings: str, env: Mapping[str, str], cwd: str | None) -> NoReturn:
    """Be a worker."""
    os.setsid()
    descriptor, printed = files
    for standard in (1, 2):
        os.dup2(printed, standard)
    os.environ.clear()
    os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    sys.argv[:] = [file, str(descriptor), settings]
    try:
        runpy.run_path(file, run_name="__main__")
    finally:
        os._exit(1)


if __name__ == "__main__":
    import torch  # noqa: F401  (what a fork need not import)

    serve(socket.socket(fileno=int(sys.argv[1])))
