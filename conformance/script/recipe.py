"""From a maker of data, which is a closure, back to the expression that made it: ``peak(-1)``, ``random_mask(0.5)``."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from conformance.script.inline import lambda_at


class NoRecipe(Exception):
    """A value that cannot be written down as an expression; the text says why."""


def expression(value: Any, sources: list[str]) -> str:
    """The expression for a plain value or a function; the functions that it names are added to ``sources``.

    A function is named if it is one of a module, and a lambda that needs nothing else is written out.  A function that
    was made by another one is written as the call of that one, with the arguments that the closure holds.  Whether the
    result is the same has to be tried.  Raises NoRecipe or CannotInline for anything else.
    """
    if callable(value):
        return _function(value, sources)
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else f"{'-' if value < 0 else ''}np.inf"
    if isinstance(value, tuple):
        items = [expression(each, sources) for each in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, slice):
        return f"slice({value.start!r}, {value.stop!r})" if value.step is None else repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    raise NoRecipe(f"a {type(value).__name__}")


def _function(value: Any, sources: list[str]) -> str:
    qualified, module = getattr(value, "__qualname__", ""), getattr(value, "__module__", "")
    names = qualified.split(".<locals>.")
    if names[-1] == "<lambda>" and not value.__code__.co_freevars:
        arguments, body, used = lambda_at(module, value.__code__.co_firstlineno)
        sources += [f"{module}:{name}" for name in used]
        return f"(lambda {arguments}: {body})"
    made_by = getattr(sys.modules.get(module), names[0], None)
    if len(names) > 2 or not inspect.isfunction(made_by) or inspect.isgeneratorfunction(made_by):
        raise NoRecipe(f"{module}.{qualified} is not made by a function of its module")
    sources.append(f"{module}:{names[0]}")
    return names[0] if len(names) == 1 else _call(made_by, inspect.getclosurevars(value).nonlocals, sources)


def _call(made_by: Callable[..., Any], held: Any, sources: list[str]) -> str:
    """The call of a function with the arguments that a closure of it holds; defaults are left out."""
    arguments = []
    parameters = inspect.signature(made_by).parameters.values()
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            arguments += [expression(item, sources) for item in held.get(each.name, ())]
        elif each.name not in held:
            if each.default is each.empty:
                raise NoRecipe(f"{made_by.__name__}: the closure does not hold {each.name}")
        elif each.default is each.empty:
            arguments.append(expression(held[each.name], sources))
        elif held[each.name] != each.default:
            arguments.append(f"{each.name}={expression(held[each.name], sources)}")
    return f"{made_by.__name__}({', '.join(arguments)})"
