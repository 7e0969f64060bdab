"""Export of a torch function by ``torch.onnx.export``: the only ONNX implementation file that needs torch."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from attention_conformance.impls.contract import Function

#: Array keywords that do not have the dtype of q.
_DTYPES = {"mask": torch.bool, "kv_lengths": torch.int64, "causal_offset": torch.int64}

#: What has no translation, by how the sentence starts with which torch says so.
_REFUSALS = {
    "is_causal and attn_mask cannot be set at the same time": "torch.onnx.export takes is_causal or a mask, not both",
    "Creating a new Tensor subclass CausalBias": "torch.export cannot trace causal_lower_right",
}


class _Module(torch.nn.Module):
    """A call as torch.export wants it: a module whose inputs are the arrays, in order."""

    def __init__(self, function: Function, names: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._function, self._names, self._options = function, names, options

    def forward(self, *arrays: torch.Tensor) -> Any:
        return self._function(**dict(zip(self._names, arrays, strict=True)), **self._options)


def export(
    function: Function,
    opset: int,
    dtype: str,
    options: Mapping[str, Any],
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    open_axes: Mapping[str, Collection[int]] | None,
) -> bytes:
    """The serialised model of a torch function for arrays of these shapes, by name.

    ``open_axes`` are those of each array, counted from its end, that shall fit any length above 1; None for none.
    Raises NotImplementedError for what has no translation, and what the function or the exporter raises.
    """
    names = [name for name, _ in shapes]
    arrays = tuple(torch.zeros(shape, dtype=_DTYPES.get(name, getattr(torch, dtype))) for name, shape in shapes)
    opened = None if open_axes is None else {"arrays": tuple(_auto(shape, open_axes[name]) for name, shape in shapes)}
    module = _Module(function, names, options).eval()
    with _quiet(), _one_registry(), torch.no_grad():
        try:
            program = torch.export.export(module, arrays, dynamic_shapes=opened)
            exported = torch.onnx.export(program, input_names=names, opset_version=opset, verbose=False)
        except Exception as error:
            reason = _refusal(error)
            if reason is None:
                raise
            raise NotImplementedError(reason) from error
    assert exported is not None  # it is None only if it was told to write a file
    return exported.model_proto.SerializeToString()


def _auto(shape: tuple[int, ...], axes: Collection[int]) -> dict[int, Any]:
    """torch.export's word for each open axis: AUTO leaves it open if the function allows it."""
    auto: Any = torch.export.Dim.AUTO
    return {axis: auto for axis, n in enumerate(shape) if axis - len(shape) in axes and n > 1}


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
    """Without the exporter's messages: logged, warned or printed.  What matters is raised as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
