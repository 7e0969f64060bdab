"""One call of an implementation, from NumPy arrays to NumPy arrays: what a worker process does with a case.

Load, convert to the framework's arrays and layout, prepare (once per distinct call), run, convert back,
and check whether an input or the process was changed.  No result is judged or repaired here.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Any, Literal

import numpy as np

from attention_conformance.impls import memory_layouts
from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.contract import (
    Call,
    FixedOptionError,
    Function,
    Implementation,
    ImplementationError,
    Layout,
    as_accepted,
    was_accepted,
)
from attention_conformance.impls.envelope import Sizes
from attention_conformance.impls.interpreters import enter, not_judged
from attention_conformance.impls.loading import (
    accepts_anything,
    attributes_of,
    forget_function,
    keywords,
    load,
    load_function,
    operator_of,
)
from attention_conformance.impls.operators import GRADIENTS, OPERATORS
from attention_conformance.impls.process import state
from attention_conformance.impls.process.fallbacks import WARNING, Fallbacks
from attention_conformance.impls.process.limits import resident
from attention_conformance.impls.process.noise import Noise
from attention_conformance.impls.process.pool import Crashed, TimedOut
from attention_conformance.impls.process.state import Moved, Setting, Watch
from attention_conformance.impls.process.wire import said, sendable

#: Results that have the axes of q, k or v, and so their layout; and arrays in the layout of the past.
HEADS_OUTSIDE = ("output", "grad_q", "grad_k", "grad_v")
PAST = ("past_key", "past_value", "present_key", "present_value")

#: Lines of a traceback that are kept: enough for the user's own frames.
TRACEBACK_LINES = 12


@dataclass(frozen=True)
class Request:
    """The arguments by name (q, k, v in layout (B, H, S, D)), the keywords, and how to lay the arrays out in memory."""

    device: str
    arrays: dict[str, np.ndarray]
    keywords: dict[str, Any] = field(default_factory=dict)
    memory: str = "contiguous"
    #: Times to run; results after the first are only compared with it.
    repeats: int = 1
    #: Names of the arrays that are laid out as ``memory`` says; all where none is named.
    laid_out: tuple[str, ...] = ()

    @classmethod
    def qkv(cls, device: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, *rest: Any, **keywords: Any) -> Request:
        """A request of sdpa."""
        return cls(device, {"q": q, "k": k, "v": v}, *rest, **keywords)


#: How a call ended.
Status = Literal["returned", "unsupported", "raised"]


@dataclass(frozen=True)
class Reply:
    """Reply of a call: results by name, or why there are none.

    ``status`` is "returned", "unsupported" (NotImplementedError) or "raised"; ``text`` is the exception's.
    """

    status: Status
    results: dict[str, np.ndarray] = field(default_factory=dict)
    text: str = ""
    trace: str = ""
    modified: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()  # results that differed between repeats
    prepare_seconds: float = 0.0
    run_seconds: float = 0.0
    #: Changes that the call left in its process, "name: from → to" each; and the harmless ones.
    changed: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    #: A change could not be undone, so this process is of no more use.
    spoilt: bool = False
    #: The library's message when it took another path than the requested one, as it will from now on.
    fell_back: str = ""
    #: Bytes of memory that the process holds after the call.
    resident: int = 0
    #: "raised" though the function returned: its return value is not a result, which is not a refusal of the input.
    accepted: bool = False


@dataclass(frozen=True)
class Description:
    """Description that an implementation's function gives of itself after its import."""

    keywords: frozenset[str]
    attributes: dict[str, Any]
    operator: str = "sdpa"
    #: It has ``**kwargs``: all keywords are listed, and none was named.
    accepts_anything: bool = False


def describe(implementation: Implementation) -> Description:
    """Import the function and read its signature.

    Parameters
    ----------
    implementation
        Implementation, which says where its function is.

    Returns
    -------
    Description
        The keywords that it accepts, its attributes, and its operator.

    Raises
    ------
    ImplementationError
        If it cannot be imported, or is not a function.
    """
    function = load_function(implementation)
    if not callable(function):
        raise ImplementationError(f"{implementation.target} is a {type(function).__name__}, not a function")
    found = {name: _plain(value) for name, value in attributes_of(function).items()}
    signature = operator_of(function, implementation.function_of or implementation.operator)
    operator = OPERATORS[GRADIENTS.get(signature.name, signature.name)] if implementation.function_of else signature
    accepted = keywords(function, signature) & set(operator.keywords)
    if implementation.function_of:  # automatic differentiation takes the gradients of results after the first
        accepted |= {name for name in operator.keywords if name.startswith("grad_")}
    return Description(accepted, found, operator.name, accepts_anything(function))


