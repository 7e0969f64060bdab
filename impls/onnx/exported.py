"""Models exported from torch functions by ``torch.onnx.export``, kept on disk, and run by ONNX Runtime.

A second run of the suite neither exports them again nor retries failed exports.  A model depends on the packages that
made it and on the code that it was made from; both are part of its key, so a stale one is never found.
The folder is ``attention-conformance/onnx`` under the user's cache directory; the environment variable
ATTENTION_CONFORMANCE_CACHE names another place, and "" turns it off.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.impls import cache
from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.onnx.sessions import bound, session
from attention_conformance.impls.operators import SDPA

#: Packages whose versions decide what an export contains.
_PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir")

#: The sources that decide it, under impls/: what is exported, and how.
_SOURCES = (
    "validate.py",
    "torch/eager.py",
    "torch/layer.py",
    "torch/modules.py",
    "torch/sdpa.py",
    "onnx/exported.py",
    "onnx/exporting.py",
)

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

#: The lengths with which open axes are exported: all different, so that no two are equal by accident.
LENGTHS = {"batch": 3, "queries": 5, "keys": 7}

#: The open axes of each array, counted from its end, and the name of each one's length.
OPEN = {
    "q": {-4: "batch", -2: "queries"},
    "k": {-4: "batch", -2: "keys"},
    "v": {-4: "batch", -2: "keys"},
    "mask": {-4: "batch", -2: "queries", -1: "keys"},
}

#: Keywords of calls that are exported with open lengths, and the widths of their heads: many calls share these.
#: Such an export takes five times as long as one for fixed lengths, so other calls have exports of their own.
SHARED_KEYWORDS, SHARED_WIDTHS = {"is_causal", "mask"}, (8, 16)

#: Errors that are due to the machine and not to the model, by class and by text; the next run tries again.
PASSING, PASSING_TEXT = (MemoryError, OSError), "can't allocate memory"


@dataclass(frozen=True)
class NotExported:
    """An export that raised: type and text of the exception, and whether it says that the call is unsupported."""

    type: str
    text: str
    unsupported: bool

    @classmethod
    def of(cls, error: Exception) -> NotExported:
        """Record of an exception."""
        return cls(type(error).__name__, str(error), isinstance(error, NotImplementedError))

    def error(self) -> Exception:
        """An exception with this type and text."""
        error: Exception = type(self.type, (NotImplementedError if self.unsupported else Exception,), {})(self.text)
        error.add_note("Raised by the export; its type and text are kept with the exported models.")
        return error


def cache_key(*parts: object) -> str:
    """The name of a model made from these parts, each of which must have a faithful ``repr``."""
    return hashlib.sha256(repr((_surroundings(), parts)).encode()).hexdigest()[:32]


def cached(name: str) -> bytes | NotExported | None:
    """The model of this name, what its export raised, or None."""
    place = cache.folder("onnx")
    if place is None:
        return None
    with contextlib.suppress(OSError):
        return (place / f"{name}.onnx").read_bytes()
    with contextlib.suppress(OSError, ValueError, TypeError):
        return NotExported(**json.loads((place / f"{name}.json").read_text(encoding="utf-8")))
    return None


def keep(name: str, found: bytes | NotExported) -> None:
    """Keep a model or a failure, in one step so that no reader sees half of it.

    A folder that cannot be written is not an error.
    """
    place = cache.folder("onnx")
    if place is None:
        return
    ending, content = ("onnx", found) if isinstance(found, bytes) else ("json", json.dumps(vars(found)).encode())
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=place)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(path, place / f"{name}.{ending}")


@functools.cache
def _surroundings() -> str:
    """Digest of the packages' versions and of the code."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{package}={importlib.metadata.version(package)};".encode())
    here = Path(__file__).resolve().parent.parent
    for name in _SOURCES:
        digest.update(code((here / name).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


def code(source: str) -> str:
    """Syntax tree of a source as text, without comments, docstrings and line numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def prepare18(function: Function, call: Call) -> Function:
    """Export at opset 18, which has no Attention operator.  Raises what the function or the exporter raises."""
    return _prepare(function, call, 18)


def prepare23(function: Function, call: Call) -> Function:
    """Export at opset 23, which has an Attention operator.  Raises what the function or the exporter raises."""
    return _prepare(function, call, 23)


def _prepare(function: Function, call: Call, opset: int) -> Function:
    opened = _open(function, call, opset)
    return bound(opened, [each.name for each in opened.get_outputs()], call.device)


def _open(function: Function, call: Call, opset: int) -> Any:
    """The session of the model with open lengths, or of a model for exactly these lengths if that one does not fit."""
    shapes = [shape for _, shape in call.shapes]
    canonical = open_shapes(call)
    if canonical is not None:
        try:
            model = _model(function, opset, call.dtype, call.options, canonical, True)
        except Exception:  # it may be due to the open lengths; if it is not, the given ones raise as well
            model = None
        if model is not None:
            opened = session(model, call.device)
            if fits(opened.get_inputs(), shapes):
                return opened
    return session(_model(function, opset, call.dtype, call.options, call.shapes, False), call.device)


def open_shapes(call: Call) -> Shapes | None:
    """The shapes for the export of the model that a call shares with others; None if the call has its own model.

    Calls of sdpa with few keywords and common widths share batch and lengths, if each axis has its full length: an axis
    that repeats is not open, and neither is a length of 0.
    """
    keywords = {name for name, _ in call.options} | set(call.arrays)
    if call.operator != SDPA.name or not keywords <= SHARED_KEYWORDS:
        return None
    given = dict(call.shapes)
    if any(len(shape) != 4 for shape in given.values()):
        return None
    (batch, _, queries, width), keys = given["q"], given["k"][2]
    lengths = {"batch": batch, "queries": queries, "keys": keys}
    if width not in SHARED_WIDTHS or 0 in lengths.values():
        return None
    if any(given[name][axis] != lengths[length] for name in given for axis, length in OPEN[name].items()):
        return None
    canonical = {name: list(shape) for name, shape in call.shapes}
    for name, shape in canonical.items():
        for axis, length in OPEN[name].items():
            shape[axis] = LENGTHS[length]
    return tuple((name, tuple(shape)) for name, shape in canonical.items())


def fits(inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a model's declared inputs take arrays of these shapes.

    A declared axis is a length or a symbol; a symbol is one length wherever it appears, and a formula of symbols
    ("s1 + 2") fits nothing here.
    """
    lengths: dict[str, int] = {}
    if len(inputs) != len(shapes):
        return False
    for each, shape in zip(inputs, shapes, strict=True):
        if len(each.shape) != len(shape):
            return False
        for declared, length in zip(each.shape, shape, strict=True):
            if isinstance(declared, str):
                if not declared.isidentifier():
                    return False
                declared = lengths.setdefault(declared, length)
            if declared != length:
                return False
    return True


def _model(
    function: Function, opset: int, dtype: str, options: tuple[tuple[str, Any], ...], shapes: Shapes, dynamic: bool
) -> bytes:
    """The serialised model.  Raises what its export raised."""
    found = _exported(function, opset, dtype, options, shapes, dynamic)
    if isinstance(found, NotExported):
        raise found.error()
    return found


@functools.cache
def _exported(
    function: Function, opset: int, dtype: str, options: tuple[tuple[str, Any], ...], shapes: Shapes, dynamic: bool
) -> bytes | NotExported:
    """The serialised model, or what its export raised: from disk, or exported now.

    Raises MemoryError and OSError, which say nothing about the model.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    key = cache_key(name, opset, dtype, options, shapes, dynamic)
    found = cached(key)
    if found is not None:
        return found
    from attention_conformance.impls.onnx.exporting import export

    axes = {array: OPEN[array] for array, _ in shapes} if dynamic else None
    try:
        found = export(function, opset, dtype, dict(options), shapes, axes)
    except PASSING:
        raise
    except Exception as error:
        if PASSING_TEXT in str(error):
            raise
        found = NotExported.of(error)
    keep(key, found)
    return found
