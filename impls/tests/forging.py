"""Implementations that find the worker's connection and send data of their own: for tests of the isolation.

Each returns zeros, which are wrong, so it could only pass by what it sends.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from attention_conformance.impls.calls import Reply
from attention_conformance.impls.tests.fakes import right

#: The variable that names the file that a pickle would write when it is read.
MARK = "ATTENTION_TEST_MARK"


class Bomb:
    """An object that writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.write_text, (Path(os.environ[MARK]), "executed")


def connections() -> list[int]:
    """File descriptors of this process's sockets."""
    found = []
    for descriptor in range(3, 4096):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found.append(descriptor)
        except OSError:
            continue
    return found


def send(data: bytes) -> None:
    """Write to every socket."""
    for descriptor in connections():
        os.write(descriptor, data)


def request() -> tuple[bytes, Any]:
    """The number of the request that is being served, and the wire module, taken from the worker's stack frames."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and "number" not in frame.f_locals:
        frame = frame.f_back
    assert frame is not None
    return frame.f_locals["number"], frame.f_locals["wire"]


def sends_a_pickle(q: Any, k: Any, v: Any) -> Any:
    """(a) Send a pickle that ``multiprocessing`` would have unpickled."""
    data = pickle.dumps((True, Bomb()))
    send(len(data).to_bytes(4, "big") + data)
    return np.zeros_like(v)


def sends_a_pickle_through_an_object(q: Any, k: Any, v: Any) -> Any:
    """(a) Send a pickle through the first object with a ``send`` that the collector knows, or else through a socket."""
    for each in gc.get_objects():
        if type(each).__name__ in ("Connection", "socket"):
            each.send(Bomb() if type(each).__name__ == "Connection" else pickle.dumps(Bomb()))
            return np.zeros_like(v)
    (first, *_) = connections()
    socket.socket(fileno=os.dup(first)).sendall(pickle.dumps(Bomb()))
    return np.zeros_like(v)


def forges_an_answer(q: Any, k: Any, v: Any) -> Any:
    """(b) Send the right answer with the request's number, then return a wrong one."""
    number, wire = request()
    reply = Reply("returned", {"output": right(q, k, v)})
    send(b"".join(map(bytes, wire.result(number, reply, 0.001, 1 << 30))))
    return np.zeros_like(v)


def forges_another_record(q: Any, k: Any, v: Any) -> Any:
    """Send a record of another type with the request's number."""
    number, wire = request()
    send(b"".join(map(bytes, wire.result(number, {"status": "passed"}, 0.001, 1 << 30))))
    return np.zeros_like(v)


def forges_an_exception(q: Any, k: Any, v: Any) -> Any:
    """Send an exception that would end a run, with the request's number."""
    number, wire = request()
    send(b"".join(map(bytes, wire.failure(number, KeyError("the run"), 0.001))))
    return np.zeros_like(v)


def takes_the_seal(q: Any, k: Any, v: Any) -> Any:
    """Send the right answer and its seal, which it reads from the connection as the worker would."""
    number, wire = request()
    (descriptor, *_) = connections()
    _, seal, _ = wire.read_request(descriptor)
    reply = Reply("returned", {"output": right(q, k, v)})
    send(b"".join(map(bytes, [*wire.result(number, reply, 0.001, 1 << 30), *wire.sealed(seal)])))
    return np.zeros_like(v)


def sends_a_huge_header(q: Any, k: Any, v: Any) -> Any:
    """(c) Send an answer that claims to have 2**60 bytes."""
    number, wire = request()
    send(wire.ANSWER.pack(wire.MAGIC, wire.RESULT, number, 0, 100, 1 << 60, 0.0))
    return np.zeros_like(v)


def closes_the_connection(q: Any, k: Any, v: Any) -> Any:
    """(d) Send nothing, and close the connection."""
    for descriptor in connections():
        os.close(descriptor)
    return np.zeros_like(v)


def sends_without_end(q: Any, k: Any, v: Any) -> Any:
    """(f) Send bytes forever."""
    while True:
        send(b"\0" * 65536)


def answers_twice(q: Any, k: Any, v: Any) -> Any:
    """Return the right answer, and send another one a moment later, between two requests."""

    def later() -> None:
        time.sleep(0.2)
        send(b"more")

    threading.Thread(target=later, daemon=True).start()
    return right(q, k, v)
