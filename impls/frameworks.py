"""Frameworks of functions: whose arrays a function takes, by its annotations and by the packages that it names.

A function given as an object is looked at itself.  For a function named by its file or module the source is parsed, and
nothing of it is run: the user's code runs only in workers.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterator, Sequence, Set
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from attention_conformance.impls.contract import Framework, Function, ImplementationError
from attention_conformance.impls.interpreters import KERNELS

#: Frameworks, and languages of kernels, by the packages that a function names; the longest name that fits counts.
_FRAMEWORKS = {
    "torch": Framework.TORCH,
    "triton": "triton",
    "jax": Framework.JAX,
    "jax.experimental.pallas": "pallas",
    "jaxlib": Framework.JAX,
    "flax": Framework.JAX,
    "numpy": Framework.NUMPY,
}

#: Frameworks by the words of an annotation.
_ANNOTATED = {
    Framework.TORCH: re.compile(r"\btorch\b"),
    Framework.JAX: re.compile(r"\bjax\b|\bjaxlib\b|\bjnp\b"),
    Framework.NUMPY: re.compile(r"\bnumpy\b|\bnp\b"),
}

#: Attribute that takes NumPy arrays alone, those that take them too, and that with which a tensor becomes one.
_FROM_NUMPY, _ALSO_FROM_NUMPY, _TO_NUMPY = "from_numpy", {"as_tensor", "tensor"}, "numpy"

#: Where a function is defined: a file, and a name in it.
_Place = tuple[Path, str]


class SeveralFrameworksError(ImplementationError):
    """Several frameworks are named, and none of the annotations decides."""


def framework_of(function: Function) -> str:
    """The framework whose arrays a function takes, by its annotations and the modules that it names; numpy if none.

    Parameters
    ----------
    function
        Any callable.

    Returns
    -------
    str
        "numpy", "torch" or "jax"; for a function that names their packages "triton" or "pallas", a language of kernels
        for torch's or JAX's arrays.

    Raises
    ------
    ImplementationError
        Where several frameworks are named, and none of the annotations decides.
    """
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    own = {_framework(each.__module__) for each in type(inner).__mro__}
    if found := own & {Framework.TORCH, Framework.JAX}:  # a module of torch, a jitted function
        return str(found.pop())
    plain = getattr(inner, "__func__", inner)  # of a method
    code_of = plain if hasattr(plain, "__code__") else vars(type(inner)).get("__call__")
    annotations = " ".join(map(str, getattr(code_of, "__annotations__", {}).values()))
    try:
        return _decided(annotations, _named_frameworks(code_of, set()))
    except _SeveralError as error:
        raise ImplementationError(
            f'{name_of(function)} uses {error}: say whose arrays it takes, such as framework="torch"'
        ) from None


def framework_in(place: str, name: str, folder: str) -> str:
    """The framework whose arrays a function takes, by the source of its file or module, of which nothing is run.

    Parameters
    ----------
    place
        Path of a file, or name of a module.
    name
        Name of the function in it, with dots for an attribute.
    folder
        Folder in which modules are looked for first.

    Returns
    -------
    str
        As ``framework_of``; "numpy" where the source cannot be found or parsed, or names no framework.

    Raises
    ------
    SeveralFrameworksError
        Where several frameworks are named, and none of the annotations decides.
    """
    path = Path(place) if place.endswith(".py") else _file_of(place, folder)
    if path is None:
        return str(Framework.NUMPY)
    found = _Sources(folder)
    first = name.split(".")[0]
    found.follow((path, first))
    annotations = found.annotations(path, name)
    if not _said(annotations) and (found.converts() or found.returns_numpy(path, first)):
        return str(Framework.NUMPY)
    try:
        decided = _decided(annotations, found.named or found.imported(path) or _required_by(found.packages))
    except _SeveralError as error:
        raise SeveralFrameworksError(
            f"{name} in {path.name} uses {error}: say whose arrays it takes, such as {path.name}:{name}@torch"
        ) from None
    missing = decided in KERNELS and not all(map(importlib.util.find_spec, KERNELS[decided].requires))
    return arrays_of(decided) if missing else decided  # there may be a path without the kernels


class _SeveralError(Exception):
    """The names of several frameworks, none of which is the one."""


def _decided(annotations: str, named: set[str]) -> str:
    """The framework, or language of kernels, by a function's annotations and what it names.  Raises _SeveralError."""
    frameworks = _said(annotations) or {arrays_of(each) for each in named}
    if len(frameworks) > 1:
        frameworks = frameworks - {str(Framework.NUMPY)}
    if len(frameworks) > 1:
        raise _SeveralError(" and ".join(sorted(frameworks)))
    framework = next(iter(frameworks), str(Framework.NUMPY))
    return next((each for each in sorted(named) if each in KERNELS and arrays_of(each) == framework), framework)


