"""Pallas kernels on a machine without their device: every ``pallas_call`` is interpreted.

A call with parameters or memory of a TPU runs in JAX's TPU interpreter, in which uninitialised memory is NaN and a read
outside a buffer raises; every other call runs in the generic interpreter.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
from jax.experimental import pallas

from attention_conformance.impls.interpreters import Entered


def enter() -> Entered:
    """Interpret Pallas' kernels in this process, where JAX has no device but the CPU."""
    if jax.default_backend() != "cpu":
        return Entered((jax.default_backend() if jax.default_backend() != "gpu" else "cuda",))
    called = pallas.pallas_call

    @functools.wraps(called)
    def interpreted(*arguments: Any, **keywords: Any) -> Any:
        if not keywords.get("interpret"):
            keywords["interpret"] = _how(keywords)
        return called(*arguments, **keywords)

    interpreted.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    pallas.pallas_call = interpreted
    return Entered(("cpu",))


def _how(keywords: dict[str, Any]) -> Any:
    """The generic interpreter, or the one for TPUs where the call is for a TPU."""
    if not _of_tpu(keywords):
        return True
    from jax.experimental.pallas import tpu

    return tpu.InterpretParams(uninitialized_memory="nan", out_of_bounds_reads="raise")


def _of_tpu(value: Any) -> bool:
    """Whether any part of a call comes from the package for TPUs: parameters, scratch memory, a grid."""
    if isinstance(value, dict):
        return any(map(_of_tpu, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_of_tpu, value))
    if ".mosaic." in f"{type(value).__module__}.":  # the package for GPUs is mosaic_gpu
        return True
    parts = [getattr(value, name, None) for name in ("memory_space", "scratch_shapes", "in_specs", "out_specs")]
    return any(_of_tpu(part) for part in parts if part is not None)
