"""The clocks that the times of a table are by."""

from __future__ import annotations

from typing import Any

from attention_conformance.bench.clocks import DEVICE, HELD, WALL, clocks


def record(implementation: str, clock: Any, device: str = "cuda") -> dict[str, Any]:
    """A timed cell."""
    return {"implementation": implementation, "device": device, "clock": clock}


def test_several_clocks_of_a_device_are_told() -> None:
    """Each clock is listed once, with the implementations that it times."""
    cells = [record("a", HELD), record("a", HELD), record("c", WALL), record("b", DEVICE)]
    assert clocks(cells) == [
        "Times on cuda are by different clocks: b by the device's clock, launch included;"
        " a by the device's clock, without the launch; c by the host's clock, launch included."
    ]


def test_of_one_clock_nothing_is_said() -> None:
    """There is no note either if the CPU and a GPU have one clock each, or if a file does not name the clock."""
    assert clocks([record("a", WALL, "cpu"), record("a", HELD), record("b", HELD)]) == []
    assert clocks([record("a", None), record("b", float("nan")), record("c", WALL)]) == []
    assert clocks([]) == []
