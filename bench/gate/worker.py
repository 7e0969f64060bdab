"""Worker of the gate: the jobs of its process, with clocks and walls in place before the candidate is loaded."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.bench.gate import hidden, libraries, modules, walls
from attention_conformance.bench.gate.noticed import Callers, notice, take_events
from attention_conformance.impls import calls
from attention_conformance.impls.backend import backend
from attention_conformance.impls.calls import Description, Reply, Request, same_bits
from attention_conformance.impls.contract import Call, Framework, Function, Implementation
from attention_conformance.impls.loading import load
from attention_conformance.impls.process import state
from attention_conformance.impls.process.clocks import perf_counter
from attention_conformance.impls.process.state import Setting

#: The prefix of the worker's own notes among the side effects of a reply.
NOTED = "gate "

#: Settings of the process that a candidate must not change while it is loaded; it may draw random numbers then.
KEPT = ("error state of NumPy", "working directory")

#: Message on an answer that another thread, or the next call, wrote to.
LATE = "an answer changed after it was returned"

#: Seconds to wait for threads that a call left running, so that their late writes are seen.
LATE_SECONDS = 0.1

_threads = threading.enumerate


class _State:
    """State that the worker keeps between two calls."""

    network = ""
    prepare = ""
    integrity: walls.Integrity | None = None
    arrays: Any = None
    #: Settings of the process and of the framework that no import may change, and their values.
    settings: tuple[tuple[Setting, Any], ...] = ()
    seconds = 0.0
    counted = False
    in_place = False
    #: Input arrays by name, shape and dtype, whose memory the next call's numbers are put into.
    places: dict[Any, Any] = {}  # noqa: RUF012  (there is one state)
    #: The last call's result, and a copy of its values.
    last: tuple[Any, tuple[np.ndarray, ...]] | None = None


def enter(implementation: Implementation, own_work: bool = False) -> None:
    """First job of a process: the framework, the walls around it, and nothing of the candidate."""
    _State.arrays = backend(implementation.framework)
    _State.arrays.devices()
    _State.prepare = implementation.prepare
    importlib.import_module(implementation.prepare.partition(":")[0])
    for each in ("network", "echo", "describe", "ask", "prepare"):  # the jobs, while their names can still be imported
        load(f"{__name__}:{each}")
    if implementation.target == modules.MADE:
        load(modules.MADE)
    hidden.clear_environment()
    _State.network = walls.no_network()
    own = os.path.realpath(modules.file_of(implementation))
    by = Callers(own, hidden.rooms())
    counting = libraries.Counting(by, own_work)
    counting.begin()
    hidden.close_imports(counting.names, counting.imported)
    walls.watch(by, own, modules.problem_of(implementation))
    _State.integrity = walls.Integrity()
    theirs = (
        _State.arrays.settings() if implementation.framework is Framework.TORCH else ()
    )  # JAX's are set for its calls
    kept = (*(each for each in state.settings() if each.name in KEPT), *theirs)
    _State.settings = tuple(
        (each, each.get()) for each in kept if each.words is not state.random_state_change and not each.harmless
    )


def enter_own_work(implementation: Implementation) -> None:
    """The same where the task requires own work."""
    enter(implementation, own_work=True)


def describe(implementation: Implementation) -> Description:
    """Description of the candidate, once it is imported.  Raises ImplementationError if it cannot be used."""
    hidden.hide()
    return calls.describe(implementation)


def network(implementation: Implementation) -> str:
    """The mechanism that keeps this process from the network."""
    return _State.network


def echo(implementation: Implementation, request: Request) -> Reply:
    """A job that calls nothing: the cost of the way to the worker and back."""
    hidden.hide()
    _, native, _ = calls.arguments(implementation, request)
    assert _State.integrity is not None
    _State.integrity.broken()  # as after every call
    return Reply("returned", {"output": np.array(_State.arrays.get(native["q"]))})


def ask(implementation: Implementation, request: Request, in_place: bool, counted: bool) -> Reply:
    """One call of the candidate.

    Parameters
    ----------
    in_place
        The numbers are put into arrays of earlier calls, so that pointers reveal nothing.
    counted
        Calls of libraries are counted, which takes time.

    Returns
    -------
    Reply
        ``run_seconds`` is by the clock that was bound first; side effects that begin with ``gate`` are the walls'.
    """
    _State.in_place, _State.counted, _State.seconds = in_place, counted, 0.0
    hidden.hide()
    gated = replace(implementation, prepare=f"{__name__}:prepare")
    reply = calls.call(gated, request)
    assert _State.integrity is not None
    for each in _State.integrity.broken()[:8]:
        notice("patched", each)
    for setting, was in _State.settings:
        now = setting.get()
        if now != was:
            notice("changed", f"it changed {setting.name} outside its calls: {setting.words(was, now)}")
    noted = tuple(f"{NOTED}{each}" for each in take_events())
    return replace(reply, run_seconds=_State.seconds, side_effects=(*reply.side_effects, *noted))


def prepare(function: Function, call: Call) -> Function:
    """The candidate's prepared call within the walls."""
    return functools.partial(_run, load(_State.prepare)(function, call), call.device)


