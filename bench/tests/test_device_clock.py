"""The device's clock, which foreign code may replace; torch and its GPU are stand-ins here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.sampling import device_clock, sampler
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Implementation


def fake(available: bool = True) -> Any:
    """A torch module with the functions that the clock uses."""

    class Event:
        def record(self) -> None: ...
        def query(self) -> bool:
            return True

        def synchronize(self) -> None: ...
        def elapsed_time(self, other: Event) -> float:
            return 1.0

    cuda = SimpleNamespace(is_available=lambda: available, synchronize=lambda device: None, Event=Event)
    cuda._sleep = lambda cycles: None
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, with no function remembered yet."""
    found = fake()
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.setattr(device_clock, "_BOUND", {})
    return found


def test_what_nobody_replaced_is_no_cheat(torch: Any) -> None:
    """Unchanged functions pass, also if they are looked up often."""
    device_clock.bind()
    assert device_clock.replaced() == ""


@pytest.mark.parametrize(
    "name", ["synchronize", "Event", "_sleep", "Event.record", "Event.query", "Event.synchronize", "Event.elapsed_time"]
)
def test_a_replaced_function_is_named(torch: Any, name: str) -> None:
    """A replaced function of the module or method of its events is named; a later binding does not accept it."""
    device_clock.bind()
    place, _, attribute = f"cuda.{name}".rpartition(".")
    setattr(torch.cuda.Event if place.endswith("Event") else torch.cuda, attribute, lambda *_: 0.0)
    device_clock.bind()
    assert device_clock.replaced().startswith("the clock was changed: torch.cuda.")
    assert f"torch.cuda.{name}" in device_clock.replaced()


@pytest.mark.parametrize("there", [None, fake(available=False)])
def test_without_a_gpu_nothing_is_looked_at(torch: Any, monkeypatch: pytest.MonkeyPatch, there: Any) -> None:
    """Torch is not imported for it, and a torch without a GPU may be changed freely."""
    monkeypatch.setitem(sys.modules, "torch", there)
    device_clock.bind()
    assert device_clock._BOUND == {}
    assert device_clock.replaced() == ""


def replaces(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Makes every event report that no time passed."""
    sys.modules["torch"].cuda.Event.elapsed_time = lambda *_: 0.0
    return v


def test_a_cell_whose_code_replaced_the_clock_has_no_time(torch: Any) -> None:
    """The functions are remembered before the cell's code is loaded, and compared after its first call."""
    one = Implementation("replaces", f"{__name__}:replaces")
    answer = sampler.open_cell("it", one, Workload(1, 1, 8, 8), "float32", "cpu")
    assert (answer.status, answer.text) == (
        "clock",
        "the clock was changed: torch.cuda.Event.elapsed_time replaced by foreign code",
    )
