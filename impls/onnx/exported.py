"""Models exported from torch functions by ``torch.onnx.export``, run by ONNX Runtime.

An export takes half a second to two seconds, so a model is exported with batch and lengths left open and
serves every call that fits it, and models are kept on disk (impls.onnx.cache).  Plain options, head counts
and widths are constants of the graph; array keywords are its inputs.  An axis of length 0 or 1 is a constant
too, since it may broadcast.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from impls.contract import Call, Function
from impls.onnx import cache
from impls.onnx.sessions import bound, session
from impls.operators import SDPA

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

#: The lengths with which open axes are exported: all different, so that no two are equal by accident.
BATCH, QUERIES, KEYS, PAST = 3, 5, 7, 11

#: The open axes of each array, counted from its end.  An axis is open where it is longer than 1.
_OPEN = {
    "q": {-4: BATCH, -2: QUERIES},
    "k": {-4: BATCH, -2: KEYS},
    "v": {-4: BATCH, -2: KEYS},
    "mask": {-4: BATCH, -2: QUERIES, -1: KEYS},
    "bias": {-4: BATCH, -2: QUERIES, -1: KEYS},
    "kv_lengths": {-1: BATCH},
    "causal_offset": {-1: BATCH},
    "sinks": {},
    "past_key": {-4: BATCH, -2: PAST},
    "past_value": {-4: BATCH, -2: PAST},
}

#: Array keywords that do not have the dtype of q.
_DTYPES = {"mask": torch.bool, "kv_lengths": torch.int64, "causal_offset": torch.int64}

#: What has no translation, by how the sentence starts with which torch says so.
_REFUSALS = {
    "is_causal and attn_mask cannot be set at the same time": "torch.onnx.export takes is_causal or a mask, not both",
    "Creating a new Tensor subclass CausalBias": "torch.export cannot trace causal_lower_right",
}

#: Names of what was exported by this process, in order (what came from disk is not among it).
exports: list[str] = []


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
    """The session of the model with open lengths, or of one for these very lengths if there is none that fits.

    Layers are exported for their very lengths: in self-attention one length stands in three places of a mask.
    """
    if call.operator != SDPA.name:
        return session(_model(function, opset, call.dtype, call.options, call.shapes, False), call.device)
    canonical = tuple((name, _canonical(name, shape)) for name, shape in call.shapes)
    try:
        model = _model(function, opset, call.dtype, call.options, canonical, True)
    except Exception:  # it may be due to the open lengths; if it is not, the given ones raise as well
        model = None
    if model is not None:
        opened = session(model, call.device)
        if fits(opened.get_inputs(), [shape for _, shape in call.shapes]):
            return opened
    return session(_model(function, opset, call.dtype, call.options, call.shapes, False), call.device)


def _canonical(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the lengths that stand for any other at its open axes."""
    lengths = _OPEN[name]
    return tuple(lengths.get(axis - len(shape), n) if n > 1 else n for axis, n in enumerate(shape))


def fits(inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a model's declared inputs take arrays of these shapes.

    A declared axis is a length or a symbol; a symbol stands for one length wherever it appears, and a
    formula of symbols ("s1 + 2") fits nothing here.
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


@functools.cache
def _model(
    function: Function, opset: int, dtype: str, options: tuple[tuple[str, Any], ...], shapes: Shapes, dynamic: bool
) -> bytes:
    """The serialised model, from disk or by an export."""
    name = f"{function.__module__}:{function.__qualname__}"
    key = cache.key(name, opset, dtype, options, shapes, dynamic)
    found = cache.load(key)
    if found is None:
        found = _export(function, opset, dtype, dict(options), shapes, dynamic)
        exports.append(name)
        cache.store(key, found)
    return found


class _Module(torch.nn.Module):
    """A call as torch.export wants it: a module whose inputs are the arrays, in order."""

    def __init__(self, function: Function, names: Sequence[str], options: dict[str, Any]) -> None:
        super().__init__()
        self._function, self._names, self._options = function, names, options

    def forward(self, *arrays: torch.Tensor) -> Any:
        return self._function(**dict(zip(self._names, arrays, strict=True)), **self._options)


def _export(
    function: Function, opset: int, dtype: str, options: dict[str, Any], shapes: Shapes, dynamic: bool
) -> bytes:
    names = [name for name, _ in shapes]
    arrays = tuple(torch.zeros(shape, dtype=_DTYPES.get(name, getattr(torch, dtype))) for name, shape in shapes)
    axes = {"arrays": tuple(_open_axes(name, shape) for name, shape in shapes)} if dynamic else None
    module = _Module(function, names, options).eval()
    with _quiet(), _one_registry(), torch.no_grad():
        try:
            program = torch.export.export(module, arrays, dynamic_shapes=axes)
            exported = torch.onnx.export(program, input_names=names, opset_version=opset, verbose=False)
        except Exception as error:
            reason = _refusal(error)
            if reason is None:
                raise
            raise NotImplementedError(reason) from error
    assert exported is not None  # it is None only if it was told to write a file
    return exported.model_proto.SerializeToString()


def _open_axes(name: str, shape: tuple[int, ...]) -> dict[int, Any]:
    """torch.export's word for each open axis: AUTO leaves it open if the function allows it."""
    auto: Any = torch.export.Dim.AUTO
    return {axis: auto for axis, n in enumerate(shape) if axis - len(shape) in _OPEN[name] and n > 1}


def _refusal(error: BaseException | None) -> str | None:
    """Why a combination has no translation, if that is what the exception or one of its causes says."""
    while error is not None:
        for start, reason in _REFUSALS.items():
            if str(error).startswith(start):
                return reason
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _one_registry() -> Iterator[None]:
    """Let the exporter make its table of translations once per opset instead of once per export.

    Making it takes 0.2 s, more than half of a small export.  Where torch has no such method, exports are slower.
    """
    registry = _registry()
    if registry is None:
        yield
        return
    owner, original, cached = registry
    owner.from_torchlib = staticmethod(cached)
    try:
        yield
    finally:
        owner.from_torchlib = original


@functools.cache
def _registry() -> tuple[Any, Any, Any] | None:
    """The class that makes the table, the method as the class holds it, and the same with a memory."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        return ONNXRegistry, ONNXRegistry.__dict__["from_torchlib"], functools.cache(ONNXRegistry.from_torchlib)
    except (ImportError, AttributeError, KeyError):
        return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks: logged, warned or printed.  What matters is raised as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