def _run(run: Function, device: str, **native: Any) -> Any:
    arrays = _State.arrays
    given = {name: _placed(name, array) for name, array in native.items()} if _State.in_place else native

    def call() -> Any:
        started = perf_counter()
        returned = run(**given)
        arrays.wait(returned)
        _State.seconds = perf_counter() - started
        return returned

    arrays.synchronize(device)
    hidden.hide()
    before = set(_threads())
    returned = libraries.count_torch(call) if _State.counted else call()
    if _State.last is not None:
        earlier, was = _State.last
        _State.last = None
        if any(not same_bits(arrays.get(value), old) for value, old in zip(_values(earlier), was, strict=True)):
            notice("late", LATE)
    for value in _values(returned):
        _plain(value)
    copies = tuple(np.array(arrays.get(value)) for value in _values(returned))
    left = [each for each in _threads() if each not in before]
    if left:
        until = perf_counter() + LATE_SECONDS
        for each in left:
            threading.Thread.join(each, max(0.0, until - perf_counter()))
        if any(not same_bits(arrays.get(value), copy) for value, copy in zip(_values(returned), copies, strict=True)):
            notice("late", LATE)
    if _State.in_place:
        for name, array in native.items():
            if not same_bits(arrays.get(given[name]), arrays.get(array)):
                notice("modified", f"it modified {name}")
    for name, array in given.items():
        if any(value is array or _shared(value, array) for value in _values(returned)):
            notice("aliased", f"what it returned is in the memory of {name}")
    _State.last = (returned, copies)
    again = tuple(arrays.put(np.array(copy), device) for copy in copies)
    return again if isinstance(returned, tuple) else again[0]


def _values(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def _plain(value: Any) -> None:
    """Raise TypeError for anything but a plain array of the framework: a subclass may lie about itself."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        last = value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        if value.numel() and (last + 1) * value.element_size() > value.untyped_storage().nbytes():
            raise TypeError("it returned a tensor with no memory for its elements")
        return
    if name == "numpy.ndarray" or kind.__module__.startswith("jaxlib"):
        return
    if isinstance(value, np.generic):
        return
    raise TypeError(f"it returned {name}, which is no plain array of its framework")


def _shared(value: Any, array: Any) -> bool:
    if isinstance(value, np.ndarray) and isinstance(array, np.ndarray):
        return bool(value.size and array.size and np.may_share_memory(value, array))
    if hasattr(value, "untyped_storage") and hasattr(array, "untyped_storage"):
        pointer = value.untyped_storage().data_ptr()
        return bool(value.numel() and pointer and pointer == array.untyped_storage().data_ptr())
    return False


def _placed(name: str, array: Any) -> Any:
    """An array with these numbers in the memory of an earlier call's, where the framework's arrays can be written."""
    key = (name, tuple(array.shape), str(array.dtype))
    place = _State.places.get(key)
    if place is None:
        _State.places[key] = place = (
            array.copy() if isinstance(array, np.ndarray) else getattr(array, "clone", lambda: array)()
        )
    if isinstance(place, np.ndarray):
        np.copyto(place, array)
    elif hasattr(place, "copy_"):
        place.copy_(array)
    else:
        return array
    return place
