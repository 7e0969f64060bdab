"""JAX arrays: put on a device, waited for, returned; 64-bit dtypes kept without changing the process.

JAX computes in 32 bits by default.  ``wide_types`` is the context in which float64 and int64 exist; an
array made in it keeps its dtype outside, where JAX truncates the *results* of operations on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import jax
import numpy as np

from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.process.state import Setting

#: Dtypes that JAX truncates unless 64-bit types are enabled.
WIDE = ("float64", "int64")


def wide_types(enabled: bool = True) -> AbstractContextManager[Any]:
    """The context in which 64-bit dtypes are kept (``enabled``) or truncated, for this thread.

    Source: https://docs.jax.dev/en/latest/default_dtypes.html; older versions have it in ``jax.experimental``.
    """
    module: Any = jax
    if not hasattr(module, "enable_x64"):
        from jax import experimental as module
    return module.enable_x64(enabled)


def device_of(name: str) -> Any:
    """The first JAX device of a platform, "cpu" or "cuda".  Raises RuntimeError if there is none."""
    return jax.devices(name)[0]


def devices() -> tuple[str, ...]:
    """The CPU, and "cuda" if this jaxlib finds one; without the one that JAX_PLATFORMS leaves out.

    Raises ImplementationError where neither is left.
    """
    found = tuple(name for name in ("cpu", "cuda") if _has(name))
    if not found:
        platforms = getattr(jax.config, "jax_platforms", None)
        raise ImplementationError(f"JAX finds neither a CPU nor a GPU; its platforms are {platforms!r}")
    return found


def _has(name: str) -> bool:
    try:
        return bool(jax.devices(name))
    except (RuntimeError, AssertionError):  # the latter where JAX can have none of its platforms
        return False


def put(array: np.ndarray, device: str) -> jax.Array:
    """The array on the device, in its own dtype; JAX arrays have no strides, so it becomes contiguous."""
    with wide_types(str(array.dtype) in WIDE):
        return jax.device_put(np.ascontiguousarray(array), device_of(device))


def get(array: Any) -> np.ndarray:
    """The NumPy array of a JAX array, once it is computed.

    Raises TypeError for anything else, NumPy arrays included.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"expected a JAX array, got {type(array).__module__}.{type(array).__qualname__}")
    return np.asarray(array)


def synchronize(device: str) -> None:
    """Wait for every live array on the device: JAX returns before it has computed."""
    jax.block_until_ready([a for a in jax.live_arrays(device) if not a.is_deleted()])


def wait(returned: Any) -> None:
    """Wait for the returned arrays.  ``synchronize`` looks at every live array, which takes time for each."""
    jax.block_until_ready(returned)


def matmul(a: jax.Array, b: jax.Array) -> Callable[[], jax.Array]:
    """A compiled product, in the precision of the dtype; XLA's own choice on a GPU would be TF32."""
    program = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision="highest"))

    def multiply() -> jax.Array:
        with wide_types(str(a.dtype) in WIDE):
            return program(a, b)

    return multiply


def copy(array: jax.Array) -> Callable[[], jax.Array]:
    """A compiled sum with 1, which reads and writes as much; its result is new, as JAX's arrays cannot be written."""
    program = jax.jit(lambda a: a + 1)
    return lambda: program(array)


def events(device: str) -> None:
    """JAX has none: the host waits for the work that it submits."""


def cache_bytes(device: str) -> None:
    """JAX does not report it."""


def memory(device: str) -> tuple[int, int] | None:
    """Bytes by XLA's allocator on a GPU, which counts what arrays and programs hold, not what it keeps; None on CPU."""
    statistics = device_of(device).memory_stats()
    return None if statistics is None else (statistics["bytes_in_use"], statistics["peak_bytes_in_use"])


def release() -> None:
    """Nothing: XLA keeps compiled programs, which are small, and on a GPU its pool, whose used part is counted."""


def versions() -> dict[str, str]:
    """Versions of jax, of jaxlib, which holds the compiler, and of the package that holds bfloat16."""
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "ml_dtypes")}


def settings() -> tuple[Setting, ...]:
    """JAX's configuration, whose ``jax_enable_x64`` decides the dtype of results."""
    return (Setting("configuration of jax", _configuration, _configure, _differences),)


def _configuration() -> dict[str, Any]:
    return dict(jax.config.values)


def _configure(values: dict[str, Any]) -> None:
    for name, value in _configuration().items():
        if value != values[name]:
            jax.config.update(name, values[name])


def _differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value} → {after[name]}" for name, value in before.items() if after[name] != value)
