"""Calls as scripts: what each framework's folder contributes about its arrays and its calls.

Each folder has a module ``script`` with ``TERMS`` and with ``CALLS``, by the name of the implementation.  They hold
text and import no framework, so a script can be written by a process that has none.  The scripts are put together in
conformance/repro.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attention_conformance.impls.contract import Call
from attention_conformance.impls.operators import OPERATORS

#: Longest line of a script.
WIDTH = 120

INDENT = " " * 4

#: Dtypes that NumPy does not have by itself: a script's NumPy arrays hold their numbers in float32.
CARRIED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Given:
    """An array that a script starts from, in NumPy and in the implementation's layout.

    A dtype of CARRIED is held in float32, in which its numbers are exact, until it becomes an array of the framework.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Axes along which it repeats its first entry; an expanded array has stride 0 there.
    repeated: tuple[int, ...] = ()

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype not in ("bool", "int8", "int32", "int64")


@dataclass(frozen=True)
class Terms:
    """Terms of a framework for arrays; every text is Python."""

    imports: tuple[str, ...]
    #: The class of results, as ``isinstance`` takes it.
    array: str
    #: ``put(arrays, memory, device)``: statements that turn the NumPy arrays into the framework's, under their names.
    put: Callable[[Sequence[Given], str, str], list[str]]
    #: The expression for the bytes of an array ``a``.
    content: str
    #: What ``str(result.dtype)`` is for a dtype.
    dtype: Callable[[str], str] = str
    #: A method that makes a result an array with ``shape``, ``dtype`` and indices, "" if it is one.
    method: str = ""
    #: The statement that waits until ``results`` are computed on a device, "" where a call waits.
    wait: Callable[[str], str] = lambda device: ""
    #: Packages whose versions belong in a report, in addition to those that the implementation requires.
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snippet:
    """A call as a script makes it."""

    #: The called function, and its arguments.
    function: str
    arguments: tuple[str, ...]
    terms: Terms
    imports: tuple[str, ...] = ()
    #: Statements that define what the expression uses.
    definitions: str = ""
    #: Functions (``module:function``) of this package whose source must come before the definitions.
    sources: tuple[str, ...] = ()
    #: Text after the call: ``[0]`` where the first of its results is meant.
    after: str = ""
    #: Statements that come before the call once, when the arrays are the framework's.
    prepared: tuple[str, ...] = ()

    def call(self, before: str = "", depth: int = 0) -> str:
        """The call at a depth of indentation, with text before it."""
        return applied(self.function, self.arguments, depth, before) + self.after


#: Writes a call.  Raises NotImplementedError for a call that the implementation cannot express either.
Writer = Callable[[Call], Snippet]


def leaves(call: Call) -> tuple[str, ...]:
    """The arrays whose gradients a call returns, in order.

    Parameters
    ----------
    call
        Call of an operator of gradients.

    Returns
    -------
    tuple[str, ...]
        Names of arrays.
    """
    return tuple(name.removeprefix("grad_") for name in call.results())


def forward(call: Call, operator: str) -> Call:
    """The call of the function that a call of gradients differentiates.

    Parameters
    ----------
    call
        Call of an operator of gradients.
    operator
        The name of the function that is differentiated.

    Returns
    -------
    Call
        The call without the gradients of results.
    """
    shapes = tuple(item for item in call.shapes if item[0] not in ("grad_output", "grad_lse"))
    return Call(call.dtype, call.device, shapes, call.options, operator)


def assign_each(names: Sequence[str], expression: str) -> str:
    """The statement that gives each of the names its ``expression``, in which the array is called ``a``.

    Parameters
    ----------
    names
        Names, one or more.
    expression
        Expression in the one array ``a``.

    Returns
    -------
    str
        One statement, which takes as many lines as it needs.
    """
    if len(names) == 1:
        return re.sub(r"\ba\b", names[0], f"a = {expression}")
    listed = ", ".join(names)
    source = f"for a in ({listed})"
    for inside in (f"{listed} = ({expression} {source})", f"{INDENT}{expression} {source}"):
        if len(inside) <= WIDTH:
            return inside if inside.startswith(listed) else f"{listed} = (\n{inside}\n)"
    return f"{listed} = (\n{INDENT}{expression}\n{INDENT}{source}\n)"


def assigned(arrays: Sequence[Given], expression: Callable[[Given], str]) -> list[str]:
    """The statements that give each array its expression, one for each expression; "" leaves an array unchanged."""
    names: dict[str, list[str]] = {}
    for each in arrays:
        names.setdefault(expression(each), []).append(each.name)
    return [assign_each(those, text) for text, those in names.items() if text]


def by_source(function: str, terms: Terms) -> Writer:
    """A function (``module:function``) of this package, by its source."""
    return lambda call: Snippet(function.rpartition(":")[2], by_contract(call), terms, sources=(function,))


def applied(function: str, arguments: Sequence[str], depth: int = 0, before: str = "") -> str:
    """``before`` and the call of a function, at this depth of indentation, laid out as ``enclosed`` does it.

    Parameters
    ----------
    function
        Name of the function.
    arguments
        The text of each.
    depth
        Depth of indentation, in steps.
    before
        Text before it, such as ``output = ``.

    Returns
    -------
    str
        One line, or several.
    """
    return enclosed(f"{before}{function}(", arguments, ")", depth)


def enclosed(start: str, items: Sequence[str], end: str, depth: int = 0) -> str:
    """``start``, the items with commas, and ``end``, at this depth: on one line, on three, or with a line per item.

    An item that is a dictionary or a tuple and is too long for its line is broken in turn.

    Parameters
    ----------
    start
        Up to the bracket that opens, in it.
    items
        The text of each.
    end
        Text from the bracket that closes.
    depth
        Depth of indentation, in steps.

    Returns
    -------
    str
        One line, or several.
    """
    margin = INDENT * depth
    line = f"{margin}{start}{', '.join(items)}{end}"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    body = f"{margin}{INDENT}{', '.join(items)}"
    if len(body) <= WIDTH and "\n" not in line:
        return f"{margin}{start}\n{body}\n{margin}{end}"
    inside = []
    for item in items:
        text = f"{margin}{INDENT}{item},"
        if len(text) > WIDTH and item.startswith("{"):
            text = f"{enclosed('{', item[1:-1].split(', '), '}', depth + 1)},"
        elif len(text) > WIDTH and item.endswith(")"):
            text = textwrap.fill(text, WIDTH, subsequent_indent=margin + 2 * INDENT, break_long_words=False)
        inside.append(text)
    return "\n".join([f"{margin}{start}", *inside, f"{margin}{end}"])


def by_contract(call: Call) -> tuple[str, ...]:
    """The arguments of a function of the contract: arrays by their names, numbers written out.

    Parameters
    ----------
    call
        Call whose arrays and options are written.

    Returns
    -------
    tuple[str, ...]
        The text of each argument, in order.
    """
    arrays = (f"{name}={name}" for name in call.arrays)
    return (*OPERATORS[call.operator].arguments, *arrays, *(f"{name}={value!r}" for name, value in call.options))
