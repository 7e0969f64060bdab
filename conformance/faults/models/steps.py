"""Steps of a fault: whether any overridden step differs on a case, without computing the other steps again.

A fault overrides a few methods of a correct model.  The correct model is run once per case, and the arguments and
results of each of its methods are kept.  Where the fault's own methods return the same bits for the same arguments, its
whole result is the correct one.  Most faults show on few cases, so that most calls need not be made.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.latent import Latent
from attention_conformance.conformance.faults.models.merge import Merging
from attention_conformance.conformance.faults.models.merge_gradients import MergeBackward
from attention_conformance.conformance.faults.models.mha import Layer, Sublayer
from attention_conformance.conformance.faults.models.mha_gradients import LayerBackward
from attention_conformance.conformance.faults.models.paged import Paged
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.models.tiles import TILED
from attention_conformance.conformance.faults.models.varlen import Packed
from attention_conformance.conformance.faults.models.varlen_gradients import PackedBackward
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import Reply, call
from attention_conformance.impls.contract import Implementation

#: The correct models that faults derive from.
CORRECT: tuple[type[Model], ...] = (
    *TILED.values(),
    Attention,
    Sublayer,
    Layer,
    Backward,
    LayerBackward,
    PackedBackward,
    Paged,
    Packed,
    Merging,
    MergeBackward,
    Latent,
)

#: Modules of faults with side effects: state that remains after a call, memory that is written to.
_EFFECTS = (
    "attention_conformance.conformance.faults.merge.memory",
    "attention_conformance.conformance.faults.sdpa.memory",
    "attention_conformance.conformance.faults.sdpa.state",
)

#: Elements of the arguments above which a case is large, and numbers of small and large cases whose steps are kept.
LARGE, SMALL_KEPT, LARGE_KEPT = 20_000, 300, 16


@dataclass(frozen=True)
class Steps:
    """The correct call of a case: its reply, and the calls of each method, by the part of the model and its name."""

    reply: Reply
    calls: dict[tuple[str, str], list[tuple[tuple, dict, Any]]]


@dataclass(frozen=True)
class _Raised:
    kind: type[BaseException]
    text: str


def correct(make: type[Model]) -> type[Model]:
    """The correct model that a fault derives from."""
    return next(each for each in make.__mro__ if each in CORRECT)


@functools.cache
def has_effects(make: type[Model]) -> bool:
    """Whether a fault, or a model inside it, has side effects, or holds anything other than models."""
    parts = _parts(make())
    if parts is None or any(each.__module__ in _EFFECTS for each in make.__mro__):
        return True
    return any(has_effects(type(part)) for part in parts.values())  # type: ignore[arg-type]  # a class is hashable


def unchanged(make: type[Model], case: AnyCase, dtype: str) -> Reply | None:
    """The correct reply to a case if a fault of its operator gives the same bits; None if that is not certain."""
    if has_effects(make):  # type: ignore[arg-type]  # a class is hashable
        return None
    fault = make()
    steps = _steps_of_large if case.size[0] > LARGE else _steps_of_small
    found = steps(correct(make), case, dtype)  # type: ignore[arg-type]  # a class is hashable
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found.reply if _agrees(fault, correct(make)(), "", found) else None


def adds_nothing(make: type[Model], base: type[Model], case: AnyCase, dtype: str) -> bool:
    """Whether a fault with a second one added gives, bit by bit, the same as the fault without it.

    Parameters
    ----------
    make, base
        The model with both faults, and its base class, the first fault only.
    case, dtype
        A case of their operator.

    Returns
    -------
    bool
        True if every method that the second fault overrides returns what the first fault's method returns; False if
        that is not certain.
    """
    if has_effects(make) or has_effects(base) or case.size[0] > LARGE:  # type: ignore[arg-type]  # a class is hashable
        return False
    steps = _steps_of_fault(base, case, dtype)  # type: ignore[arg-type]  # a class is hashable
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _agrees(make(), base(), "", steps)


def _agrees(fault: Model, base: Model, path: str, steps: Steps) -> bool:
    parts, own = _parts(fault), _parts(base)
    names = _overridden(type(fault), type(base))  # type: ignore[arg-type]
    if parts is None or own is None or names is None or parts.keys() != own.keys():
        return False
    for name in names:
        method = getattr(fault, name)
        for arguments, keywords, returned in steps.calls.get((path, name), ()):
            if not _same(_outcome(method, arguments, keywords), returned):
                return False
    if _parts(fault) is None:  # it keeps something from call to call
        return False
    return all(_agrees(parts[name], own[name], f"{path}.{name}", steps) for name in parts)


def _parts(model: Model) -> dict[str, Model] | None:
    """The models inside a model, by name; None if it holds anything else."""
    held = vars(model)
    return held if all(isinstance(each, Model) for each in held.values()) else None


@functools.cache
def _overridden(make: type[Model], base: type[Model]) -> tuple[str, ...] | None:
    """The methods of the correct model that a subclass overrides; None if it differs in anything else."""
    if base not in make.__mro__:
        return None
    names: dict[str, None] = {}
    for each in (each for each in make.__mro__ if each not in base.__mro__):
        for name, value in vars(each).items():
            if name in ("__module__", "__doc__", "__init__", "attention", "backward", "operator") or name not in dir(
                base
            ):
                continue  # what the last four make is compared part by part
            if name.startswith("__") or not isinstance(value, types.FunctionType):
                if name in ("__dict__", "__weakref__", "__static_attributes__", "__firstlineno__", "__annotations__"):
                    continue
                if isinstance(value, int) and getattr(make, name) == getattr(base, name):
                    continue  # such as the keys of a tile
                return None
            names[name] = None
    return tuple(names)


def _steps(base: type[Model], case: AnyCase, dtype: str) -> Steps:
    """The correct call of a case, every step of it recorded; arrays are read-only from then on."""
    calls: dict[tuple[str, str], list[tuple[tuple, dict, Any]]] = {}
    model = base()
    _record(model, "", calls)
    reply = call(Implementation("steps", "steps:none", operator=case.operator), request(case, dtype, "cpu"), model)
    _freeze(calls, set())
    return Steps(reply, calls)


_steps_of_small = functools.lru_cache(maxsize=SMALL_KEPT)(_steps)
_steps_of_large = functools.lru_cache(maxsize=LARGE_KEPT)(_steps)
_steps_of_fault = functools.lru_cache(maxsize=LARGE_KEPT)(_steps)


def _record(model: Model, path: str, calls: dict[tuple[str, str], list[tuple[tuple, dict, Any]]]) -> None:
    for name, part in tuple(vars(model).items()):
        _record(part, f"{path}.{name}", calls)
    for name in dir(model):
        if not name.startswith("__") and isinstance(method := getattr(model, name), types.MethodType):
            setattr(model, name, _recording(method, calls.setdefault((path, name), [])))


def _recording(method: Callable[..., Any], calls: list[tuple[tuple, dict, Any]]) -> Callable[..., Any]:
    def recorded(*arguments: Any, **keywords: Any) -> Any:
        try:
            returned = method(*arguments, **keywords)
        except Exception as error:
            calls.append((arguments, keywords, _Raised(type(error), str(error))))
            raise
        calls.append((arguments, keywords, returned))
        return returned

    return recorded


def _outcome(method: Callable[..., Any], arguments: tuple, keywords: dict) -> Any:
    try:
        return method(*arguments, **keywords)
    except Exception as error:
        return _Raised(type(error), str(error))


def _freeze(value: Any, seen: set[int]) -> None:
    """Make every array within tuples, lists, dicts and records read-only."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif id(value) not in seen and not isinstance(value, type):
        seen.add(id(value))
        for each in _within(value):
            _freeze(each, seen)


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    return _fields(value) if hasattr(value, "__dataclass_fields__") else ()


def _fields(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__dataclass_fields__]


def _same(a: Any, b: Any) -> bool:
    """Whether two results are equal in type, memory order and every bit; False for types that are not known here."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        form = (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
        return form and a.tobytes() == b.tobytes()
    if isinstance(a, (float, np.generic)):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[name], b[name]) for name in a)
    if hasattr(a, "__dataclass_fields__"):
        return all(map(_same, _fields(a), _fields(b)))
    return isinstance(a, (bool, int, str)) and a == b
