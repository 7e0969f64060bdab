"""Hidden names of the suite in a gate's worker: a candidate can neither import them nor see that it is judged.

Code that branches on "am I judged" looks for a name of the judge: in ``sys.modules``, the arguments, the environment,
the search path.  So once everything that the worker needs is loaded, only the worker can reach its modules.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import linecache
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attention_conformance
from attention_conformance.bench.gate.noticed import callers, frame_of, notice

PACKAGE = "attention_conformance"

#: Modules of the suite that a worker of the gate needs once the candidate is loaded; no others can be imported.
_STAYS = ("impls", "bench")

#: Loaded modules of the suite by name, for its own code.
_HIDDEN: dict[str, ModuleType] = {}

#: The module that reads jobs, whose classes are found in modules that are hidden.
_WIRE = f"_{PACKAGE}_wire"

#: Variables of the parent's environment that the worker keeps; the others are emptied, and removed.
KEPT_VARIABLES = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|LD_LIBRARY_PATH|DYLD_\w+|VIRTUAL_ENV|SYSTEMROOT|\w*NUM_THREADS|"
    r"\w*MAXIMUM_THREADS|NPROC|MALLOC_\w+|CUDA_\w+|NVIDIA_\w+|HIP_\w+|ROCR?_\w+|OMP_\w+|KMP_\w+|MKL_\w+|OPENBLAS_\w+|"
    r"XLA_\w+|JAX_\w+|TORCH\w*|TRITON_\w+|PYTHON(HASHSEED|MALLOC|WARNINGS)|ATTENTION_CONFORMANCE_(SCRATCH|THREADS)"
)

# The environment.


def hidden_environment() -> dict[str, str]:
    """Environment for the worker, made in the parent: variables without a value, and where torch compiles."""
    hidden = {name: "" for name in os.environ if not KEPT_VARIABLES.fullmatch(name)}
    return hidden | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else it starts Pythons outside the walls


def clear_environment() -> None:
    """Remove, in the worker, the variables that have no value."""
    for name in [name for name, value in os.environ.items() if not value]:
        del os.environ[name]


# Imports.


def rooms() -> tuple[str, ...]:
    """The folders of the suite's own modules."""
    places = [Path(place) for place in attention_conformance.__path__]
    known = [str(place / room) + os.sep for place in places for room in ("impls", "conformance", "bench", "reports")]
    return tuple(os.path.realpath(each) + os.sep for each in known if os.path.isdir(each))


class _Kept(importlib.abc.Loader):
    """Gives a module of the suite that is loaded already to the suite's own code."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._was = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing again; the module is unchanged."""
        module.__spec__ = self._was


class _Finder(importlib.abc.MetaPathFinder):
    """Refuses the suite's modules to all but its own code, and reports the import of certain libraries."""

    def __init__(self, names: Collection[str], imported: Callable[[str, ModuleType], None]) -> None:
        self._names, self._imported = names, imported

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """None, except for modules whose import is reported; ImportError for the suite's."""
        if _ours(fullname):
            if fullname in _HIDDEN and _by_the_suite():
                return importlib.machinery.ModuleSpec(fullname, _Kept(_HIDDEN[fullname]))
            notice("suite", f"it imports {fullname}, which is not there for a candidate")
            raise ImportError(f"{fullname} cannot be imported in the gate's worker", name=fullname)
        if fullname not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._imported(fullname, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_Finder.__module__ = _Kept.__module__ = importlib.machinery.__name__  # shown by a look at sys.meta_path


def _ours(name: str) -> bool:
    return PACKAGE in name


def _by_the_suite() -> bool:
    """Whether the importing code is the suite's: its globals are those of a hidden module."""
    for each in callers(frame_of(1)):
        names = each.f_globals
        if each.f_code.co_filename == __file__ or str(names.get("__name__")).startswith("importlib"):
            continue
        held = _HIDDEN.get(str(names.get("__name__")))
        return held is not None and vars(held) is names
    return False


def close_imports(names: Collection[str], imported: Callable[[str, ModuleType], None]) -> None:
    """Forbid all further imports of the suite: its reference is gone, and no name reveals it.

    Parameters
    ----------
    names, imported
        Modules of libraries, and the function that is called with each once it is imported.
    """
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        if name.split(".")[1] not in _STAYS:
            del sys.modules[name]
    _HIDDEN.update({name: module for name, module in sys.modules.items() if _ours(name)})
    _HIDDEN["__main__"], sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    if _WIRE in _HIDDEN:
        vars(_HIDDEN[_WIRE])["HELD"] = _HIDDEN
    sys.meta_path[:] = [_Finder(names, imported), *(each for each in sys.meta_path if not _names_it(repr(each)))]
    sys.path[:] = [each for each in sys.path if not _names_it(each)]
    sys.path_hooks[:] = [each for each in sys.path_hooks if not _names_it(repr(each))]
    for place in [place for place in sys.path_importer_cache if _names_it(place)]:
        del sys.path_importer_cache[place]
    sys.argv[:], sys.orig_argv[:] = [""], [sys.executable]
    for name in [name for name in os.environ if _names_it(name)]:
        del os.environ[name]
    linecache.clearcache()
    hide()


def hide() -> None:
    """Remove the names of the suite's modules that its own imports have added again."""
    for name in _HIDDEN:
        if name != "__main__":
            sys.modules.pop(name, None)


def modules() -> dict[str, ModuleType]:
    """The suite's modules in this process by name, hidden or not."""
    return {name: module for name, module in {**sys.modules, **_HIDDEN}.items() if name.startswith(f"{PACKAGE}.")}


def _names_it(text: object) -> bool:
    return PACKAGE in str(text).lower().replace("-", "_")


# The suite's name in a candidate.


def places_of_name(text: str) -> str:
    """First place of the suite's name in strings of a candidate's code, where it may act for the judge only.

    Docstrings, and code that runs only when the file is a program, are skipped.
    """
    tree = ast.parse(text)
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            passed.add(body[0].value)
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            passed.update(each for inner in node.body for each in ast.walk(inner))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in passed and PACKAGE in str(node.value).replace("-", "_"):
            return f"line {node.lineno} names the suite, so that what it does may be for the judge alone"
    return ""
