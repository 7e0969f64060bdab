"""ONNX Runtime's arrays: an OrtValue shares a NumPy array's memory on the CPU, and is a copy of it on a GPU.

NumPy has no bfloat16 of its own, so those elements cross as the 16-bit integers with the same bits.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime

from attention_conformance.impls.process.state import Setting

#: TensorProto.BFLOAT16; the number is part of the ONNX file format.
BFLOAT16 = 16

#: The opset in which MatMul got its present form, and an IR version that every supported ONNX Runtime reads.
MATMUL_OPSET, MATMUL_IR = 13, 8

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def devices() -> tuple[str, ...]:
    """The CPU, and the first GPU if this build of ONNX Runtime has the CUDA provider and finds one."""
    found = "CUDAExecutionProvider" in onnxruntime.get_available_providers() and _has_gpu()
    return ("cpu", "cuda") if found else ("cpu",)


def put(array: np.ndarray, device: str) -> Any:
    """An OrtValue; ONNX tensors have no strides, so an array that is not contiguous is copied once, here."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # the first makes rank 0 into rank 1
    if array.dtype != _BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, device)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BFLOAT16)
    if device == "cpu":
        return value
    target = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, BFLOAT16, device)
    target.update_inplace(value)
    return target


def get(array: Any) -> np.ndarray:
    """A NumPy copy of an OrtValue.  Raises TypeError for anything else."""
    if not isinstance(array, onnxruntime.OrtValue):
        raise TypeError(f"expected an OrtValue, got {type(array).__module__}.{type(array).__qualname__}")
    if array.element_type() == BFLOAT16:
        return _get_bfloat16(array)
    return np.array(array.numpy())


def synchronize(device: str) -> None:
    """A run waits for its outputs itself (see impls.onnx.sessions), so nothing is left to wait for."""


def wait(returned: Any) -> None:
    """A run waits for its outputs itself."""


def matmul(a: Any, b: Any) -> Callable[[], Any]:
    """A model of one MatMul, on the CPU; a GPU's products are cuBLAS's, which other frameworks measure."""
    if a.device_name() != "cpu":
        raise NotImplementedError
    from onnx import helper

    from attention_conformance.impls.onnx.sessions import bound, session

    ranked = [helper.make_tensor_value_info(name, a.element_type(), [None, None]) for name in "abc"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", ranked[:2], ranked[2:])
    opsets = [helper.make_opsetid("", MATMUL_OPSET)]
    product = helper.make_model(graph, opset_imports=opsets, ir_version=MATMUL_IR)
    return functools.partial(bound(session(product.SerializeToString(), "cpu"), ["c"], "cpu"), a, b)


def copy(array: Any) -> Callable[[], Any]:
    """Left to other frameworks: ONNX Runtime's own copy is NumPy's."""
    raise NotImplementedError


def events(device: str) -> None:
    """ONNX Runtime has none: a run waits for its outputs."""


def cache_bytes(device: str) -> None:
    """ONNX Runtime does not report it."""


def memory(device: str) -> None:
    """ONNX Runtime's arenas do not report what they hold."""


def release() -> None:
    """Close the sessions that wait for their next call: each keeps an arena."""
    from attention_conformance.impls.onnx.sessions import session

    session.cache_clear()


def versions() -> dict[str, str]:
    """Versions of ONNX Runtime, and of the packages whose models it runs here, if they are installed."""
    import importlib.metadata

    found = {"onnxruntime": onnxruntime.__version__}
    for name in ("onnx", "onnxscript", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def settings() -> tuple[Setting, ...]:
    """None: ONNX Runtime's settings belong to a session."""
    return ()


def _has_gpu() -> bool:
    """Whether an allocation succeeds: the provider is built in even where there is no GPU."""
    try:
        onnxruntime.OrtValue.ortvalue_from_shape_and_type((1,), np.float32, "cuda")
    except Exception:  # ONNX Runtime has no narrower class for it
        return False
    return True


def _get_bfloat16(value: Any) -> np.ndarray:
    """Read the memory directly: ``OrtValue.numpy`` refuses bfloat16."""
    if value.device_name() != "cpu":
        target = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape(), BFLOAT16)
        target.update_inplace(value)
        value = target
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, np.uint16).reshape(value.shape()).view(_BFLOAT16).copy()