def _plain(value: Any) -> Any:
    """An attribute as plain values, as only these leave a worker; any other object as its repr."""
    if isinstance(value, Sizes):
        return value.values or str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes)):
        return tuple(_plain(each) for each in value)
    if isinstance(value, Enum):
        return _plain(value.value)
    return value if isinstance(value, (str, bool, int, float, type(None))) else repr(value)


def results_of(implementation: Implementation, request: Request) -> tuple[str, ...]:
    """Names of the results in the reply to a request, if the call returned.

    Parameters
    ----------
    implementation
        Implementation, whose operator has the results.
    request
        Request, whose keywords say which of them are wanted.

    Returns
    -------
    tuple[str, ...]
        Names in the order of the reply.
    """
    given = {name: value for name, value in request.keywords.items() if value is not False}
    return OPERATORS[implementation.operator].returned(given)


def ready(implementation: Implementation) -> None:
    """Import what a call needs, so that no call is timed with it.  Raises ImplementationError if that fails.

    The function of a deferred implementation is imported by the first call that needs it.
    """
    if not implementation.deferred:
        describe(implementation)
    devices(implementation)


def devices(implementation: Implementation) -> tuple[str, ...]:
    """The devices that the implementation's framework finds on this machine."""
    return (
        enter(implementation.kernels).devices if implementation.kernels else backend(implementation.framework).devices()
    )


def versions(implementation: Implementation) -> dict[str, str]:
    """Versions of the packages that decide what the implementation computes."""
    return backend(implementation.framework).versions()


def call(implementation: Implementation, request: Request, function: Function | None = None) -> Reply:
    """Run one request in this process; the reply says what the implementation did, exceptions included.

    Parameters
    ----------
    implementation, request
        The implementation, and its arrays in layout (B, H, S, D) with the keywords.
    function
        Function to call instead of the implementation's own; nothing of it is cached.

    Returns
    -------
    Reply
        Results by name in layout (B, H, S, D), times in seconds, memory in bytes.

    Raises
    ------
    Crashed, TimedOut
        A program that was run here, or a rank, crashed or hung: reported as if this process had.
    """
    if function is not None:
        return _replied(implementation, request, function, ())
    reason = not_judged(implementation, request.arrays)
    if reason:
        return Reply("unsupported", text=reason)
    settings = (*state.settings(), *backend(implementation.framework).settings())
    watch, fallbacks = Watch(settings), Fallbacks()
    noise = Noise(fallbacks.warned)
    with fallbacks:
        reply = _replied(implementation, request, None, (watch, noise), fallbacks.warned)
    changed, side_effects = watch.changed, (*noise.side_effects, *watch.side_effects, *fallbacks.side_effects)
    if watch.moved:  # copied, as the call to compare with may write into what this one returned
        reply = replace(reply, results={name: array.copy() for name, array in reply.results.items()})
    if watch.moved and not watch.stuck and _same_after(implementation, request, reply, settings, watch.moved):
        texts = tuple(each.text for each in watch.moved)
        changed = tuple(text for text in changed if text not in texts)
        side_effects = (*side_effects, *(f"{text}{BUILT_INSIDE}" for text in texts))
    return replace(
        reply,
        changed=changed,
        side_effects=side_effects,
        spoilt=bool(watch.stuck),
        fell_back=fallbacks.found,
        resident=resident(),
    )


#: Message about a random state that a call advances and that no result depends on.
BUILT_INSIDE = "; the result does not depend on it. Where a layer is built in the call, build it outside"


def _same_after(
    implementation: Implementation, request: Request, reply: Reply, settings: Sequence[Setting], moved: Sequence[Moved]
) -> bool:
    """Whether an equal call gives the same bits, or raises the same, from the random state that a call left behind."""
    if reply.unequal:
        return False
    watch = Watch(settings)
    with watch, Noise():
        for each in moved:
            each.setting.put(each.value)
        again = _replied(implementation, request, None, ())
    if watch.stuck or (again.status, again.text) != (reply.status, reply.text):
        return False
    if again.results.keys() != reply.results.keys():
        return False
    return all(same_bits(again.results[name], array) for name, array in reply.results.items())


#: Context managers around the call itself, but not around its preparation.
Around = tuple[AbstractContextManager[object], ...]


