"""After an exception that ends a process's use of its GPU the next call gets another process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.run_case import ask
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply, Request
from attention_conformance.impls.select import builtin

SDPA = builtin()["torch-sdpa"]


class OneReply:
    """A pool whose processes give this reply, and that counts the processes that were ended."""

    memory = None

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.ended = 0

    def call(self, *_: Any, **__: Any) -> Reply:
        """The reply."""
        return self.reply

    def end(self, implementation: Any) -> None:
        """Count the call."""
        self.ended += 1


def ended(device: str, text: str, trace: str = "") -> int:
    """The number of processes ended after an exception."""
    pool: Any = OneReply(Reply("raised", text=text, trace=trace))
    array = np.ones((1, 1, 1, 1), np.float32)
    ask(Target(SDPA, device, "float32"), Request.qkv(device, array, array, array), pool, None)
    return int(pool.ended)


@pytest.mark.parametrize(
    "text",
    [
        "AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: Triton Error [CUDA]: misaligned address",
        "XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered",
    ],
)
def test_a_lost_gpu_ends_the_process(text: str) -> None:
    """The errors of torch, Triton, XLA and CuPy after which every later call would raise the same end the process."""
    assert ended("cuda", text) == 1


def test_what_the_trace_alone_says_counts() -> None:
    """An error that is only in the trace counts, as a library may wrap the exception."""
    assert ended("cuda", "KernelError: failed", "… RuntimeError: CUDA error: unspecified launch failure") == 1


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cuda", "ValueError: no such shape"),
        ("cuda", "OutOfMemoryError: CUDA out of memory. See CUDA errors"),
        ("cpu", "CUDA error: none"),
    ],
)
def test_any_other_exception_ends_nothing(device: str, text: str) -> None:
    """No other exception ends the process, nor one on the CPU, whose text is the implementation's own."""
    assert ended(device, text) == 0
