"""(SDPA-45) A held CUDA stream: the inputs, the call, and copies of its results come behind the kernel that holds it.

A call that works in the stream that it is made in computes with its inputs, and its results are there for the copies.
One that works in another stream computes with zeros, or is not done when it is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention_conformance.impls.torch.arrays import CudaEvents, synchronize


def held_call(
    run: Callable[..., Any], native: dict[str, Any], seconds: float, device: str
) -> tuple[Any, Any, bool] | None:
    """One call in a stream of its own that is held for some seconds.

    Parameters
    ----------
    run
        The prepared function.
    native
        Arguments by name; the call gets zeros, until the stream reaches the copies of their numbers.
    seconds
        Time for which the stream is held.
    device
        "cuda".

    Returns
    -------
    tuple[Any, Any, bool] | None
        The results; copies that the stream made after the call; and whether the call was submitted while the stream was
        held.  None where torch has nothing that holds a stream.
    """
    events, stream = CudaEvents(), torch.cuda.Stream()
    zeros, copy_inputs = events.late(native)
    synchronize(device)
    with torch.cuda.stream(stream):
        if not events.hold(seconds):
            return None
        copy_inputs()
        events.begin()
        returned = run(**zeros)
        copies = _copies(returned)
        held = not events.begun()
        stream.synchronize()
    synchronize(device)
    return returned, copies, held


def _copies(returned: Any) -> Any:
    """Copies that the current stream makes of tensors; anything else unchanged."""
    if isinstance(returned, tuple):
        return tuple(map(_copies, returned))
    return returned.detach().clone() if isinstance(returned, torch.Tensor) else returned
