"""How the call of a target is written: by its room for a built-in implementation, by an import for a plug-in."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.targets import Target
from impls.contract import Call, Framework, Implementation
from impls.foreign import script as foreign
from impls.operators import OPERATORS
from impls.script import Snippet, by_contract, forward
from impls.select import builtin

_ROOMS = {
    Framework.NUMPY: "impls.numpy",
    Framework.TORCH: "impls.torch",
    Framework.JAX: "impls.jax",
    Framework.ONNXRUNTIME: "impls.onnx",
}

#: What a plugged-in function is called in a script, where that is not the name of its operator.
_FUNCTIONS = {"sdpa": "attention"}


def snippet(target: Target, call: Call) -> Snippet:
    """The call of a target.  Raises NotImplementedError for one that the implementation does not express."""
    implementation = target.implementation
    if implementation.source:
        return foreign.called(implementation, call)
    if implementation.function_of:
        return _differentiated(target, call)
    known = builtin().get(implementation.name)
    if known is not None and (known.target, known.prepare) == (implementation.target, implementation.prepare):
        calls = _script(_room(implementation)).CALLS
        if implementation.name not in calls:
            raise NotImplementedError(f"no script of {implementation.name}")
        written: Snippet = calls[implementation.name](call)
        return written
    return _plugged_in(implementation, call)


def _differentiated(target: Target, call: Call) -> Snippet:
    """Gradients of a function: the call of the function, and what its framework makes of it.

    A built-in one has the function of another built-in, which writes the call.
    """
    gradients, room = target.implementation, _script(_ROOMS[target.implementation.framework])
    if not hasattr(room, "differentiated"):
        raise NotImplementedError(f"{gradients.framework.value} differentiates nothing")
    of = forward(call, gradients.function_of)
    writer = getattr(room, "FUNCTIONS", {}).get(gradients.target)
    inner = writer(of) if writer else snippet(replace(target, implementation=_function(gradients)), of)
    written: Snippet = room.differentiated(inner, call)
    return written


def _function(gradients: Implementation) -> Implementation:
    """The implementation whose function the gradients are made of, or the function as a plug-in."""
    wanted = (gradients.function_of, gradients.target, gradients.framework)
    same = (each for each in builtin().values() if (each.operator, each.target, each.framework) == wanted)
    alone = replace(gradients, operator=gradients.function_of, function_of="", prepare=Implementation.prepare)
    return next(same, alone)


def _script(room: str) -> Any:
    return importlib.import_module(f"{room}.script")


def _room(implementation: Implementation) -> str:
    """The folder whose module prepares the call, or, where nothing is prepared, makes it."""
    place = implementation.prepare if implementation.prepare.count(".") > 1 else implementation.target
    return ".".join(place.split(".")[:2])


def _plugged_in(implementation: Implementation, call: Call) -> Snippet:
    """A user's function, imported from where the user has it, and called by keyword as the suite calls it."""
    terms = _script(_ROOMS[implementation.framework]).TERMS
    place, _, name = implementation.target.rpartition(":")
    function = _FUNCTIONS.get(call.operator, call.operator)
    folder = [f"sys.path.insert(0, {_quoted(implementation.folder)})"] if implementation.folder else []
    if place.endswith(".py"):
        stem = _quoted(Path(place).stem)
        lines = [
            *folder,
            f"spec = importlib.util.spec_from_file_location({stem}, {_quoted(place)})",
            "module = importlib.util.module_from_spec(spec)",
            f"sys.modules[{stem}] = module",
            "spec.loader.exec_module(module)",
            f"{function} = module.{name}",
        ]
    else:
        lines = [*folder, f"{function} = importlib.import_module({_quoted(place)}).{name}"]
    imports = ("import importlib.util" if place.endswith(".py") else "import importlib", "import sys")
    names = OPERATORS[call.operator].arguments
    arguments = (*(f"{name}={name}" for name in names), *by_contract(call)[len(names) :])
    return Snippet(function, arguments, terms, imports, "\n".join(lines))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