def _said(annotations: str) -> set[str]:
    """The frameworks that annotations name."""
    return {str(each) for each, words in _ANNOTATED.items() if words.search(annotations)}


def arrays_of(named: str) -> str:
    """The framework whose arrays a function takes, by what ``framework_of`` gives.

    Parameters
    ----------
    named
        A framework, or a language of kernels.

    Returns
    -------
    str
        The framework; any other word unchanged.
    """
    return str(KERNELS[named].framework) if named in KERNELS else named


def name_of(function: Function) -> str:
    """Name of a function in messages: its own, or the name of the function that it wraps, or of its class.

    Parameters
    ----------
    function
        Any callable.

    Returns
    -------
    str
        One word.
    """
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__name__", "") or type(function).__name__
    return "function" if name == "<lambda>" else str(name)


def _framework(module: str) -> str | None:
    """The framework or language of kernels that a module belongs to, None for any other."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((str(_FRAMEWORKS[name]) for name in names if name in _FRAMEWORKS), None)


# A function as an object.


def _named_frameworks(function: Any, seen: set[int]) -> set[str]:
    """The frameworks, and languages of kernels, that a function and the plain functions that it calls name."""
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen:
        return set()
    seen.add(id(code))
    inside = [const for const in code.co_consts if isinstance(const, types.CodeType)]  # comprehensions, inner functions
    names = {*code.co_names, *(name for each in inside for name in each.co_names)}
    imported = names - function.__globals__.keys()
    found = {framework for name in imported if (framework := _framework(name))}
    closed = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            closed[name] = cell.cell_contents
    known = {**{name: function.__globals__[name] for name in names if name in function.__globals__}, **closed}
    for value in known.values():
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "") or ""
        framework = _framework(str(module)) or _framework(type(value).__module__)
        if framework is not None:
            found.add(framework)
        elif isinstance(value, types.FunctionType):
            found |= _named_frameworks(value, seen)
    return found


# A function as source.


class _Sources:
    """The source of a function and of the functions that it uses, in its file and in the modules beside it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: set[_Place] = set()
        #: Frameworks and languages of kernels that are named.
        self.named: set[str] = set()
        #: Other packages that are named, whose source is not followed.
        self.packages: set[str] = set()
        self._attributes: set[str] = set()

    def follow(self, place: _Place) -> None:
        """Collect what a definition names, and what the definitions that it uses name."""
        if place in self._seen:
            return
        self._seen.add(place)
        path, name = place
        definitions, imports = _parsed(path)
        if name not in definitions:
            self._import(path, imports.get(name, ""))
            return
        definition = definitions[name]
        own = imports | _imports(definition)
        for chain in _chains(definition):
            first, *rest = chain
            if first in definitions:
                self.follow((path, first))
            elif first in own:
                self._import(path, ".".join((own[first], *rest)))
        self._attributes |= {each.attr for each in ast.walk(definition) if isinstance(each, ast.Attribute)}

    def converts(self) -> bool:
        """Whether the function turns NumPy arrays into tensors."""
        used = self._attributes
        return _FROM_NUMPY in used or (_TO_NUMPY in used and bool(used & _ALSO_FROM_NUMPY))

    @staticmethod
    def returns_numpy(path: Path, name: str) -> bool:
        """Whether a function returns what a function of NumPy, or ``.numpy()``, gives: then it takes such arrays."""
        definitions, imports = _parsed(path)
        definition = definitions.get(name)
        if not isinstance(definition, ast.FunctionDef):
            return False
        own = imports | _imports(definition)
        calls = [each.value.func for each in _returns(definition) if isinstance(each.value, ast.Call)]
        firsts = [next(_chains(call), ("",)) for call in calls]
        return any(
            (isinstance(call, ast.Attribute) and call.attr == _TO_NUMPY)
            or _framework(".".join((own.get(first, first), *rest))) == Framework.NUMPY
            for call, (first, *rest) in zip(calls, firsts, strict=True)
        )

    def _import(self, path: Path, dotted: str) -> None:
        """Collect what an imported name is: of a framework, or of a module whose source is near."""
        if framework := _framework(dotted):
            self.named.add(framework)
            return
        parts = dotted.lstrip(".").split(".")
        level = len(dotted) - len(dotted.lstrip("."))
        folders = (path.parents[min(level, len(path.parents)) - 1],) if level else (path.parent, Path(self._folder))
        for folder, length in itertools.product(folders, range(len(parts) - 1, 0, -1)):
            near = folder.joinpath(*parts[:length]).with_suffix(".py")
            if near.is_file():
                self.follow((near, parts[length]))
                return
        if not level:
            self.packages.add(parts[0])

    @staticmethod
    def annotations(path: Path, name: str) -> str:
        """The annotations of a function, or of the call of a class, as text, with the modules of imported names."""
        definitions, imports = _parsed(path)
        definition: ast.AST | None = definitions.get(name.split(".")[0])
        for part in (*name.split(".")[1:], "__call__", "forward"):
            if isinstance(definition, ast.ClassDef):
                inside = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
                definition = inside.get(part, definition)
        if not isinstance(definition, ast.FunctionDef):
            return ""
        every = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
        found = [each.annotation for each in every if each.annotation is not None]
        found += [definition.returns] if definition.returns is not None else []
        text = " ".join(map(ast.unparse, found))
        absolute = {bound: dotted for bound, dotted in imports.items() if not dotted.startswith(".")}
        return re.sub(r"(?<![\w.])\w+", lambda word: absolute.get(word[0], word[0]), text)

    @staticmethod
    def imported(path: Path) -> set[str]:
        """The frameworks that a file imports, for a function that uses only methods of its arrays."""
        return {found for module in _parsed(path)[1].values() if (found := _framework(module))}


