"""Triton kernels on a machine without a GPU: interpreted by Triton's own interpreter, with CPU tensors.

In addition to the interpreter:

- A load or store outside every array that the kernel was given raises, with the distance; on a GPU it would read what
  lies there, or change it.  Once a kernel makes an address from a number, its addresses are no longer checked.
- ``@autotune`` takes its first configuration, as there is nothing to time.
- Code that asks for the active device gets one (a stand-in with a CPU tensor's device).
- The dtypes that the interpreter multiplies wrongly are found by trials, not assumed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.interpreters import Entered

VARIABLE = "TRITON_INTERPRET"

#: Reason for a dtype whose bit patterns the interpreter multiplies.
BIT_PATTERNS = "Triton's interpreter computes with the bit patterns of {} (triton#11584)"

#: Properties of the stand-in for the device: the limits of an A100, and one multiprocessor.
PROPERTIES = {"multiprocessor_count": 1, "max_shared_mem": 166912, "warpSize": 32, "max_num_regs": 65536}


class OutOfRange(IndexError):
    """A load or store outside every array that the kernel was given."""


def enter() -> Entered:
    """Interpret Triton's kernels in this process, where there is no GPU or TRITON_INTERPRET=1 asks for it."""
    if torch.cuda.is_available() and os.environ.get(VARIABLE) != "1":
        return Entered(("cuda",))
    if "triton" in sys.modules:
        raise ImplementationError("Triton was imported before its interpreter was set up")
    os.environ[VARIABLE] = "1"
    from triton.runtime import autotuner, driver, interpreter

    driver.set_active(_Device())
    _first_configuration(autotuner.Autotuner)
    _watch(interpreter)
    return Entered(("cpu",), {name: BIT_PATTERNS.format(name) for name in _unfaithful()})


class _Utilities:
    def get_device_properties(self, device: int) -> dict[str, int]:
        return PROPERTIES


class _Device:
    """A stand-in for the active driver, for code that asks it for its target, its device or its properties."""

    def __init__(self) -> None:
        self.utils = _Utilities()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)


def _first_configuration(autotuner: Any) -> None:
    pruned = autotuner.prune_configs
    autotuner.prune_configs = lambda self, keywords: pruned(self, keywords)[:1]


def _watch(interpreter: Any) -> None:
    """Check the addresses of every load and store while a kernel runs."""
    executor, builder, given = interpreter.GridExecutor, interpreter.InterpreterBuilder, _Given()
    launch = executor.__call__

    def watched(self: Any, *arguments: Any, **keywords: Any) -> Any:
        given.take((*arguments, *keywords.values()), [*self.arg_names[: len(arguments)], *keywords])
        try:
            return launch(self, *arguments, **keywords)
        finally:
            given.forget()

    executor.__call__ = watched

    def looked_at(name: str, what: str, mask: int | None) -> None:
        """Replace a method of the builder, whose first argument has the addresses."""
        call = getattr(builder, name)

        def method(self: Any, pointers: Any, *rest: Any) -> Any:
            of = rest[mask] if mask is not None else None
            given.check(what, pointers, None if of is None else of.data)
            return call(self, pointers, *rest)

        setattr(builder, name, method)

    looked_at("create_masked_load", "load", 0)
    looked_at("create_masked_store", "store", 1)
    looked_at("create_atomic_cas", "atomic operation", None)
    atomic = builder.create_atomic_rmw

    def atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        given.check("atomic operation", pointers, mask.data)
        return atomic(self, operation, pointers, value, mask, *rest)

    builder.create_atomic_rmw = atomic_rmw
    made = builder.create_int_to_ptr

    def int_to_ptr(self: Any, *arguments: Any) -> Any:
        given.forget()  # an address that was passed as a number may be of anything
        return made(self, *arguments)

    builder.create_int_to_ptr = int_to_ptr


class _Given:
    """The memory of a kernel's arrays while it runs: (first byte, byte behind the last, name) of each storage."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, str]] = []

    def take(self, arguments: tuple[Any, ...], names: list[str]) -> None:
        found = {}
        for argument, name in zip(arguments, names, strict=False):
            for tensor in _tensors(argument):
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = (storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)
        self._ranges = list(found.values())

    def forget(self) -> None:
        self._ranges = []

    def check(self, what: str, pointers: Any, mask: np.ndarray | None) -> None:
        """Raise OutOfRange where an address that is not masked is outside."""
        if not self._ranges:
            return
        at = np.asarray(pointers.data)
        if mask is not None:
            at = at[np.broadcast_to(mask, at.shape)]
        if not at.size:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = int(at.min()), int(at.max()) + size
        if any(first <= low and high <= end for first, end, _ in self._ranges):
            return
        at = at.astype(np.int64).ravel()
        outside = np.full(at.shape, True)
        for first, end, _ in self._ranges:
            outside &= (at < first) | (at + size > end)
        if outside.any():
            raise OutOfRange(self._text(what, at[outside], size))

    def _text(self, what: str, at: np.ndarray, size: int) -> str:
        one = int(at[0])
        distance, where, name = min(
            (one + size - end, "behind the end", name) if one >= first else (first - one, "before the beginning", name)
            for first, end, name in self._ranges
        )
        more = f", and {at.size - 1} more" if at.size > 1 else ""
        return f"{what} outside every array of the kernel: {distance} bytes {where} of {name}{more}"


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, tuple):
        for each in argument:
            yield from _tensors(each)
    elif isinstance(argument, torch.Tensor):
        yield argument
    else:
        base = getattr(argument, "base", None)  # of a tensor descriptor, or of a reinterpreted tensor
        if base is not None:
            yield from _tensors(base)


def _unfaithful() -> list[str]:
    """The dtypes in which the interpreter's product, by tl.dot or element by element, is not that of the numbers."""
    from attention_conformance.impls.torch import triton_trials

    numbers = torch.arange(256, dtype=torch.float32).reshape(16, 16) % 7 - 3
    wanted = {triton_trials.dot: numbers @ numbers, triton_trials.multiply: numbers * numbers}
    found = []
    for name in ("float16", "bfloat16"):
        given = numbers.to(getattr(torch, name))
        out = torch.empty(16, 16)
        for kernel, right in wanted.items():
            if not _agrees(kernel, given, out, right):
                found.append(name)
                break
    return found


def _agrees(kernel: Callable[..., Any], given: torch.Tensor, out: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        kernel[(1,)](given, out)  # type: ignore[index]
    except Exception:  # a dtype that it refuses is not computed wrongly: the plug-in's own call will show it
        return True
    return torch.equal(out, right)
