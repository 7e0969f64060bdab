"""First calls: one request in forked processes, as the first and then as the second call of each process.

The parent has imported the implementation and called nothing, so whatever a library chooses when it is first used (a
kernel by the kind of processor, a pool of threads, a table) is chosen in the fork.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import select
import signal
import time
from dataclasses import dataclass, replace

from attention_conformance.impls.calls import Reply, Request, call
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.loading import load_function
from attention_conformance.impls.process.pool import cause

#: Bytes that are read from a fork at once.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class FirstCall:
    """The replies to the first and the second call of a process, and the number of processes that gave these two."""

    first: Reply
    second: Reply
    processes: int


@dataclass(frozen=True)
class FirstCalls:
    """All processes of one request: each distinct pair of replies once, and how the other processes ended."""

    kinds: tuple[FirstCall, ...]
    #: "killed by SIGSEGV" or "did not return", one for each process that gave no results.
    lost: tuple[str, ...] = ()


def ready(implementation: Implementation) -> None:
    """Import what a call needs, without using it.  Raises ImplementationError if that fails."""
    load_function(implementation)


def first_calls(implementation: Implementation, request: Request, processes: int, seconds: float) -> FirstCalls:
    """Fork ``processes`` times and call twice in each, ``seconds`` at most for both calls."""
    load_function(implementation)
    kinds: dict[tuple[str, str], FirstCall] = {}
    lost = []
    for _ in range(processes):
        answer = _forked(implementation, request, seconds)
        if isinstance(answer, str):
            lost.append(answer)
            continue
        key = (_digest(answer[0]), _digest(answer[1]))
        known = kinds.get(key)
        kinds[key] = FirstCall(*answer, 1) if known is None else replace(known, processes=known.processes + 1)
    return FirstCalls(tuple(kinds.values()), tuple(lost))


def _forked(implementation: Implementation, request: Request, seconds: float) -> tuple[Reply, Reply] | str:
    """The two replies of a fork, or how it ended."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        try:
            first, second = call(implementation, request), call(implementation, request)
            with os.fdopen(sink, "wb") as pipe:
                pickle.dump((first, second), pipe)
        finally:
            os._exit(0)
    os.close(sink)
    content, end = bytearray(), time.monotonic() + seconds
    try:
        while select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            content += chunk
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"did not return within {seconds:g} s"
    finally:
        os.close(source)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return cause(-os.WTERMSIG(status))
    if not content:
        return "ended without an answer"
    answer: tuple[Reply, Reply] = pickle.loads(bytes(content))  # noqa: S301  (of our own fork)
    return answer


def _digest(reply: Reply) -> str:
    """Digest that distinguishes two replies by status and results, not by times."""
    found = hashlib.sha256(f"{reply.status} {reply.text}".encode())
    for name, array in reply.results.items():
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()