def _replied(
    implementation: Implementation,
    request: Request,
    other: Function | None,
    around: Around,
    warned: Callable[[Warning | str], None] | None = None,
) -> Reply:
    handled = sys.exception()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warnings are not results
            if warned is not None:
                warnings.filterwarnings("always", message=WARNING)
                warnings.showwarning = lambda message, *_, **__: warned(message)
            return _call_prepared(implementation, request, other, around)
    except (Crashed, TimedOut):  # by a program or a rank that was run here: an outcome of its own
        raise
    except FixedOptionError as error:  # without the type: no function's own refusal reads like this
        return Reply("unsupported", text=str(error))
    except NotImplementedError as error:
        return Reply("unsupported", text=text(error))
    except Exception as error:
        _forget_context(error, handled)
        trace = _rest_of_message(error) if implementation.source else _trace(error)
        return Reply("raised", text=text(error), trace=trace, accepted=was_accepted(error))


def _call_prepared(implementation: Implementation, request: Request, other: Function | None, around: Around) -> Reply:
    arrays = backend(implementation.framework)
    function = other or load_function(implementation)
    given, native, specification = arguments(implementation, request)
    started = time.perf_counter()
    if other is None:
        run = prepared(implementation, function, specification)
    else:
        run = load(implementation.prepare)(function, specification)
    with ExitStack() as stack:
        for each in around:
            stack.enter_context(each)
        ready = time.perf_counter()
        returned = run(**native)
        arrays.synchronize(request.device)
        ended = time.perf_counter()
        results = collect(returned, specification, implementation.layout, arrays, implementation.layout_of_past)
        if request.repeats > 1:  # copied, as the next call may write into what this one returned
            results = {name: array.copy() for name, array in results.items()}
        unequal = []
        for _ in range(request.repeats - 1):
            again = collect(run(**native), specification, implementation.layout, arrays, implementation.layout_of_past)
            unequal += [name for name in results if not same_bits(results[name], again[name])]
    modified = [name for name, array in given.items() if not same_bits(arrays.get(native[name]), array)]
    return Reply(
        "returned",
        results,
        modified=tuple(modified),
        unequal=tuple(dict.fromkeys(unequal)),
        prepare_seconds=ready - started,
        run_seconds=ended - ready,
    )


def arguments(implementation: Implementation, request: Request) -> tuple[dict[str, np.ndarray], dict[str, Any], Call]:
    """The call's arrays as NumPy and as native arrays, in the implementation's layout, and its static part.

    Parameters
    ----------
    implementation
        Implementation, whose layouts decide whether heads come before or after the sequence.
    request
        Arrays in the layout of the spec, (B, H, S, D), and the device and memory layout to put them in.

    Returns
    -------
    tuple[dict[str, np.ndarray], dict[str, Any], Call]
        NumPy arrays by name, the same as arrays of the framework on the device, and the call's shapes, dtype and
        options.
    """
    arrays = backend(implementation.framework)
    operator = OPERATORS[implementation.operator]
    given = {name: to_layout(array, implementation.layout) for name, array in request.arrays.items()}
    plain: dict[str, Any] = {}
    for name, value in request.keywords.items():
        if name in operator.arrays and isinstance(value, np.ndarray):
            given[name] = to_layout(value, implementation.layout_of_past) if name in PAST else value
        else:
            plain[name] = value
    native = {
        name: arrays.put(memory_layouts.lay_out(array, _layout_of(name, request)), request.device)
        for name, array in given.items()
    }
    shapes = tuple((name, array.shape) for name, array in given.items())
    options = tuple(sorted(plain.items()))
    dtype = str(request.arrays[operator.arguments[0]].dtype)
    return given, native, Call(dtype, request.device, shapes, options, operator.name)


def _layout_of(name: str, request: Request) -> str:
    return request.memory if not request.laid_out or name in request.laid_out else "contiguous"


_PREPARED: dict[tuple[str, str, Call], Function] = {}


def prepared(implementation: Implementation, function: Function, specification: Call) -> Function:
    """The prepared function of a call, made once in this process."""
    key = (implementation.name, implementation.target, specification)
    if key not in _PREPARED:
        prepare: Callable[[Function, Call], Function] = load(implementation.prepare)
        _PREPARED[key] = prepare(function, specification)
    return _PREPARED[key]


def forget(implementation: Implementation) -> None:
    """Release everything that this process keeps of a plug-in.

    Parameters
    ----------
    implementation
        Record of the plug-in.
    """
    for key in [each for each in _PREPARED if each[1] == implementation.target]:
        del _PREPARED[key]
    forget_function(implementation.target, implementation.folder)


