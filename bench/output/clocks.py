"""Clocks that the times of a table are by, where that is not the same one for all of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attention_conformance.bench.sampling.stopwatch import CLOCKS, WALL


def clocks(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sentences on whose clock times are by, one for each device on which they are by several.

    Parameters
    ----------
    records
        Timed cells: implementation, device and clock of each.

    Returns
    -------
    list[str]
        Sentences without a full stop; none where all times of a device are by one clock.
    """
    by_device: dict[str, dict[str, dict[str, None]]] = {}
    for record in records:
        told = record.get("clock")
        clock = told if isinstance(told, str) and told else WALL  # of another file's nothing, or NaN, is known
        by_device.setdefault(record["device"], {}).setdefault(clock, {})[record["implementation"]] = None
    said = []
    for device, names in by_device.items():
        if len(names) > 1:
            parts = (f"{', '.join(some)} by {CLOCKS.get(clock, clock)}" for clock, some in sorted(names.items()))
            said.append(f"times on {device} are by different clocks: {'; '.join(parts)}")
    return said
