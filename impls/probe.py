"""Probe of what a function really returns, whatever it is: run by a worker for the adapter check.

``calls.py`` requires arrays of the framework, as many as were requested; this module describes any object instead.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.impls.backend import backend
from attention_conformance.impls.calls import Request, arguments, heads_inside, same_bits
from attention_conformance.impls.contract import Function, Implementation
from attention_conformance.impls.loading import load, load_function
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.process import state
from attention_conformance.impls.process.state import Watch
from attention_conformance.impls.process.wire import said

#: Seconds that a result has to change after it was returned; any device computes a tiny input in less.
SETTLES = 0.05

#: Names as in ``@framework``, by the packages of the arrays.
FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "jax": "jax", "jaxlib": "jax", "onnxruntime": "onnxruntime"}


@dataclass(frozen=True)
class Value:
    """One returned object."""

    #: Type of the result in words: "list", "torch.Tensor".
    type: str
    #: The framework whose array it is, "" for none.
    framework: str = ""
    #: Kind of device that it is on, "" where that is not known.
    device: str = ""
    #: Elements in layout (B, H, S, D), None where it is not an array of the implementation's framework.
    array: np.ndarray | None = None
    #: It represents a result that is not there yet.
    awaited: bool = False
    #: It changed after it was returned.
    changed: bool = False


@dataclass(frozen=True)
class Returned:
    """Return of a call: its values, and the names of the requested results; or why there is nothing to look at."""

    values: tuple[Value, ...] = ()
    names: tuple[str, ...] = ()
    raised: str = ""
    #: The call changed something in its process that could not be restored.
    spoilt: bool = False


def others(implementation: Implementation) -> tuple[str, ...]:
    """The parameters of a function after its operator's arguments that are not keywords of the operator."""
    parameters = list(inspect.signature(load_function(implementation)).parameters.values())
    operator = OPERATORS[implementation.operator]
    behind = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][len(operator.arguments) :]
    return tuple(p.name for p in behind if p.name not in operator.keywords)


def probe(implementation: Implementation, request: Request, renamed: Mapping[str, str] | None = None) -> Returned:
    """Run one request and describe what comes back.  Never raises for what the implementation does.

    With ``renamed`` the function gets keywords under other names than the operator's.
    """
    watch = Watch((*state.settings(), *backend(implementation.framework).settings()))
    returned = _returned(implementation, request, renamed or {}, watch)
    return replace(returned, spoilt=bool(watch.stuck))


def _returned(implementation: Implementation, request: Request, renamed: Mapping[str, str], watch: Watch) -> Returned:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = _renaming(load_function(implementation), renamed)
            _, native, specification = arguments(implementation, request)
            run = load(implementation.prepare)(function, specification)
            with watch:  # a change left behind here would hide that a case makes it
                returned = run(**native)
            values = returned if isinstance(returned, tuple) else (returned,)
            names = specification.results()
            # Values that were not requested have no name.
            named = [*zip(values, (*names, *[""] * len(values)), strict=False)]
            first = [_value(implementation, *each) for each in named]
            time.sleep(SETTLES)
            backend(implementation.framework).synchronize(request.device)
            again = [_value(implementation, *each) for each in named]
            return Returned(tuple(_changed_value(*pair) for pair in zip(first, again, strict=True)), names)
    except Exception as error:
        return Returned(raised=f"{type(error).__name__}: {said(error)}")


def _renaming(function: Function, names: Mapping[str, str]) -> Function:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **{names.get(name, name): value for name, value in keywords.items()})

    return call if names else function


def _value(implementation: Implementation, value: Any, name: str) -> Value:
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    text = kind.__qualname__ if root == "builtins" else f"{root}.{kind.__qualname__}"
    awaited = inspect.isawaitable(value) or (hasattr(value, "done") and hasattr(value, "result"))
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that it was never awaited
    array = None
    try:
        array = np.array(backend(implementation.framework).get(value))  # a copy, which cannot change
        if name in heads_inside(implementation) and array.ndim == 4:
            array = array.transpose(0, 2, 1, 3)
    except Exception:  # not an array of the framework, or one without elements to read
        array = None
    framework = FRAMEWORKS.get(root, "") if hasattr(value, "shape") and not isinstance(value, np.generic) else ""
    return Value(text, framework, _device(value), array, awaited)


def _device(value: Any) -> str:
    """The kind of device that a tensor says it is on."""
    return str(getattr(getattr(value, "device", None), "type", ""))


def _changed_value(first: Value, later: Value) -> Value:
    if first.array is None or later.array is None or same_bits(first.array, later.array):
        return first
    return Value(first.type, first.framework, first.device, later.array, first.awaited, changed=True)
