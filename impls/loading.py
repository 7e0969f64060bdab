"""Loading of functions, from ``module:function`` or ``file.py:function``, with one clear sentence when that fails."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from attention_conformance.impls import envelope
from attention_conformance.impls.contract import Function, Implementation, ImplementationError
from attention_conformance.impls.interpreters import enter
from attention_conformance.impls.merging import merge_form
from attention_conformance.impls.operators import OPERATORS, SDPA, Operator
from attention_conformance.impls.packed import packed_form
from attention_conformance.impls.process import clocks  # noqa: F401  (before any foreign code)
from attention_conformance.impls.sharding import DECLARED, GIVEN

#: Attributes that a plug-in may set on its function; they become fields of its record.
ATTRIBUTES = ("dtypes", "profiles", "layout", "operator", *DECLARED, *envelope.ATTRIBUTES)

#: Most names that are listed where none is near.
LISTED = 30


#: Loaded objects, and plug-ins with their operators' signatures, by target and folder.
_LOADED: dict[tuple[str, str], Any] = {}
_PLUGGED: dict[tuple[str, str], Any] = {}


def load(target: str, folder: str = "") -> Any:
    """The object that ``target`` names.

    Modules and files are looked for in ``folder`` first, as Python does for a script's own folder.

    Parameters
    ----------
    target
        ``module:object`` or ``path.py:object``.
    folder
        Folder where modules and files are looked for first.

    Returns
    -------
    Any
        The object.

    Raises
    ------
    ImplementationError
        If there is none.
    """
    if (target, folder) not in _LOADED:
        _LOADED[target, folder] = _found(target, folder)
    return _LOADED[target, folder]


def _found(target: str, folder: str) -> Any:
    place, _, name = target.rpartition(":")
    if folder:
        sys.path[:] = [folder, *(each for each in sys.path if each != folder)]
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            raise ImplementationError(f"{place} has no function {name!r}{nearest(name, names)}") from None
    return found


class Deferred:
    """A function that is loaded when it is called, or when anything but its name is read."""

    def __init__(self, target: str, folder: str) -> None:
        self._target, self._folder = target, folder
        self.__module__, _, self.__qualname__ = target.rpartition(":")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Result of the function."""
        return load(self._target, self._folder)(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(load(self._target, self._folder), name)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(load(self._target, self._folder))


def load_function(implementation: Implementation) -> Any:
    """The function of an implementation, made from its source where it has one.

    Parameters
    ----------
    implementation
        Record of the implementation.

    Returns
    -------
    Any
        The function.

    Raises
    ------
    ImplementationError
        If there is none; for a deferred function only when it is used.
    """
    if implementation.kernels:
        enter(implementation.kernels)  # before anything of it is imported
    if implementation.distribution is not None:
        from attention_conformance.impls import ranks  # which imports this module

        return ranks.function(implementation)
    if implementation.source:
        return _made_of_source(implementation.target, implementation.source)
    if implementation.deferred:
        return _deferred(implementation.target, implementation.folder)
    if implementation.folder:
        return plugged(implementation.target, implementation.folder)
    return load(implementation.target)


def plugged(target: str, folder: str) -> Any:
    """A plug-in with its operator's signature."""
    if (target, folder) not in _PLUGGED:
        _PLUGGED[target, folder] = as_called(load(target, folder), target)
    return _PLUGGED[target, folder]


def forget_function(target: str, folder: str) -> None:
    """Release a plug-in, its module where that is a file, and its folder on the path of imports.

    Parameters
    ----------
    target, folder
        As in ``load``.
    """
    _LOADED.pop((target, folder), None)
    _PLUGGED.pop((target, folder), None)
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        sys.modules.pop(Path(place).stem, None)
    sys.path[:] = [each for each in sys.path if each != folder]


def as_called(function: Any, name: str) -> Any:
    """A function with its operator's signature, whichever known one it is written in; a module by its ``forward``.

    Parameters
    ----------
    function
        Object that was plugged in.
    name
        Name of it in messages.

    Returns
    -------
    Any
        A function whose signature has the keywords that it takes; any other object is returned unchanged.

    Raises
    ------
    ImplementationError
        For a class, and for a signature that nearly matches a known one.
    """
    if isinstance(function, type):
        raise ImplementationError(f"{name} is a class: plug in an instance of it")
    try:
        return merge_form(packed_form(_module_form(function)))
    except ValueError as error:
        raise ImplementationError(f"{name}: {error}") from None


def _module_form(function: Any) -> Any:
    """A torch module with the signature of its ``forward``, as its own is ``(*args, **kwargs)``; else the object."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return function

    def module(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    inner = getattr(function, "_orig_mod", function)  # torch.compile puts one around it
    try:
        inspect.signature(inner.forward)
    except (TypeError, ValueError):  # of a traced module
        return function
    functools.update_wrapper(module, inner.forward)
    module.__name__ = module.__qualname__ = type(inner).__name__
    vars(module).update(attributes_of(function))
    return module


@functools.cache
def _deferred(target: str, folder: str) -> Deferred:
    return Deferred(target, folder)


@functools.cache
def _made_of_source(target: str, source: str) -> Any:
    return load(target)(source)


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        if not path.is_file():
            raise ImplementationError(f"no file {place}, looked for at {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ImplementationError:
        raise
    except BaseException as error:  # SystemExit at import is a user's mistake like any other
        raise ImplementationError(f"importing {place} raised {type(error).__name__}: {error}") from error


def operator_of(function: Function, name: str) -> Operator:
    """The operator that a function declares, or else the named one.

    Parameters
    ----------
    function
        A function of the contract.
    name
        Name of the operator where the function declares none.

    Returns
    -------
    Operator
        The operator.

    Raises
    ------
    ImplementationError
        For an unknown operator.
    """
    name = getattr(function, "operator", name)
    if name not in OPERATORS:
        raise ImplementationError(f"{name!r} is not an operator{nearest(str(name), OPERATORS)}")
    return OPERATORS[name]


def keywords(function: Function, operator: Operator = SDPA) -> frozenset[str]:
    """The keywords of an operator that a function accepts; ``**kwargs`` accepts all of them.

    Parameters
    ----------
    function
        A function of the contract.
    operator
        Operator whose keywords are looked for.

    Returns
    -------
    frozenset[str]
        Names of the keywords.

    Raises
    ------
    ImplementationError
        If the function cannot be called as the operator is.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ImplementationError(f"{name} has no readable signature ({error})") from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    count = len(operator.arguments)
    if len(positional) < count and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ImplementationError(
            f"{name}{inspect.signature(function)} takes {len(positional)} positional argument(s);"
            f" expected ({', '.join(operator.arguments)}, *, …)"
        )
    rest = [p for p in parameters if p not in positional[:count]]
    unknown = [p.name for p in rest if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = GIVEN if hasattr(function, "ranks") else ()
    unknown = [n for n in unknown if n not in (*operator.keywords, *given)]
    if unknown:
        raise ImplementationError(
            f"{name} requires the argument {unknown[0]!r}, which is not a keyword of {operator.name}"
            f"{nearest(unknown[0], operator.keywords)}; give it a default"
        )
    if any(p.kind is p.VAR_KEYWORD for p in rest):
        return frozenset(operator.keywords)
    return frozenset(p.name for p in rest) & frozenset(operator.keywords)


def attributes_of(function: Function) -> dict[str, Any]:
    """Attributes by which a function describes itself; a method of such a name does not count.

    Parameters
    ----------
    function
        A function of the contract.

    Returns
    -------
    dict[str, Any]
        Values by the names in ``ATTRIBUTES``.
    """
    found = {name: getattr(function, name) for name in ATTRIBUTES if hasattr(function, name)}
    return {name: value for name, value in found.items() if not callable(value)}


def accepts_anything(function: Function) -> bool:
    """Whether a function has ``**kwargs``, so that accepting a keyword says nothing.

    Parameters
    ----------
    function
        A function of the contract.

    Returns
    -------
    bool
        True with ``**kwargs``.
    """
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def nearest(name: str, names: Iterable[str]) -> str:
    """Half a sentence with the names that a misspelt one may have meant, or with all of them if few.

    Parameters
    ----------
    name
        The unknown name.
    names
        The known names.

    Returns
    -------
    str
        Begins with "; ".
    """
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    listed = ", ".join(names[:LISTED]) + (f", … ({len(names)} in all)" if len(names) > LISTED else "")
    return f"; known: {listed}" if names else ""
