"""(SDPA-45) A call in a held stream, with a stand-in for CUDA that postpones work until something waits for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls import streams
from attention_conformance.impls.backend import backend
from attention_conformance.impls.calls import Request
from attention_conformance.impls.contract import Framework, Implementation

torch = pytest.importorskip("torch")

#: One query over one key: the output is v.
V = np.full((1, 1, 1, 2), 3.0, np.float32)


class Queues:
    """The current stream, and another one whose work is done only when something waits for the device."""

    def __init__(self) -> None:
        self.current: list[Callable[[], Any]] = []
        self.other: list[Callable[[], Any]] = []
        self.holds: list[float] = []
        self.past_the_mark = False

    def drain(self) -> None:
        """Do the work of the current stream."""
        while self.current:
            self.current.pop(0)()
        self.past_the_mark = True

    def synchronize(self, device: Any = None) -> None:
        """Do all work."""
        self.drain()
        while self.other:
            self.other.pop(0)()


QUEUES = Queues()


class Events:
    """The stand-in for impls.torch.arrays.CudaEvents."""

    def hold(self, seconds: float) -> bool:
        """Do nothing until something waits."""
        QUEUES.holds.append(seconds)
        QUEUES.past_the_mark = False
        return True

    def late(self, native: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        """Zeros, and a function that queues the copies."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in native.items()}

        def copy_all() -> None:
            for name, tensor in native.items():
                QUEUES.current.append(functools.partial(zeros[name].copy_, tensor))

        return zeros, copy_all

    def begin(self) -> None:
        """Do nothing: the mark is where the queue is drained."""

    def begun(self) -> bool:
        """Whether something has waited."""
        return QUEUES.past_the_mark


@pytest.fixture(autouse=True)
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's streams are the stand-in, and its tensors are on the CPU."""
    held: Any = pytest.importorskip("attention_conformance.impls.torch.streams")
    arrays: Any = backend(Framework.TORCH)
    QUEUES.__init__()  # type: ignore[misc]

    class Stream:
        def synchronize(self) -> None:
            QUEUES.drain()

    def copies(returned: Any) -> Any:
        made = torch.full_like(returned, torch.nan)
        QUEUES.current.append(lambda: made.copy_(returned))
        return made

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(held, "CudaEvents", Events)
    monkeypatch.setattr(held, "synchronize", QUEUES.synchronize)
    monkeypatch.setattr(held, "_copies", copies)
    monkeypatch.setattr(arrays, "_copy_to_device", lambda tensor, device: tensor)
    real = arrays.get

    def get(array: Any) -> Any:
        QUEUES.synchronize()
        return real(array)

    monkeypatch.setattr(arrays, "get", get)


def in_its_place(q: Any, k: Any, v: Any) -> Any:
    """Work in the current stream."""
    output = torch.empty_like(v)
    QUEUES.current.append(lambda: output.copy_(v))
    return output


def too_early(q: Any, k: Any, v: Any) -> Any:
    """Work in a stream that has nothing before it."""
    return v.clone()


def too_late(q: Any, k: Any, v: Any) -> Any:
    """Work in a stream that nothing waits for."""
    output = torch.empty_like(v).fill_(-1.0)
    QUEUES.other.append(lambda: output.copy_(v))
    return output


def waits(q: Any, k: Any, v: Any) -> Any:
    """Waits for the device before it reads."""
    QUEUES.drain()
    return v.clone()


def raises(q: Any, k: Any, v: Any) -> Any:
    """Raises in the call."""
    raise ValueError("no stream for it")


def refuses(q: Any, k: Any, v: Any) -> Any:
    """Refuses the call."""
    raise NotImplementedError("not on a GPU")


def called(name: str) -> streams.InStream:
    """One of the functions above, on the stand-in."""
    implementation = Implementation(name, f"{__name__}:{name}", framework=Framework.TORCH)
    return streams.in_stream(implementation, Request.qkv("cuda", V, V, V))


def values(found: streams.InStream) -> list[float]:
    """One number of the plain call, of the call in the stream, and of that call later."""
    return [float(each["output"].flat[0]) for each in (found.plain, found.in_order, found.later)]


def test_a_call_in_its_place_computes_with_the_inputs() -> None:
    """All three results are right, and the call was submitted while the stream was held."""
    found = called("in_its_place")
    assert values(found) == [3.0, 3.0, 3.0]
    assert (found.held, QUEUES.holds) == (True, list(streams.HOLDS[:1]))


def test_a_call_that_reads_too_early_computes_with_zeros() -> None:
    """The results are still wrong when everything is done."""
    assert values(called("too_early")) == [3.0, 0.0, 0.0]


def test_results_that_come_too_late_are_not_in_the_copies() -> None:
    """The results are right once the device is idle."""
    assert values(called("too_late")) == [3.0, -1.0, 3.0]


def test_a_call_that_waits_for_the_stream_itself_is_right() -> None:
    """The stream is held longer and longer, and the reply says that the call was never submitted in time."""
    found = called("waits")
    assert values(found) == [3.0, 3.0, 3.0]
    assert (found.held, QUEUES.holds) == (False, list(streams.HOLDS))


def test_where_no_stream_can_be_held_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's waiting kernel is private and may disappear; without it every call would seem to be in its place."""
    monkeypatch.setattr(Events, "hold", lambda self, seconds: False)
    found = called("too_early")
    assert (found.status, found.text) == (
        "unsupported",
        "this version of torch cannot hold a stream",
    )


@pytest.mark.parametrize(("name", "status"), [("raises", "raised"), ("refuses", "unsupported")])
def test_exceptions_are_told(name: str, status: str) -> None:
    """An exception is reported by status and text."""
    found = called(name)
    assert found.status == status
    assert found.text
