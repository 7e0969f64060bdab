"""Declarations of foreign implementations in the form of a function's: a signature, and the attributes of a plug-in.

So all code that reads a plug-in's function reads these as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attention_conformance.impls.contract import Call, Function, ImplementationError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS, SDPA


@dataclass(frozen=True)
class Declared:
    """Declarations; ``impls.select.with_attributes`` looks at dtypes, profiles and layout."""

    operator: str = SDPA.name
    keywords: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("float32",)
    profiles: Mapping[str, str] = field(default_factory=dict)
    layout: str = "BHSD"
    #: Sizes and options by the attributes of a function that declare an envelope (impls/envelope.py).
    envelope: Mapping[str, Any] = field(default_factory=dict)


class Foreign:
    """An object with the declared signature and attributes; a subclass says how it is run."""

    def __init__(self, declared: Declared) -> None:
        self.operator = declared.operator
        self.dtypes = declared.dtypes
        self.profiles = dict(declared.profiles)
        self.layout = declared.layout
        for name, value in declared.envelope.items():
            setattr(self, name, value)
        self.__signature__ = _signature(declared)

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Always raises: foreign calls are prepared first."""
        raise TypeError("call what prepared() returns")

    def prepared(self, call: Call) -> Function:
        """The function of one call's arrays.  Raises NotImplementedError for a call that it does not support."""
        raise NotImplementedError


def prepare(function: Foreign, call: Call) -> Function:
    """Function that runs a call: ``impls.contract.partial`` for foreign implementations."""
    return function.prepared(call)


def known_keywords(who: str, operator: str, names: Iterable[str]) -> frozenset[str]:
    """The names, if each is a keyword of the operator.  Raises ImplementationError with the nearest ones."""
    known = OPERATORS[operator].keywords
    for name in names:
        if name not in known:
            raise ImplementationError(f"{who}: {name!r} is not a keyword of {operator}{nearest(name, known)}")
    return frozenset(names)


def known_operator(who: str, name: str) -> str:
    """The name, if it is an operator's.  Raises ImplementationError with the nearest one."""
    if name not in OPERATORS:
        raise ImplementationError(f"{who}: {name!r} is not an operator{nearest(name, OPERATORS)}")
    return name


def _signature(declared: Declared) -> inspect.Signature:
    arguments = OPERATORS[declared.operator].arguments
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments]
    for name in sorted(declared.keywords):
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(parameters)
