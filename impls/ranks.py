"""Ranks: an implementation spread over several processes of torch.distributed, or over a mesh of virtual devices.

Callers see one function.  The worker process that has the function starts the ranks, workers of its own, at the first
call, and keeps them for later calls: shards go out, results are put together.  They are in the worker's process group,
so they end with it.  The exception names a rank that dies, hangs, disagrees, or is the only one to refuse.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.impls import calls, sharding
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import (
    Framework,
    Function,
    Implementation,
    ImplementationError,
    Layout,
    as_accepted,
)
from attention_conformance.impls.envelope import Sizes
from attention_conformance.impls.loading import load, plugged
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.pool import IMPORT_TIMEOUT, Crashed, TimedOut, Worker
from attention_conformance.impls.process.worker import SCRATCH

#: Where the engines' modules are.
_ROOM = "attention_conformance.impls"

#: Seconds that the other ranks have once the first one has answered; and once one has died or raised, as they may
#: wait for it forever.
BEHIND, BEREFT = 20.0, 3.0


@dataclass(frozen=True)
class Engine:
    """Engine of the ranks of a framework: a process each, or virtual devices of one."""

    #: Module with ``entered(rank, ranks, meeting)``, which returns what binds a function to its rank, and ``renew``.
    module: str
    one_process: bool
    #: Environment variables of each process, for a number of ranks.
    environment: Callable[[int], dict[str, str]]
    #: Preparation of a call of a function of sdpa, and of its gradients, in a rank.
    prepare: str
    gradients: str

    def processes(self, ranks: int) -> int:
        """Number of processes for a number of ranks."""
        return 1 if self.one_process else ranks


def _virtual_devices(ranks: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={ranks}"
    return {"XLA_FLAGS": flags.strip()}


ENGINES = {
    Framework.TORCH: Engine(
        f"{_ROOM}.torch.ranks",
        one_process=False,
        environment=lambda ranks: {"GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0"},
        prepare=f"{_ROOM}.contract:partial",
        gradients=f"{_ROOM}.torch.gradients:prepare",
    ),
    Framework.JAX: Engine(
        f"{_ROOM}.jax.ranks",
        one_process=True,
        environment=_virtual_devices,
        prepare=f"{_ROOM}.jax.ranks:prepare",
        gradients=f"{_ROOM}.jax.ranks:prepare_gradients",
    ),
}


@dataclass
class Here:
    """Process as a rank: how a function is bound to it, and Sq and Sk of the current call."""

    bind: Callable[[Function, Implementation], Function]
    lengths: tuple[int, int] = (0, 0)


_HERE: list[Here] = []


def function(implementation: Implementation) -> Function:
    """The function of an implementation with ranks: it calls all of them, or in a rank the rank's own part."""
    return _rank(implementation) if _HERE else _all(implementation)


# The side of the ranks.


def enter(framework: Framework, rank: int, ranks: int, meeting: str) -> bool:
    """Make this process a rank, which finds the others through a file."""
    bind = load(f"{ENGINES[framework].module}:entered")(rank, ranks, meeting)
    _HERE[:] = [Here(bind)]
    return True


def answer(
    implementation: Implementation, request: calls.Request, whole: tuple[int, int], failures: int
) -> calls.Reply:
    """Call this rank's part; ``whole`` is Sq and Sk, ``failures`` the calls that may have left messages in flight."""
    _HERE[0].lengths = whole
    load(f"{ENGINES[implementation.framework].module}:renew")(failures)
    return calls.call(implementation, request)


@functools.cache
def _rank(implementation: Implementation) -> Function:
    bound: Function = _HERE[0].bind(plugged(implementation.target, implementation.folder), implementation)
    return bound


def lengths() -> tuple[int, int]:
    """Sq and Sk of the current call, over all ranks."""
    return _HERE[0].lengths


# The side of the worker that has the ranks.