def _parsed(path: Path) -> tuple[dict[str, ast.AST], dict[str, str]]:
    """Definitions by name, and imported modules or members by the name that they have in a file; none if unreadable."""
    try:
        return _parsed_text(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}, {}


@functools.lru_cache(maxsize=64)
def _parsed_text(text: bytes) -> tuple[dict[str, ast.AST], dict[str, str]]:
    tree = ast.parse(text)
    definitions: dict[str, ast.AST] = {}
    for each in _statements(tree.body):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            definitions[each.name] = each
        elif isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            definitions.update((target.id, each.value) for target in targets if isinstance(target, ast.Name))
    imports: dict[str, str] = {}
    for each in _statements(tree.body):
        imports |= _imports(each) if isinstance(each, (ast.Import, ast.ImportFrom)) else {}
    return definitions, imports


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under ``if``, ``try`` and ``with`` included."""
    for each in body:
        yield each
        for field in ("body", "orelse", "finalbody"):
            if isinstance(each, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(each, field, ()))
        for handler in getattr(each, "handlers", ()):
            yield from _statements(handler.body)


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """Statements that return from a function, without those of functions inside it."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Return):
            yield each
        elif not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _returns(each)


def _imports(node: ast.AST) -> dict[str, str]:
    """The names that import statements within a node bind, each with the dotted name of its module or member.

    That of a relative import begins with its dots.
    """
    found: dict[str, str] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            found.update((a.asname, a.name) if a.asname else (a.name.split(".")[0],) * 2 for a in each.names)
        elif isinstance(each, ast.ImportFrom):
            module = "." * each.level + (f"{each.module}." if each.module else "")
            found.update((a.asname or a.name, module + a.name) for a in each.names)
    return found


def _chains(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Names that a definition uses with the attributes taken of each: ("jax", "nn", "softmax")."""
    for each in ast.walk(node):
        parts: list[str] = []
        inner: ast.AST = each
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield (inner.id, *reversed(parts))


def _required_by(packages: Set[str]) -> set[str]:
    """The frameworks that the distributions of some packages require, if they are installed: natten requires torch."""
    known = importlib.metadata.packages_distributions() if packages else {}
    found = {each for package in packages for each in known.get(package, ())}
    required = {line for each in found for line in importlib.metadata.requires(each) or () if "extra ==" not in line}
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in required}
    return {framework for name in names if (framework := _framework(name)) and framework != Framework.NUMPY}


def _file_of(module: str, folder: str) -> Path | None:
    """The source file of a module, found without importing its packages; None if there is none."""
    place: Sequence[str] | None = [folder, *sys.path]
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, place) if place is not None else None
        if spec is None:
            return None
        place = spec.submodule_search_locations
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None