def collect(
    returned: Any, specification: Call, layout: Layout, arrays: Backend, layout_of_past: Layout = Layout.BHSD
) -> dict[str, np.ndarray]:
    """Results by name, as NumPy arrays in layout (B, H, S, D).

    Parameters
    ----------
    returned
        One array of the framework, or a tuple of them.
    specification
        The call, which says what results it has and in what order.
    layout
        Layout of the output and the gradients.
    arrays
        The module of the framework's arrays.
    layout_of_past
        Layout of the past and the present.

    Returns
    -------
    dict[str, np.ndarray]
        Arrays by the names of the results, in the dtype that was returned.

    Raises
    ------
    TypeError
        If the number of results is not what the call requests, or one is not an array of the framework.
    """
    names = specification.results()
    values = returned if isinstance(returned, tuple) else (returned,)
    try:
        if len(values) != len(names):
            raise TypeError(f"expected {len(names)} results ({', '.join(names)}), got {len(values)}")
        results = {name: arrays.get(value) for name, value in zip(names, values, strict=True)}
    except TypeError as error:
        raise as_accepted(error) from None
    for names, given in ((HEADS_OUTSIDE, layout), (PAST, layout_of_past)):
        if given is Layout.BSHD:
            results |= {n: a.transpose(0, 2, 1, 3) for n, a in results.items() if n in names and a.ndim == 4}
    return results


def heads_inside(implementation: Implementation) -> frozenset[str]:
    """Names of the arrays and results that the implementation has as (B, S, H, D).

    Parameters
    ----------
    implementation
        Implementation whose layouts are meant.

    Returns
    -------
    frozenset[str]
        Names of the operator's arguments, results and past whose layout is BSHD; empty for BHSD.
    """
    arguments = OPERATORS[implementation.operator].arguments
    names: tuple[str, ...] = (*arguments, *HEADS_OUTSIDE) if implementation.layout is Layout.BSHD else ()
    return frozenset((*names, *PAST) if implementation.layout_of_past is Layout.BSHD else names)


def to_layout(array: np.ndarray, layout: Layout) -> np.ndarray:
    """An argument from (B, H, S, D) to the wanted axis order; another rank is passed to the implementation unchanged.

    Parameters
    ----------
    array
        Argument of any rank.
    layout
        Layout that the implementation takes.

    Returns
    -------
    np.ndarray
        A copy (B, S, H, D) for rank 4 and BSHD, else the array itself.
    """
    if layout is Layout.BHSD or array.ndim != 4:
        return array
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal dtype, shape and bytes, so that NaN equals NaN and 0.0 does not equal -0.0.

    Parameters
    ----------
    a, b
        Any two arrays.

    Returns
    -------
    bool
        False for another dtype or shape, too.
    """
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


#: Texts of exceptions after which a process cannot use its GPU any more: every later call raises the same.
LOST_GPU = ("CUDA error", "Error [CUDA]", "CUDA_ERROR", "cudaError", "illegal memory access", "device-side assert")


def lost_gpu(text: str) -> bool:
    """Whether an exception says that its process has lost the GPU.

    Parameters
    ----------
    text
        Text of the exception, with or without its traceback.

    Returns
    -------
    bool
        False for running out of memory, after which a process continues.
    """
    return any(said in text for said in LOST_GPU) and "out of memory" not in text


def _forget_context(error: BaseException, handled: BaseException | None) -> None:
    """Cut off the exception that was being handled when the call began: it is not part of the call.

    Its text may be made by calls like this one (closeness.NotClose), which would then never end.
    """
    each: BaseException | None = error
    while each is not None and handled is not None:
        if each.__context__ is handled:
            each.__context__ = None
        each = each.__context__


def _trace(error: BaseException) -> str:
    trace = "".join(traceback.format_exception(type(error), error, _users(error))[-TRACEBACK_LINES:])
    return sendable(trace.replace(os.getcwd() + os.sep, ""))  # as the user would name the files


def _rest_of_message(error: BaseException) -> str:
    """The message after its first line: a foreign implementation has no frames of its own."""
    return "\n".join(said(error).strip().splitlines()[1:][:TRACEBACK_LINES])


def _users(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame outside this file; all of it if there is none."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames or error.__traceback__


def text(error: BaseException) -> str:
    """Text of an exception, in one line with its type.

    Parameters
    ----------
    error
        Exception that was raised.

    Returns
    -------
    str
        Type and first line of the message, with the lines that follow a colon at its end, cut after 300
        characters.
    """
    first, *rest = [line.strip() for line in said(error).splitlines() if line.strip()] or [""]
    for line in rest:
        if not first.endswith(":"):
            break
        first += f" {line}"
    return f"{type(error).__name__}: {first[:300]}"