class Group:
    """The processes of a number of ranks: one each, or for a mesh one that has all devices."""

    def __init__(self, framework: Framework, ranks: int) -> None:
        self.framework, self.ranks = framework, ranks
        #: Calls that may have left messages in flight.
        self.failures = 0
        self._workers: list[Worker] = []
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._threads = ThreadPoolExecutor(ranks)
        atexit.register(self.close)

    def close(self) -> None:
        """End the processes; the next call starts fresh ones."""
        for worker in self._workers:
            worker.close()
        if self._place is not None:
            self._place.cleanup()
        self._workers, self._place = [], None

    def _start(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="attention-ranks-", dir=os.environ.get(SCRATCH))
        meeting = Path(self._place.name, "meeting")
        engine = ENGINES[self.framework]
        many = engine.processes(self.ranks)
        cores = threads.wanted() or max(1, threads.usable_cores() // many)
        environment = {**threads.environment(cores), **engine.environment(self.ranks)}
        self._workers = [Worker(environment, own_session=False) for _ in range(many)]
        job = f"{__name__}:enter"
        entered = [
            self._threads.submit(
                worker.call, job, self.framework, rank, self.ranks, str(meeting), timeout=IMPORT_TIMEOUT
            )
            for rank, worker in enumerate(self._workers)
        ]
        self._outcomes(entered, IMPORT_TIMEOUT, IMPORT_TIMEOUT)

    def call(
        self, implementation: Implementation, requests: Sequence[calls.Request], lengths: tuple[int, int]
    ) -> list[calls.Reply]:
        """The replies of the processes, in order.

        Raises Crashed or TimedOut with the rank that died or hangs; the next call starts fresh processes.
        """
        if any(worker.fresh for worker in self._workers):
            self.close()
        if not self._workers:
            self._start()
        job, seconds = f"{__name__}:answer", implementation.distribution.seconds  # type: ignore[union-attr]
        given = [
            self._threads.submit(worker.call, job, implementation, request, lengths, self.failures)
            for worker, request in zip(self._workers, requests, strict=True)
        ]
        return self._outcomes(given, seconds, BEHIND)

    def _outcomes(self, given: Sequence[Future[Any]], seconds: float, behind: float) -> list[Any]:
        """Results of the jobs of all ranks; a failure ends the processes and raises one exception that names a rank."""
        started = time.monotonic()
        end = started + seconds
        done, waiting = wait(given, seconds, FIRST_COMPLETED)
        while waiting and time.monotonic() < end:
            end = min(end, time.monotonic() + (BEREFT if any(map(_failed, done)) else behind))
            more, waiting = wait(waiting, max(0.0, end - time.monotonic()), FIRST_COMPLETED)
            done |= more
        hung = [rank for rank, each in enumerate(given) if each in waiting]
        for rank in hung:
            if pid := self._workers[rank].pid:  # else it has just ended
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait(given)
        errors = {rank: each.exception() for rank, each in enumerate(given) if each.exception() is not None}
        replies = {rank: each.result() for rank, each in enumerate(given) if rank not in errors}
        if not errors:
            return list(replies.values())
        self.close()
        died = [rank for rank in errors if rank not in hung]
        for rank in died:
            error = errors[rank]
            if isinstance(error, Crashed):
                raise type(error)(f"{self.name(rank)}: {error}", error.stderr)
            raise Crashed(f"{self.name(rank)}: {calls.text(error)}", "")  # type: ignore[arg-type]
        raised = {rank: reply for rank, reply in replies.items() if _failure(reply)}
        if raised:
            rank, reply = next(iter(raised.items()))
            raise RankFailed(f"{self.name(rank)} raised {_failure(reply)}; {self.names(hung)} waited for it")
        answered = f", and {self.names(list(replies))} answered" if replies else ""
        raise TimedOut(f"{self.names(hung)}: no answer within {time.monotonic() - started:.0f} s{answered}")

    def name(self, rank: int) -> str:
        """A process in words."""
        return f"rank {rank} of {self.ranks}" if len(self._workers) != 1 else f"the {self.ranks} ranks"

    def names(self, ranks: Sequence[int]) -> str:
        """Several processes in words."""
        listed = " and ".join(map(str, ranks))
        return self.name(ranks[0]) if len(ranks) == 1 else f"ranks {listed} of {self.ranks}"


class RankFailed(RuntimeError):
    """Some ranks failed where others did not, or they disagree."""


def _failure(reply: Any) -> str:
    return reply.text if isinstance(reply, calls.Reply) and reply.status != "returned" else ""


def _failed(job: Future[Any]) -> bool:
    return job.exception() is not None or bool(_failure(job.result()))


@functools.cache
def group(framework: Framework, ranks: int) -> Group:
    """The group of this process for a number of ranks, which is made once."""
    return Group(framework, ranks)


@functools.cache
def _all(implementation: Implementation) -> Function:
    distribution, operator = implementation.distribution, OPERATORS[implementation.operator]
    assert distribution is not None
    arrays = backend(implementation.framework)
    inner = replace(implementation, prepare=distribution.prepare, layout=Layout(distribution.layout))

    @functools.wraps(plugged(implementation.target, implementation.folder))
    def over_ranks(*arguments: Any, **keywords: Any) -> Any:
        given = {**dict(zip(operator.arguments, arguments, strict=False)), **keywords}
        named = (*operator.arguments, *operator.arrays)
        held = {n: arrays.get(v) for n, v in given.items() if n in named and not isinstance(v, int | None)}
        options = {name: value for name, value in given.items() if name not in held and value is not None}
        shapes = {name: array.shape for name, array in held.items()}
        ranks = distribution.of_call(shapes, options)
        results = operator.returned({**{n: v for n, v in options.items() if v is not False}, **held})
        parts = sharding.parts(distribution, ranks, shapes, results)
        many = ENGINES[implementation.framework].processes(ranks)
        requests = [_request(held, options, parts, operator.arguments, None if many == 1 else n) for n in range(many)]
        started = group(implementation.framework, ranks)
        replies = started.call(inner, requests, (shapes["q"][-2], shapes["k"][-2]))
        _same_outcome(started, replies)
        try:
            joined = [_joined(started, name, parts[name], replies, distribution.replicated) for name in results]
        except (ValueError, RankFailed) as error:
            raise as_accepted(error) from None
        returned = tuple(arrays.put(each, "cpu") for each in joined)
        return returned if len(returned) > 1 else returned[0]

    return over_ranks


def _request(
    held: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
    parts: Mapping[str, sharding.Part],
    arguments: Sequence[str],
    rank: int | None,
) -> calls.Request:
    """The request with the shards of a rank, or with those of all ranks side by side."""
    own = {n: parts[n].together(array) if rank is None else parts[n].of(array, rank) for n, array in held.items()}
    keywords = {name: array for name, array in own.items() if name not in arguments}
    return calls.Request("cpu", {name: own[name] for name in arguments}, {**options, **keywords})


def _same_outcome(group: Group, replies: Sequence[calls.Reply]) -> None:
    """Raise what all ranks raise; an error too where only some raise, or a call changed inputs or its process."""
    texts = {rank: f"{reply.status} {reply.text}" for rank, reply in enumerate(replies) if reply.status != "returned"}
    if texts:
        group.failures += 1
        if len(texts) < len(replies):
            rank = next(iter(texts))
            others = [each for each in range(len(replies)) if each not in texts]
            raise RankFailed(f"{group.name(rank)} raised {replies[rank].text}, and {group.names(others)} did not")
        first = replies[0]
        kind, _, text = first.text.partition(": ")
        if first.status == "unsupported":
            raise NotImplementedError(text)
        known = getattr(builtins, kind, None)
        known = known if isinstance(known, type) and issubclass(known, Exception) else RuntimeError
        error = known(f"{text if known.__name__ == kind else first.text} ({group.name(0)})\n{first.trace}")
        raise as_accepted(error) if first.accepted else error
    for rank, reply in enumerate(replies):
        for what, said in (("modified", reply.modified), ("left changed", reply.changed)):
            if said:
                raise as_accepted(RankFailed(f"{group.name(rank)} {what} {', '.join(said)}"))


def _joined(
    group: Group, name: str, part: sharding.Part, replies: Sequence[calls.Reply], replicated: bool
) -> np.ndarray:
    """A result of all ranks.  Raises RankFailed for replicated results that differ, ValueError for a wrong shape."""
    pieces = [reply.results[name] for reply in replies]
    if part.axis is None and (replicated or len(pieces) == 1):
        for rank, piece in enumerate(pieces):
            if not calls.same_bits(piece, pieces[0]):
                raise RankFailed(f"{group.name(rank)} disagrees with rank 0: {_difference(name, piece, pieces[0])}")
        return pieces[0]
    try:
        if part.axis is None:  # the gradient of an array that all ranks were given
            return np.sum([each.astype(np.result_type(each.dtype, np.float32)) for each in pieces], axis=0).astype(
                pieces[0].dtype
            )
        return part.joined(part.apart(pieces[0]) if len(pieces) == 1 else pieces)
    except ValueError as error:
        raise ValueError(f"{name} of {group.ranks} ranks: {error}") from None


def _difference(name: str, one: np.ndarray, other: np.ndarray) -> str:
    if one.shape != other.shape:
        return f"{name} has shape {one.shape} and {other.shape}"
    different = ~((one == other) | ((one != one) & (other != other)))
    return f"{int(different.sum())} of {one.size} elements of {name} differ"


def distributed(implementation: Implementation, attributes: Mapping[str, Any]) -> Implementation:
    """A plug-in with the ranks that its function declares.

    Raises ImplementationError for another framework or operator, ValueError for a value that is not understood.
    """
    if implementation.framework not in ENGINES:
        raise ImplementationError(f"{implementation.name}: ranks need torch or JAX; plug it in with @torch or @jax")
    if implementation.operator not in ("sdpa", "sdpa_grad"):
        raise ImplementationError(f"{implementation.name}: {implementation.operator} is not spread over ranks")
    one_process, uneven = ENGINES[implementation.framework].one_process, bool(attributes.get("uneven", False))
    if uneven and one_process and attributes.get("sharding") == sharding.HEADS:
        raise ImplementationError(f"{implementation.name}: heads of a mesh of JAX divide by its ranks")
    said = attributes["ranks"]
    found = sharding.Distribution(
        ranks=(said,) if isinstance(said, int) else tuple(said),
        sharding=str(attributes.get("sharding", "contiguous")),
        uneven=uneven,
        padded=uneven and one_process,
        replicated=bool(attributes.get("replicated", False)),
        seconds=float(attributes.get("rank_seconds", sharding.Distribution.seconds)),
    )
    return spread(implementation, found)


def spread(implementation: Implementation, distribution: sharding.Distribution) -> Implementation:
    """An implementation over ranks, on the CPU; axes that its envelope leaves free get sizes that divide by them."""
    engine = ENGINES[implementation.framework]
    sizes, envelope = Sizes(multiple=distribution.multiple), implementation.envelope
    axes = ("head_counts",) if distribution.sharding == sharding.HEADS else ("query_lengths", "key_lengths")
    free: dict[str, Any] = {name: sizes for name in axes if sizes.multiple > 1 and getattr(envelope, name).free}
    prepare = engine.gradients if implementation.function_of else engine.prepare
    return replace(
        implementation,
        distribution=replace(distribution, layout=implementation.layout.value, prepare=prepare),
        prepare=Implementation.prepare,
        layout=Layout.BHSD,
        devices=("cpu",),
        envelope=replace(envelope, source=envelope.source or "declared", **free) if free else envelope,
    )
