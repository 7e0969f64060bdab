"""Clocks that times are measured by, and the remark where the times of one device are by several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Names of clocks, as records have them.
WALL, DEVICE, HELD = "wall", "device events", "device events behind a held queue"

#: Description of each clock: whose it is, and whether a call's launch is in its time.
CLOCKS = {
    WALL: "the host's clock, launch included",
    DEVICE: "the device's clock, launch included",
    HELD: "the device's clock, without the launch",
}


def clocks(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sentences on the clocks of times, one for each device whose times are by several.

    Parameters
    ----------
    records
        Timed cells: implementation, device and clock of each.

    Returns
    -------
    list[str]
        Sentences; none where all times of a device are by one clock.
    """
    by_device: dict[str, dict[str, dict[str, None]]] = {}
    for record in records:
        told = record.get("clock")
        clock = told if isinstance(told, str) and told else WALL  # other files may have none, or NaN
        by_device.setdefault(record["device"], {}).setdefault(clock, {})[record["implementation"]] = None
    said = []
    for device, names in by_device.items():
        if len(names) > 1:
            parts = (f"{', '.join(some)} by {CLOCKS.get(clock, clock)}" for clock, some in sorted(names.items()))
            said.append(f"Times on {device} are by different clocks: {'; '.join(parts)}.")
    return said
