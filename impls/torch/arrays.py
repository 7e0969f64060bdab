"""Torch tensors: taken from NumPy with their strides, bfloat16 and 8-bit numbers through their bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from attention_conformance.impls.process import threads
from attention_conformance.impls.process.state import Setting, random_state_change

#: Dtypes that torch does not take from NumPy nor gives to it, by the names that both have, and an integer as wide.
_BY_BITS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}

if threads.wanted():
    torch.set_num_threads(threads.wanted())


def devices() -> tuple[str, ...]:
    """The CPU, and the current CUDA device where there is one."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def put(array: np.ndarray, device: str) -> torch.Tensor:
    """The tensor with the array's elements and strides; on the CPU it shares the array's memory.

    On another device the stretch of memory that the strides span is copied unchanged, including the memory between the
    elements, but not the memory before and behind them.
    """
    repeated = tuple(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
    # With the Ellipsis an array of rank 0 stays an array.
    once = array[(..., *(slice(0, 1) if again else slice(None) for again in repeated))]
    if not once.flags.writeable:  # torch has no read-only tensors, and a broadcast array is read-only
        once = once.copy(order="K")
    name = str(array.dtype)
    if name in _BY_BITS:
        tensor = torch.from_numpy(once.view(_BY_BITS[name])).view(getattr(torch, name))
    else:
        tensor = torch.from_numpy(once)
    if device != "cpu":
        tensor = _copy_to_device(tensor, device)
    return tensor.expand(array.shape)


def _copy_to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on a device with the same strides, which ``Tensor.to`` keeps only where no element is left out."""
    if tensor.numel() == 0:
        return tensor.to(device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).to(device).as_strided(tensor.shape, tensor.stride())


def get(array: Any) -> np.ndarray:
    """The NumPy array of a tensor, waiting for its device.

    Raises TypeError for anything that is not a tensor.
    """
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"expected a torch tensor, got {type(array).__module__}.{type(array).__qualname__}")
    host = array.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    if name in _BY_BITS:
        return host.view(getattr(torch, _BY_BITS[name])).numpy().view(getattr(ml_dtypes, name))
    return host.numpy()


def synchronize(device: str) -> None:
    """Wait for the device's kernels; the CPU's are done when a call returns."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def wait(returned: Any) -> None:
    """Wait for the device that the first tensor of what was returned is on."""
    first = returned[0] if isinstance(returned, (tuple, list)) and returned else returned
    if isinstance(first, torch.Tensor) and first.is_cuda:
        torch.cuda.synchronize(first.device)


def matmul(a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A product into one tensor; float32 on CUDA in float32, unless torch is set to use TF32."""
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def copy(array: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A copy into one tensor."""
    out = torch.zeros_like(array)
    return lambda: out.copy_(array)


#: Cycles of a kernel that waits, from which their rate is found; at 2 GHz half a millisecond.
_CYCLES = 10**6


class CudaEvents:
    """A pair of CUDA events in the current stream: milliseconds, in steps of about half a microsecond.

    Source: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__EVENT.html (cudaEventElapsedTime).
    """

    def __init__(self) -> None:
        self._first, self._second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cycles_per_second = 0.0

    def hold(self, seconds: float) -> bool:
        """Queue a kernel that waits, on one multiprocessor, for this long.

        It counts cycles, so where the clock is low it waits longer.  PyTorch has it for its own tests of streams; False
        where it is gone.
        """
        sleep = getattr(torch.cuda, "_sleep", None)
        if sleep is None:
            return False
        if not self._cycles_per_second:
            sleep(_CYCLES)  # loads the kernel
            self.begin()
            sleep(_CYCLES)
            self.end()
            self._cycles_per_second = _CYCLES / self.seconds()
        sleep(int(seconds * self._cycles_per_second))
        return True

    def late(self, native: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        """Arguments whose floating-point tensors are 0, and a function that queues copies of the right ones.

        A kernel that does not wait for the stream that it is called in computes with zeros.
        """
        tensors = {n: t for n, t in native.items() if isinstance(t, torch.Tensor) and t.is_floating_point()}
        zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

        def copy_all() -> None:
            for name, tensor in tensors.items():
                zeros[name].copy_(tensor)

        return {**native, **zeros}, copy_all

    def begin(self) -> None:
        """Put the first mark behind what was submitted so far."""
        self._first.record()

    def begun(self) -> bool:
        """Whether the device is past the first mark already."""
        return bool(self._first.query())

    def end(self) -> None:
        """Put the second mark behind what was submitted so far."""
        self._second.record()

    def seconds(self) -> float:
        """Wait until the device is past the second mark; returns the time between the two marks."""
        self._second.synchronize()
        return self._first.elapsed_time(self._second) / 1e3


def events(device: str) -> CudaEvents | None:
    """CUDA events; the CPU's kernels are done when a call returns."""
    return None if device == "cpu" else CudaEvents()


def cache_bytes(device: str) -> int | None:
    """L2 of a CUDA device, which older versions of torch do not report."""
    return None if device == "cpu" else getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)


def memory(device: str) -> tuple[int, int] | None:
    """Bytes by a CUDA device's caching allocator, which counts what tensors hold, not what it keeps; None on CPU."""
    if device == "cpu":
        return None
    return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)


def release() -> None:
    """Release what the caching allocator of a CUDA device keeps; the CPU's keeps nothing."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def versions() -> dict[str, str]:
    """Versions of torch and of the libraries that its kernels come from."""
    found = {"torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return found


def settings() -> tuple[Setting, ...]:
    """Defaults, threads, modes and random numbers of torch."""
    return (*_SETTINGS, *(_CUDA if torch.cuda.is_initialized() else ()))


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None removes what a call put there


def _set_deterministic(modes: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in _KINDS)


def _set_autocast(modes: tuple[bool, ...]) -> None:
    for kind, mode in zip(_KINDS, modes, strict=True):
        torch.set_autocast_enabled(kind, mode)


def _modes() -> tuple[int, int]:
    """Number of modes that every call goes through, of functions and of operators."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def _leave_modes(counts: tuple[int, int]) -> None:
    while torch._C._len_torch_function_stack() > counts[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > counts[1]:
        torch._C._pop_torch_dispatch_stack(None)


_KINDS = ("cpu", "cuda")

_SETTINGS = (
    Setting("default dtype of torch", torch.get_default_dtype, torch.set_default_dtype),
    Setting("default device of torch", torch.get_default_device, _set_default_device),
    Setting("threads of torch", torch.get_num_threads, torch.set_num_threads),
    Setting(
        "random numbers of torch",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        random_state_change,
        random=True,
    ),
    Setting("gradient mode of torch", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting(
        "deterministic algorithms of torch",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    Setting("autocast of torch", _autocast, _set_autocast),
    Setting("modes of torch", _modes, _leave_modes),
    Setting("matmul precision of torch", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)

_CUDA = (
    Setting(
        "random numbers of torch on the GPU",
        lambda: torch.cuda.get_rng_state().numpy().tobytes(),
        lambda state: torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        random_state_change,
        random=True,
    ),
)
