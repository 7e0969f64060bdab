"""The suite's additions to pytest-benchmark's JSON, and the notes at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.output import document
from attention_conformance.bench.output.extra_metrics import ExtraMetrics
from attention_conformance.bench.validity.outcomes import Cell, Outcome, ProcessRun
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation


def cell(process: str, device: str = "cpu") -> Cell:
    """A cell of an implementation in a process of this name."""
    target = Target(Implementation(process, "nowhere:f", worker=process), device, "float32")
    return Cell(target, Workload(1, 2, 4, 8))


def timed(*threads: int) -> Outcome:
    """An outcome with one process run for each number of threads."""
    process_runs = (
        ProcessRun(((0.2, 0.1), (0.3,)), 0.5, 1.0, 2.0, 3, threads=count, stopped="time budget") for count in threads
    )
    return Outcome(process_runs=tuple(process_runs))


def test_a_record_has_samples_by_process_run_and_batch() -> None:
    """A record has the sizes of batches, the interval, why it ended, and the costs of the first process run."""
    info = document.extra_info(cell("it"), timed(1, 2), ExtraMetrics())
    assert info["process_runs"] == [[2, 1], [2, 1]]
    assert info["interval"][0] <= 0.2 <= info["interval"][1]
    assert (info["stopped"], info["threads"], info["share"]) == ("time budget", 2, 0.5)
    assert (info["prepare_seconds"], info["first_call_seconds"], info["peak_rss_bytes"]) == (1.0, 2.0, 3)
    assert (info["clock"], info["host_seconds"], info["evicted_bytes"]) == ("wall", None, 0)
    assert info["gflops"] == info["flops"] / 0.2 / 1e9


HEADER: dict[str, Any] = {
    "spec": "1",
    "plan": {"process_runs": 2, "seed": 7},
    "versions": {"numpy": "2"},
    "cells": ["mine-cpu-float32-prefill-b1h2d8s16"],
}


@pytest.mark.parametrize(
    ("changes", "finished"),
    [
        ({}, True),
        ({"plan": {"process_runs": 2, "seed": 8}}, True),
        ({"plan": {"process_runs": 3, "seed": 7}}, False),
        ({"versions": {"numpy": "3"}}, False),
        ({"spec": "2"}, False),
    ],
)
def test_a_run_is_finished_by_a_file_of_its_plan_and_versions(
    tmp_path: Path, changes: dict[str, Any], finished: bool
) -> None:
    """Plan and versions must be equal; the seed of the inputs differs in every run, and does not count."""
    names = {"implementation": "mine", "device": "cpu", "dtype": "float32", "workload": "prefill-b1h2d8s16"}
    there = {"spec": "1", "plan": HEADER["plan"], "fingerprint": {"versions": HEADER["versions"]}}
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"attention_conformance": there | {"cells": [names | {"outcome": "timed"}]}}))
    assert document.finished(path, HEADER | changes) == (["timed"] if finished else None)


def test_threads_in_force_are_the_most_that_worked() -> None:
    """The number is by process, over its cells on the CPU; a process without known threads has none."""
    outcomes = {cell("torch"): timed(1, 2), cell("numpy"): Outcome(), cell("jax", "cuda"): timed(7)}
    assert document.in_force(outcomes) == {"torch": 2}


def test_unequal_threads_are_noted() -> None:
    """Equal numbers of threads are not noted."""
    unequal = {cell("torch"): timed(2), cell("numpy"): timed(1)}
    assert document.notes(unequal, {}, {}) == ["threads that worked at the same time: numpy 1, torch 2"]
    assert document.notes({cell("torch"): timed(2), cell("numpy"): timed(2)}, {}, {}) == []


def test_a_process_that_was_not_idle_is_noted() -> None:
    """The note has its share of a core."""
    assert document.notes({}, {"ort": 0.4, "numpy": 0.01}, {}) == ["not idle while others worked: ort 40% of a core"]


def test_calls_that_waited_for_a_core_are_said() -> None:
    """The note appears from a twentieth of their time on; there is none where the system does not say."""
    said = "calls waited 31 % of their time for a core: other work runs on this machine"
    assert document.notes({}, {}, {}, core_wait=0.31) == [said]
    assert document.notes({}, {}, {}, core_wait=0.04) == document.notes({}, {}, {}, core_wait=None) == []


def test_costly_overhead_is_noted() -> None:
    """The note appears if the interval of the ratio is above 1.02."""
    cost = {"loop_seconds": 1e-4, "ratio": 1.05, "interval": [1.03, 1.07]}
    assert document.notes({}, {}, cost) == ["timing a call of 100 µs costs 5.0% of it"]
    assert document.notes({}, {}, {**cost, "interval": [1.01, 1.07]}) == []
