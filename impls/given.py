"""Functions given as objects, by a notebook, a script or a test: they reach a worker process by pickling.

A small file is written for each, which a worker loads as it loads a user's ``path.py:function``.  cloudpickle includes
closures, lambdas and definitions in a notebook; a function of a module that Python finds by its name is imported in the
worker, so changes made to the module since its import are not included.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle

from attention_conformance.impls import calls
from attention_conformance.impls.contract import Function, Implementation, ImplementationError
from attention_conformance.impls.frameworks import arrays_of, framework_of, name_of
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.select import plug_in

#: Functions that are called in this process, by number.
_HELD: dict[int, Function] = {}
_NUMBERS = itertools.count(1)

#: The file that represents a function: a module, a function of it, and its argument.
_FILE = "from {} import {} as _open\n\nfunction = _open({!r})\n"


@contextlib.contextmanager
def given(
    function: Function, framework: str | None = None, operator: str = "sdpa", *, isolated: bool = True
) -> Iterator[Implementation]:
    """The implementation made of a function, for as long as the context lasts.

    Parameters
    ----------
    function
        Takes and returns arrays as the contract says (impls/PLUGINS.md).
    framework
        Framework whose arrays it takes: ``numpy``, ``torch`` or ``jax``; or the language of its kernels, ``triton`` or
        ``pallas``.  By default what ``framework_of`` finds.
    operator
        Operator that it computes, where it has no attribute that says so.
    isolated
        Whether it is called in a process of its own, which it is sent to by pickling.

    Yields
    ------
    Implementation
        The implementation, with its framework and operator, callable by a worker.

    Raises
    ------
    ImplementationError
        In one sentence: not a function, an unknown framework or operator, or not picklable.
    """
    if not callable(function):
        raise ImplementationError(f"expected a function, got {type(function).__name__}")
    if operator not in OPERATORS:
        raise ImplementationError(f"{operator!r} is not an operator{nearest(operator, OPERATORS)}")
    taken = framework_of(function) if framework is None else framework
    if not isolated and framework is None:
        taken = arrays_of(taken)  # an interpreter would stay in this process
    number = next(_NUMBERS)
    with tempfile.TemporaryDirectory(prefix="attention-conformance-") as folder:
        path = Path(folder, f"_given_function_{number}.py")  # a name that no module has
        if isolated:
            pickled = path.with_suffix(".pickle")
            pickled.write_bytes(_pickled(function))
            path.write_text(_FILE.format(__name__, "unpickled", str(pickled)), encoding="utf-8")
        else:
            _HELD[number] = function
            path.write_text(_FILE.format(__name__, "held", number), encoding="utf-8")
        try:
            implementation = plug_in(f"{path}:function@{taken}", name=name_of(function))
            try:
                yield replace(implementation, operator=operator)
            finally:
                calls.forget(implementation)
        finally:
            _HELD.pop(number, None)


def _pickled(function: Function) -> bytes:
    """The function and where its modules are found.  Raises ImplementationError if it cannot be sent to a process."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not _found_elsewhere(module)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            data = cloudpickle.dumps(function)
        finally:
            if by_value:
                cloudpickle.unregister_pickle_by_value(module)
    except Exception as error:  # pickling runs other people's code
        raise ImplementationError(
            f"{name_of(function)} cannot be sent to a separate process ({type(error).__name__}: {error}): put it in a"
            " file and check that, or pass isolated=False"
        ) from None
    return pickle.dumps((sys.path, data))


def _found_elsewhere(module: types.ModuleType) -> bool:
    """Whether another process finds the module by its name: ``importlib``'s find_spec returns what this one loaded."""
    file, origin, name, place = getattr(module, "__file__", None), None, "", None
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        specs = (finder.find_spec(name, place) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return False
        place, origin = spec.submodule_search_locations, spec.origin
    return file in (None, origin)


def unpickled(path: str) -> Function:
    """The function in a file that ``given`` wrote, in the process that calls it.

    Parameters
    ----------
    path
        Path of a file that ``given`` wrote.

    Returns
    -------
    Function
        The function.
    """
    folders, data = pickle.loads(Path(path).read_bytes())  # noqa: S301  (the user's own function)
    sys.path += [folder for folder in folders if folder not in sys.path]
    function: Function = pickle.loads(data)  # noqa: S301
    return function


def held(number: int) -> Function:
    """A function of this process.

    Parameters
    ----------
    number
        Number that ``given`` gave it.

    Returns
    -------
    Function
        The function.
    """
    return _HELD[number]
