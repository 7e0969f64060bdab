"""Backends, the frameworks' arrays: how each takes an array from NumPy, gives it back, and waits for its device.

Each framework's folder has a module ``arrays`` that is a Backend; it is imported only when one of the
framework's implementations is used.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process.state import Setting

_FOLDERS = {
    Framework.NUMPY: "numpy",
    Framework.TORCH: "torch",
    Framework.JAX: "jax",
    Framework.ONNXRUNTIME: "onnx",
}


class Events(Protocol):
    """Two marks in a device's queue, between which it measures the time by its own clock."""

    def hold(self, seconds: float) -> bool:
        """Queue work that takes this long behind what was submitted so far; False where the framework has none."""

    def late(self, native: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        """Arguments whose arrays hold other numbers, and a function that queues copies of the right ones."""

    def begin(self) -> None:
        """Put the first mark behind what was submitted so far."""

    def begun(self) -> bool:
        """Whether the device is past the first mark already."""

    def end(self) -> None:
        """Put the second mark behind what was submitted so far."""

    def seconds(self) -> float:
        """Wait until the device is past the second mark; returns the time between the two marks."""


class Backend(Protocol):
    """Backend: what the worker needs of a framework."""

    def devices(self) -> tuple[str, ...]:
        """Devices found, "cpu" first; "cuda" when there is one."""

    def put(self, array: np.ndarray, device: str) -> Any:
        """A native array, with the strides of ``array`` where the framework has strides.

        ``array`` was made for this call only, so its memory may be shared; modifying the native array
        must be visible to a later ``get``.
        """

    def get(self, array: Any) -> np.ndarray:
        """The NumPy array of a native one, waiting for it; raises TypeError if it is not a native array."""

    def synchronize(self, device: str) -> None:
        """Wait until everything submitted to the device is done."""

    def wait(self, returned: Any) -> None:
        """Wait until a call's results are computed; must take no longer for other arrays on the device."""

    def matmul(self, a: Any, b: Any) -> Callable[[], Any]:
        """The prepared product of two native matrices, in the precision of their dtype.

        Raises the framework's own exception if it has none; NotImplementedError where another framework has the
        device's best.
        """

    def copy(self, array: Any) -> Callable[[], Any]:
        """The prepared copy of a native array; NotImplementedError where another framework has the device's best."""

    def events(self, device: str) -> Events | None:
        """Marks in the device's queue; None where the framework has none, and for the CPU."""

    def cache_bytes(self, device: str) -> int | None:
        """Bytes of the device's last-level cache; None where the framework does not report them, and for the CPU."""

    def memory(self, device: str) -> tuple[int, int] | None:
        """Bytes held on the device now, and the most so far, by the framework's count; None without one."""

    def release(self) -> None:
        """Release memory that is kept for later calls; prepared functions can still be called."""

    def versions(self) -> dict[str, str]:
        """Versions of the packages that decide what this framework computes."""

    def settings(self) -> tuple[Setting, ...]:
        """Settings that a call may change for every later one in this process."""


def backend(framework: Framework) -> Backend:
    """The module that handles a framework's arrays.

    Parameters
    ----------
    framework
        Framework whose arrays are meant.

    Returns
    -------
    Backend
        The module ``arrays`` of the framework's folder, imported now.
    """
    return importlib.import_module(f"attention_conformance.impls.{_FOLDERS[framework]}.arrays")  # type: ignore[return-value]


def to_numpy(array: Any) -> np.ndarray:
    """The NumPy array of an array of any framework, on any device, detached from gradients.

    Parameters
    ----------
    array
        A NumPy array or scalar, a torch tensor, a JAX array, or anything with ``__array__``,
        ``__array_interface__`` or ``__dlpack__``.
        No framework is imported for it: a torch tensor exists only where torch is imported.

    Returns
    -------
    numpy.ndarray
        bfloat16 as ``ml_dtypes.bfloat16``.  On the CPU it may share the memory of ``array``.

    Raises
    ------
    TypeError
        For anything that is not an array, or an array that cannot be copied to the host.
    """
    for name, kind, framework in (("torch", "Tensor", Framework.TORCH), ("jax", "Array", Framework.JAX)):
        module = sys.modules.get(name)
        if module is not None and isinstance(array, getattr(module, kind)):
            return backend(framework).get(array)
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if not any(hasattr(array, f"__{protocol}__") for protocol in ("array", "array_interface", "dlpack")):
        raise TypeError(f"expected an array, got {type(array).__module__}.{type(array).__qualname__}")
    if hasattr(array, "__dlpack__"):
        options: tuple[dict[str, Any], ...] = ({"device": "cpu", "copy": True}, {})
        for how in options:  # an exporter of an older protocol knows no options
            with contextlib.suppress(Exception):
                return np.from_dlpack(array, **how)
        if not hasattr(array, "__array__") and not hasattr(array, "__array_interface__"):  # bfloat16, or on a device
            name = f"{type(array).__module__}.{type(array).__qualname__}"
            raise TypeError(f"NumPy cannot read {name}, which offers only DLPack")
    return np.asarray(array)
