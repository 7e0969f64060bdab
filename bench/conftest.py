"""Options of ``pytest bench``, its cells, and what the suite adds to pytest-benchmark's JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench.flops import FORMULAS
from bench.machine import fingerprint, load_average
from bench.presets import PRESETS, select
from bench.protocol import Cell, Protocol
from bench.sampler import Plan
from bench.workloads import Workload, WorkloadError
from conformance import SPEC_VERSION, targets
from impls.contract import ImplementationError

#: Key and version of what the suite adds to pytest-benchmark's JSON.
JSON_KEY = "attention_conformance"
#: 2: cells of every operator; ``flops`` has a formula for each.
FORMAT = 2

#: Seconds that a cell is sampled for: short enough for all built-ins at all lengths in a few minutes on two cores.
SECONDS = 0.5

#: A cell is left out if its least number of calls is predicted to take this many times the seconds to sample for.
LIMIT = 10

#: The dtype that is timed unless ``--dtype`` asks for others.
DTYPE = "float32"


@dataclass(frozen=True)
class Record:
    """What became of a cell: "timed", "struck out" (``clause`` says by what) or "not timed".

    ``family`` is the workload's name with its length left open, which is ``S``: query rows, of decode past keys.
    """

    implementation: str
    device: str
    dtype: str
    workload: str
    family: str
    S: int
    operator: str
    outcome: str
    clause: str = ""
    reason: str = ""


@dataclass
class Bench:
    """The state of a run of the bench."""

    workloads: tuple[Workload, ...]
    protocol: Protocol
    records: list[Record] = field(default_factory=list)

    def record(self, cell: Cell, outcome: str, clause: str = "", reason: str = "") -> None:
        """Keep what became of a cell."""
        t, w = cell.target, cell.workload
        named = (t.implementation.name, t.device, t.dtype, w.name, w.family, w.sweep, w.operator)
        self.records.append(Record(*named, outcome, clause, reason))


_BENCH = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that only the bench has."""
    group = parser.getgroup("attention-conformance bench")
    group.addoption(
        "--workload",
        action="append",
        default=[],
        metavar="NAME|GLOB",
        help="a workload such as prefill-b1h8d64s1024-causal or model/gpt2, or a glob over the known ones such as"
        " 'model/*'; may be repeated",
    )
    group.addoption(
        "--preset",
        default="",
        metavar="NAME",
        help=f"a set of workloads: {', '.join(PRESETS)}; what --workload names is added",
    )
    group.addoption(
        "--bench-seconds",
        type=float,
        default=SECONDS,
        metavar="SECONDS",
        help="sample each cell for this long, and 5 calls at least; a cell whose 5 calls are predicted to take"
        f" {LIMIT} times as long is skipped (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the options before anything is imported or started, so that a misspelt one costs nothing."""
    try:
        # With the defaults where this file is found too late to add options, as by ``pytest .``.
        workloads = select(config.getoption("workload", []), config.getoption("preset", ""))
    except WorkloadError as error:
        raise pytest.UsageError(f"--workload, --preset: {error}") from None
    seconds = config.getoption("bench_seconds", SECONDS)
    if not seconds > 0:
        raise pytest.UsageError(f"--bench-seconds {seconds:g}: expected more than 0")
    plan = Plan(seconds=seconds, limit=LIMIT * seconds)
    protocol = Protocol(targets.pool(config), plan, lambda implementation: targets.keywords(config, implementation))
    config.stash[_BENCH] = Bench(workloads, protocol)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per cell: target by target, so that no two libraries run at a time, shortest workload first.

    A workload is put to the implementations of its operator.
    """
    if "cell" not in metafunc.fixturenames:
        return
    config = metafunc.config
    chosen, workloads = _selection(config).targets, config.stash[_BENCH].workloads
    if not config.getoption("dtype"):
        chosen = tuple(target for target in chosen if target.dtype == DTYPE)
    pairs = [(target, workload) for target in chosen for workload in workloads]
    cells = [Cell(target, one) for target, one in pairs if one.operator == target.implementation.operator]
    if pairs and not cells:
        wanted = ", ".join(sorted({one.operator for one in workloads}))
        offered = ", ".join(sorted({target.implementation.operator for target in chosen}))
        raise pytest.UsageError(f"the workloads are of {wanted}, and the selected implementations of {offered}")
    metafunc.parametrize("cell", cells, ids=[cell.id for cell in cells])


def _selection(config: pytest.Config) -> targets.Selection:
    try:
        return targets.selection(config)
    except ImplementationError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Bench:
    """The state of the run."""
    return request.config.stash[_BENCH]


@pytest.fixture(scope="session")
def versions(request: pytest.FixtureRequest) -> dict[str, str]:
    """Versions of the libraries that take part."""
    return _selection(request.config).versions


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add what a timing depends on besides the code; also when a run is compared, before its first cell."""
    machine_info.update(fingerprint(_selection(config).versions))


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add every cell, also those without a timing, of which pytest-benchmark says nothing."""
    records = config.stash[_BENCH].records
    if records:
        output_json[JSON_KEY] = {
            "format": FORMAT,
            "spec": SPEC_VERSION,
            "flops": FORMULAS,
            "load_average": load_average(),
            "cells": [dataclasses.asdict(record) for record in records],
        }


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run of the bench that timed nothing fails."""
    records = session.config.stash[_BENCH].records
    if records and exitstatus == pytest.ExitCode.OK and not any(r.outcome == "timed" for r in records):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many cells were timed, struck out and left out, and name the struck-out ones."""
    records = config.stash[_BENCH].records
    if not records:
        return
    terminalreporter.section("bench")
    counts = {outcome: sum(r.outcome == outcome for r in records) for outcome in ("timed", "struck out", "not timed")}
    terminalreporter.line(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    for record in records:
        if record.outcome == "struck out":
            where = f"{record.implementation} {record.device} {record.dtype} {record.workload}"
            terminalreporter.line(f"struck out: {where}: {record.clause}: {record.reason}", red=True)
    if not counts["timed"]:
        terminalreporter.line("FAILED: nothing was timed", red=True)
