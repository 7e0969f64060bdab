"""Times on a GPU by clocks: its table, and that it is not measured without one."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework
from studies import device_clock
from studies.common import Unfit

pytest.importorskip("torch")


def cell(workload: str, name: str, **fields: Any) -> dict[str, Any]:
    """A measured cell."""
    times = {kind: [2e-5, 1e-5, 4e-5] for kind in ("idle", "held", "graph", "cold", "do_bench")}
    return {"workload": workload, "name": name, "share_held": 0.5, **times, **fields}


def test_a_line_has_the_median_and_the_ends_of_the_batches() -> None:
    """Lines are in microseconds, in the study's order; a skipped cell has none, and a missing graph has no time."""
    last, first = device_clock.WORKLOADS[-1], device_clock.WORKLOADS[0]
    found = {
        "cells": [cell(last, "a"), cell(first, "b", graph=[]), {"workload": first, "name": "c", "skipped": "no"}],
        "machine": {"gpu": "a GPU", "cpu": "a CPU"},
        "load_average": [0.0, 0.0],
        "threads": 1,
        "written": "then",
    }
    _, _, one, other, *rest = device_clock.table(found).splitlines()
    assert one == (
        f"| `{first}` | b | 20.0 (10.0 to 40.0) | 20.0 (10.0 to 40.0) | – | 20.0 (10.0 to 40.0) | 20.0 (10.0 to 40.0) |"
    )
    assert other.startswith(f"| `{last}` | a |")
    assert "50.0% of the calls were submitted in time; a GPU" in rest[-1]


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study ends with one sentence, and not with a table of zeros."""
    monkeypatch.setattr(backend(Framework.TORCH), "devices", lambda: ("cpu",))
    with pytest.raises(Unfit, match="no GPU"):
        device_clock.measure()
