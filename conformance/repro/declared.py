"""Calls of plugged-in functions in the parameters that their files declare: ``paged(q, k_cache, v_cache, …)``.

A script then calls a function as any user would, and needs none of this package's code that adapts signatures.  A file
is parsed and never imported; whatever its text leaves uncertain is left to the adapter.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from attention_conformance.impls.contract import Call, Implementation
from attention_conformance.impls.merging import SIGNATURES
from attention_conformance.impls.operators import MERGE, MERGE_GRAD, OPERATORS, PAGED, VARLEN
from attention_conformance.impls.packed import form_of

#: Words in a file that set attributes of a function, which only an adapter follows.
SAID = ("cache_layout", "lse_base", "empty_lse", "__signature__", "setattr")

#: Decorators that leave the parameters unchanged.
TRANSPARENT = ("jax.jit", "partial(jax.jit", "functools.partial(jax.jit", "torch.no_grad", "torch.inference_mode")


@dataclass(frozen=True)
class _Array:
    """An array of a call, with only its name and shape."""

    name: str
    shape: tuple[int, ...]


def arguments(implementation: Implementation, call: Call) -> tuple[str, ...] | None:
    """The arguments of a call of a plugged-in function: positional as far as they are its operator's arguments.

    Parameters
    ----------
    implementation
        The plug-in.
    call
        A call of its operator.

    Returns
    -------
    tuple of str or None
        The text of each; None where the file does not show the parameters, or where an adapter must convert more than
        names and plain values.
    """
    function = _stub(implementation)
    if function is None:
        return None
    arrays = {name: _Array(name, shape) for name, shape in call.shapes}
    given = {name: value for name, value in call.options if value is not None}
    if call.operator in (VARLEN.name, PAGED.name):
        found = _packed(function, call.operator, {**arrays, **given})
    elif call.operator in (MERGE.name, MERGE_GRAD.name):
        found = {**arrays, **given} if _is_merge(function) else None
    else:
        found = {**arrays, **dict(call.options)}
    return None if found is None else _texts(function, found, OPERATORS[call.operator].arguments)


def _stub(implementation: Implementation) -> Callable[..., Any] | None:
    """A function with the parameters of the plug-in, and None for every default."""
    place, _, name = implementation.target.rpartition(":")
    if not place.endswith(".py"):
        return None
    try:
        source = Path(place).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    code = _code(source, name)
    if code is None:
        return None
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  (parameters and pass)
    function: Callable[..., Any] = names[name]
    return function


@functools.lru_cache(maxsize=8)  # every failure of a run has a script, and most come from one file
def _code(source: str, name: str) -> CodeType | None:
    """Code that defines a function of a file with only its parameters; None where the text does not show them."""
    try:
        tree = ast.parse(source)
    except (ValueError, SyntaxError):
        return None
    if any(word in source for word in SAID) or sum(name in _names(node) for node in ast.walk(tree)) != 1:
        return None
    definition = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
    if definition is None or not all(ast.unparse(d).startswith(TRANSPARENT) for d in definition.decorator_list):
        return None
    given = definition.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))):
        each.annotation = None
    given.defaults = [ast.Constant(None) for _ in given.defaults]
    given.kw_defaults = [default and ast.Constant(None) for default in given.kw_defaults]
    definition.body, definition.returns, definition.decorator_list = [ast.Pass()], None, []
    return compile(ast.fix_missing_locations(ast.Module([definition], [])), name, "exec")


def _names(node: ast.AST) -> list[str]:
    """The names that a node binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return [node.asname or node.name.partition(".")[0]] if isinstance(node, ast.alias) else []


def _packed(function: Callable[..., Any], operator: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of a function of packed or paged attention, by its own parameters; None for what needs an adapter."""
    function.operator = operator  # type: ignore[attr-defined]
    try:
        form = form_of(function)
        if form is None:
            return dict(given)
        several = "return_lse" in given and form.parameters["return_lse"] != "return_lse"  # three results, maybe
        if several or "out" in form.required or not form.parameters["cu_seqlens_q"]:
            return None
        return form.arguments(given)
    except (AttributeError, TypeError, ValueError, NotImplementedError):  # it needs the numbers of an array
        return None


def _is_merge(function: Callable[..., Any]) -> bool:
    """Whether a merge function has the parameters of the operator."""
    names = tuple(inspect.signature(function).parameters)
    first = next((first for first in SIGNATURES if names[: len(first)] == first), None)
    return first in (None, MERGE.arguments)


def _texts(function: Callable[..., Any], given: Mapping[str, Any], leading: tuple[str, ...]) -> tuple[str, ...]:
    """The text of each argument: positional up to the first parameter that takes no argument of the operator."""
    texts = {name: value.name if isinstance(value, _Array) else repr(value) for name, value in given.items()}
    places: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is not each.POSITIONAL_OR_KEYWORD or texts.get(each.name) not in leading:
            break
        places.append(texts.pop(each.name))
    return (*places, *(f"{name}={text}" for name, text in texts.items()))
