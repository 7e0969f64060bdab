"""Export of a torch function by ``torch.onnx.export``: the only ONNX implementation file that needs torch."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch

from attention_conformance.impls.contract import Function

#: Array keywords that do not have the dtype of q.
_DTYPES = {"mask": torch.bool, "kv_lengths": torch.int64, "causal_offset": torch.int64}

#: Reasons of calls that torch's own function refuses too, by the start of the exporter's message.  Any other error of
#: the exporter is a failure of the call.
_REFUSALS = {
    "is_causal and attn_mask cannot be set at the same time": "torch.onnx.export takes is_causal or a mask, not both",
}


class _Module(torch.nn.Module):
    """A call as torch.export takes it: a module whose inputs are the arrays, in order."""

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
    open_axes: Mapping[str, Mapping[int, str]] | None,
) -> bytes:
    """The serialised model of a torch function for arrays of these shapes, by name.

    ``open_axes`` names the length of each axis, counted from the array's end, that must fit any; None for none.
    Raises NotImplementedError for a call without a translation, and what the function or the exporter raises, such
    as for a function that does not take any length.
    """
    names = [name for name, _ in shapes]
    arrays = tuple(torch.zeros(shape, dtype=_DTYPES.get(name, getattr(torch, dtype))) for name, shape in shapes)
    opened = None if open_axes is None else {"arrays": tuple(_dims(shape, open_axes[name]) for name, shape in shapes)}
    module = _Module(function, names, options).eval()
    with _quiet(), _tables_once(), torch.no_grad():
        try:
            program = torch.export.export(module, arrays, dynamic_shapes=opened)
            exported = torch.onnx.export(program, input_names=names, opset_version=opset, verbose=False)
        except Exception as error:
            reason = _refusal(error)
            if reason is None:
                raise
            # "An error is thrown if both attn_mask and is_causal are set."
            raise NotImplementedError(reason) from error
    assert exported is not None  # it is None only if it wrote a file
    return exported.model_proto.SerializeToString()


def _dims(shape: tuple[int, ...], names: Mapping[int, str]) -> dict[int, Any]:
    """torch.export's name for each open axis; a name is one length wherever it appears."""
    return {len(shape) + axis: torch.export.Dim(name) for axis, name in names.items()}


def _refusal(error: BaseException | None) -> str | None:
    """Reason why a combination has no translation, if that is what the exception or one of its causes says."""
    while error is not None:
        for start, reason in _REFUSALS.items():
            if str(error).startswith(start):
                return reason
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _tables_once() -> Iterator[None]:
    """Let torch make its tables once instead of once per export: they take most of the time of a small export."""
    with contextlib.ExitStack() as stack:
        for owner, name, remembering in _tables():
            stack.enter_context(patch.object(owner, name, remembering))
        yield


@functools.cache
def _tables() -> tuple[tuple[Any, str, Any], ...]:
    """The functions by which torch makes its tables: owner, name, and the same function with a cache.

    The translations by opset; the names of all composite operators, to which only a new custom operator could add; the
    decompositions of operators without a translation, and which of them are of composite operators; and the kernels
    that replace those operators' own while a graph is decomposed.  Exports are slower where torch has no such function.
    """
    found: list[tuple[Any, str, Any]] = []
    with contextlib.suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        found.append((ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib))))
    with contextlib.suppress(ImportError, AttributeError):
        from torch._export import utils

        found.append((utils, "_materialize_cpp_cia_ops", functools.cache(utils._materialize_cpp_cia_ops)))
    with contextlib.suppress(ImportError, AttributeError):
        from torch.onnx._internal.exporter import _decomp

        name = "create_onnx_friendly_decomposition_table"
        found.append((_decomp, name, _remembering(getattr(_decomp, name), frozenset, dict)))
    with contextlib.suppress(ImportError, AttributeError):
        from torch.export import exported_program

        name = "_split_decomp_table_to_cia_and_python_decomp"
        found.append((exported_program, name, _remembering(getattr(exported_program, name), _entries, _two_tables)))
    with contextlib.suppress(ImportError, AttributeError):
        from torch._subclasses.fake_impls import op_implementations_dict
        from torch.export import exported_program

        name = "_override_composite_implicit_decomp"
        found.append((exported_program, name, _installed(getattr(exported_program, name), op_implementations_dict)))
    return tuple(found)


def _remembering(make: Function, key: Callable[[Any], Hashable], copy: Callable[[Any], Any]) -> Function:
    """A function of one table with a cache; every caller gets a copy, which it may change."""
    made: dict[Hashable, Any] = {}

    def remembering(table: Any) -> Any:
        name = key(table)
        if name not in made:
            made[name] = make(table)
        return copy(made[name])

    return remembering


def _entries(table: Mapping[Any, Any]) -> Hashable:
    return tuple(table.items())


def _two_tables(tables: tuple[Mapping[Any, Any], Mapping[Any, Any]]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    first, second = tables
    return dict(first), dict(second)


def _installed(override: Function, fake: dict[Any, Any]) -> Function:
    """The context manager by which torch gives operators other kernels, with a cache of those kernels.

    ``fake`` has the rules for tensors without values; torch adds some.  When the context is left, operators have
    the kernels that they had before, and the rules that were added are gone.
    """
    made: dict[Hashable, list[tuple[Any, dict[Any, Any], Any]]] = {}

    @contextlib.contextmanager
    def remembering(table: Mapping[Any, Any]) -> Iterator[None]:
        key = (_entries(table), frozenset(operator for operator in table if operator in fake))
        if key not in made:
            with override(table):
                made[key] = [(operator, dict(operator.py_kernels), fake.get(operator)) for operator in table]
                yield
            return
        before = [(operator, dict(operator.py_kernels), fake.get(operator)) for operator in table]
        try:
            _install(made[key], fake)
            yield
        finally:
            _install(before, fake)

    return remembering


def _install(kernels: Sequence[tuple[Any, dict[Any, Any], Any]], fake: dict[Any, Any]) -> None:
    """Give operators these kernels, and these rules for tensors without values, None for none."""
    for operator, found, rule in kernels:
        operator.py_kernels.clear()
        operator.py_kernels.update(found)
        operator._dispatch_cache.clear()
        if rule is None:
            fake.pop(operator, None)
        else:
            fake[operator] = rule


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's messages, logged, warned or printed; anything that matters is raised as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
