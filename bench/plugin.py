"""The cells of ``pytest bench``, the session that measures them, and the output of a run."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from rich.console import Console

from attention_conformance.bench import options
from attention_conformance.bench.analysis.fits import sentences
from attention_conformance.bench.clocks import clocks
from attention_conformance.bench.machine import gpu
from attention_conformance.bench.machine.machine import describe, fingerprint
from attention_conformance.bench.output import document, extra_metrics
from attention_conformance.bench.output.extra_metrics import ExtraMetrics
from attention_conformance.bench.output.table import WIDTH, limits, shortened, table
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.records import JSON_KEY, Record
from attention_conformance.bench.sampling.cold_cache import MEANING
from attention_conformance.bench.timing import checkpoint
from attention_conformance.bench.timing.checkpoint import Checkpoint, CheckpointError
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.progress import Progress
from attention_conformance.bench.timing.protocol import Protocol
from attention_conformance.bench.timing.session import Session
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.known import KnownDeviations
from attention_conformance.bench.validity.outcomes import (
    INVALID,
    KNOWN_DEVIATION,
    MEASURED,
    SKIPPED,
    TIMED,
    UNSTABLE,
    Cell,
    Outcome,
)
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance import SPEC_VERSION, targets
from attention_conformance.conformance.ledger.load import LedgerError
from attention_conformance.conformance.run import xdist
from attention_conformance.conformance.run.recorder import ledger_of, versions_of
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.interpreters import NOT_TIMED

#: Packages of the extra ``bench`` that are imported late, after all measurements.
PACKAGES = ("pytest_benchmark", "scipy")

#: The file whose tests are the cells.
CELLS = Path(__file__).resolve().with_name("test_bench.py")

#: Outcomes whose cells are listed one by one, and those of them that fail the run.
NAMED, BROKEN = (INVALID, UNSTABLE, KNOWN_DEVIATION), (INVALID, UNSTABLE)

#: Outcomes in the order of the first line, and those that are left out of it where there are none.
COUNTED, RARE = (TIMED, UNSTABLE, KNOWN_DEVIATION, INVALID, SKIPPED), (UNSTABLE, KNOWN_DEVIATION)


#: Reasons of skipped cells that are printed where nothing was timed.
REASONS = 3


@dataclass
class Bench:
    """The state of a run of the bench."""

    workloads: tuple[Workload, ...]
    plan: Plan
    processes: Processes
    session: Session | None = None
    memory: bool = True
    extra: ExtraMetrics = field(default_factory=ExtraMetrics)
    records: list[Record] = field(default_factory=list)
    started: str = field(default_factory=lambda: _now())
    #: The state of the GPUs, if a cell is on one.
    gpu_state: dict[str, Any] = field(default_factory=dict)
    #: Reason why there was no cell to time, "" if there was one.
    nothing: str = ""
    #: Whether the JSON has all that was measured.
    written: bool = False

    def record(self, cell: Cell, outcome: Outcome) -> None:
        """Keep the outcome of a cell."""
        self.records.append(document.record(cell, outcome))

    def measure(self) -> Mapping[Cell, Outcome]:
        """Run the session, and measure the other metrics of its cells."""
        assert self.session is not None
        self.gpu_state = gpu.around(self.session.run, {cell.target.device for cell in self.session.cells})
        outcomes, notify = self.session.outcomes, self.session.progress.show
        self.extra = extra_metrics.measure(outcomes, self.processes, self.plan.threads, self.memory, notify)
        for cell, outcome in outcomes.items():
            outcomes[cell] = self._within_the_peak(cell, outcome)
        self.session.progress.end()
        return outcomes

    def _within_the_peak(self, cell: Cell, outcome: Outcome) -> Outcome:
        """The outcome of a cell, invalid if it seems faster than the machine."""
        if outcome.kind not in MEASURED:
            return outcome
        known = self.extra.roofline(cell)
        return cheating.within_peak(cell, outcome, self.plan.threads, (known and known.flops_per_second) or 0.0)[0]


_BENCH = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that only the bench has."""
    options.add(parser.getgroup("attention-conformance bench").addoption)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options before anything is imported or started, so that a misspelt one costs nothing."""
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise pytest.UsageError(f"bench needs {package}: pip install 'attention-conformance[bench]'") from None
    workloads, plan = options.workloads(config), options.plan(config)
    if xdist.controls(config) and _names_cells(config):
        raise pytest.UsageError("bench times one call at a time: leave out -n, or run bench separately")
    if config.getoption("resume", False) and options.json_file(config) is None:
        raise pytest.UsageError("--resume needs --benchmark-json, to know which run to resume")
    processes = Processes(plan.threads, config.getoption("in_process"))
    config.add_cleanup(processes.close)
    config.stash[_BENCH] = Bench(workloads, plan, processes, memory=options.memory(config))


def _names_cells(config: pytest.Config) -> bool:
    """Whether the command line names the cells; ``testpaths`` alone times nothing."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS or config.getoption("collectonly"):
        return False
    named = (Path(config.invocation_params.dir, each.partition("::")[0]).resolve() for each in config.args)
    return any(CELLS.is_relative_to(path) for path in named)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per cell: target by target, shortest workload first.

    A workload is run on the implementations of its operator.  A test that takes only ``cell`` is not the bench's: those
    take ``outcomes`` as well.
    """
    if not {"cell", "outcomes"} <= set(metafunc.fixturenames):
        return
    config = metafunc.config
    workloads = config.stash[_BENCH].workloads
    # A timed call on ranks would include sending its shards to them, which means nothing.
    chosen = tuple(each for each in _selection(config).targets if each.implementation.distribution is None)
    if not config.getoption("dtype"):
        chosen = _first_dtypes(chosen)
    pairs = [(target, workload) for target in chosen for workload in workloads]
    cells = [Cell(target, one) for target, one in pairs if one.operator == target.implementation.operator]
    if pairs and not cells:
        wanted = ", ".join(sorted({one.operator for one in workloads}))
        offered = ", ".join(sorted({target.implementation.operator for target in chosen}))
        raise pytest.UsageError(f"the workloads are of {wanted}, and the selected implementations of {offered}")
    if not cells:
        config.stash[_BENCH].nothing = _nothing_to_time(config)
    metafunc.parametrize("cell", cells, ids=[cell.id for cell in cells])


def _first_dtypes(chosen: Sequence[targets.Target]) -> tuple[targets.Target, ...]:
    """The targets in the first dtype that each implementation takes."""
    first: dict[str, str] = {}
    for target in sorted(chosen, key=lambda each: options.DTYPE_ORDER.index(each.dtype)):
        first.setdefault(target.implementation.name, target.dtype)
    return tuple(target for target in chosen if target.dtype == first[target.implementation.name])


def _nothing_to_time(config: pytest.Config) -> str:
    """Reason why there are no cells: what is not installed, or what the implementations take instead."""
    found = _selection(config)
    if found.not_installed:
        return "; ".join(f"{name} needs {', '.join(lacks)}" for name, lacks in found.not_installed.items())
    names = ", ".join(found.keywords) or "no implementation"
    dtypes, devices = config.getoption("dtype"), config.getoption("device")
    anywhere = targets.choose(config.getoption("impl"), (), (), targets.pool(config)).targets
    here = {target.dtype for target in anywhere if target.device in (devices or (target.device,))}
    if here:
        takes = [f"--dtype {dtype}" for dtype in options.DTYPE_ORDER if dtype in here]
        return f"{names} does not take {', '.join(dtypes)}, but {', '.join(takes)}"
    there = sorted({target.device for target in anywhere})
    return f"{names} is not on {', '.join(devices)}" + (f", but on {', '.join(there)}" if there else "")


def _selection(config: pytest.Config) -> targets.Selection:
    try:
        return targets.selection(config, probe=False)
    except ImplementationError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the session: the cells of all selected tests, and the checkpoint that they are written to."""
    config = session.config
    params = (getattr(item, "callspec", None) for item in session.items)
    cells = [
        found.params["cell"] for found in params if found is not None and isinstance(found.params.get("cell"), Cell)
    ]
    if not cells or config.getoption("collectonly"):
        return
    targets.pool(config).close()  # it is no longer needed, and would take up memory and time
    bench = config.stash[_BENCH]
    deviations = _known_deviations(config)
    written, known = _checkpoint(config, cells)
    protocol = Protocol(
        bench.processes,
        bench.plan,
        lambda implementation: targets.keywords(config, implementation),
        known=deviations,
    )
    outcomes = {cell: known[cell.id] for cell in cells if cell.id in known}
    bench.session = Session(cells, protocol, bench.processes, _progress(config), written, outcomes)


def _known_deviations(config: pytest.Config) -> KnownDeviations:
    """The ledger of the run, with the versions that decide which records are in force."""
    try:
        ledger = ledger_of(config)
    except LedgerError as error:
        raise pytest.UsageError(str(error)) from None
    return KnownDeviations(ledger, versions_of(ledger, _selection(config)))


def _checkpoint(config: pytest.Config, cells: list[Cell]) -> tuple[Checkpoint | None, Mapping[str, Outcome]]:
    """The checkpoint, and the outcomes in it.  Raises UsageError if it is of another run, or in the way."""
    path = options.json_file(config)
    if path is None:
        return None, {}
    file, resumes = checkpoint.checkpoint_of(path), config.getoption("resume", False)
    bench = config.stash[_BENCH]
    if resumes:
        bench.plan = replace(bench.plan, seed=checkpoint.seed_of(file))  # the inputs stay the same
    header = {
        "spec": SPEC_VERSION,
        "fingerprint": _fingerprint(config)["id"],
        "plan": document.plan_record(bench.plan),
        "versions": _selection(config).versions,
        "code": checkpoint.code(cell.target.implementation for cell in cells),
        "cells": [cell.id for cell in cells],
    }
    finished = document.finished(path, header) if resumes and not file.exists() else None
    if finished is not None:
        _end_finished(path, finished)
    try:
        if resumes:
            known = checkpoint.read(file, header)
            return Checkpoint(file, header, known), known
        return Checkpoint(file, header), {}
    except FileExistsError:
        raise pytest.UsageError(
            f"{file} holds measurements of an earlier run: continue with --resume, or delete it"
        ) from None
    except (OSError, CheckpointError) as error:
        raise pytest.UsageError(f"--resume: {error}" if resumes else str(error)) from None


def _end_finished(path: Path, outcomes: Sequence[str]) -> NoReturn:
    """End a run that has nothing left to do, with the exit status that it had."""
    counts = ((outcomes.count(outcome), outcome) for outcome in BROKEN)
    broken = "".join(f", {count} {outcome}" for count, outcome in counts if count)
    failed = broken or TIMED not in outcomes
    status = pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK
    pytest.exit(f"{path} is finished: nothing is left to resume{broken}", returncode=status)


def _progress(config: pytest.Config) -> Progress:
    """Progress of the session, shown outside of pytest's capturing of output."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if reporter is None or config.get_verbosity() < 0:
        return Progress(None)

    class Outside(io.StringIO):
        """Standard output outside of pytest's capturing."""

        def write(self, text: str) -> int:
            with capture.global_and_fixture_disabled():
                sys.stdout.write(text)
                sys.stdout.flush()
            return len(text)

    return Progress(Console(file=Outside(), force_terminal=reporter.isatty))


def _fingerprint(config: pytest.Config, in_force: Mapping[str, int] | None = None) -> dict[str, Any]:
    return describe(_selection(config).versions, in_force)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Bench:
    """The state of the run."""
    return request.config.stash[_BENCH]


@pytest.fixture(scope="session")
def outcomes(bench: Bench) -> Mapping[Cell, Outcome]:
    """Outcomes of all cells of the run, measured when the first test needs them."""
    return bench.measure()


@pytest.fixture(scope="session")
def versions(request: pytest.FixtureRequest) -> dict[str, str]:
    """Versions of the libraries that take part."""
    return _selection(request.config).versions


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add everything but the code that a timing depends on; also when a run is compared, before its first cell."""
    machine_info.update(fingerprint(_selection(config).versions))


def _command(arguments: Sequence[str]) -> str:
    """The command as its caller wrote it: ``attention-conformance bench`` calls pytest on this folder, by its path."""
    folder = str(Path(__file__).resolve().parent)
    if arguments[:2] == ("-c", os.devnull) and arguments.count(folder) > 1:  # the first is a setting's value
        at = arguments.index(folder, arguments.index(folder) + 1)
        return shlex.join(["attention-conformance", "bench", *arguments[at + 1 :]])
    return shlex.join(["pytest", *arguments])


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add every cell, also those without a timing, which pytest-benchmark leaves out."""
    bench = config.stash[_BENCH]
    for benchmark in output_json["benchmarks"]:
        benchmark["params"] = {"cell": benchmark["param"]}  # its name; the object cannot be written
    if bench.records and bench.session is not None:
        output_json[JSON_KEY] = document.run(
            bench.records,
            bench.plan,
            command=_command(config.invocation_params.args),
            started=bench.started,
            finished=_now(),
            core_wait=bench.session.protocol.core_wait,
            fingerprint=_fingerprint(config, document.in_force(bench.session.outcomes)),
            idle=bench.processes.shares(),
            gpu_state=bench.gpu_state,
            **bench.extra.document(bench.session.outcomes),
        )
        bench.written = len(bench.records) == len(bench.session.cells)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that timed nothing, and remove the checkpoint once the JSON has everything in it.

    If nothing could be timed because the kernels are interpreted here, the status is pytest's for "no tests".
    """
    bench = session.config.stash[_BENCH]
    records = bench.records
    if records and exitstatus == pytest.ExitCode.OK and not any(r.outcome == TIMED for r in records):
        failed, none = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
        session.exitstatus = none if _only_interpreted(bench) else failed
    if bench.nothing and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    run = bench.session
    ended = bool(records) and len(records) == len(run.cells if run is not None else ())
    nothing = ended and not any(r.outcome in MEASURED for r in records)  # pytest-benchmark writes no JSON then
    if run is not None and run.checkpoint is not None and (bench.written or nothing):
        run.checkpoint.remove()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the numbers of timed, invalid and skipped cells, and list the invalid ones and the known deviations."""
    bench = config.stash[_BENCH]
    if bench.session is not None and bench.session.checkpoint is not None and bench.session.checkpoint.path.exists():
        terminalreporter.line(f"not complete: --resume continues from {bench.session.checkpoint.path}")
    if bench.nothing:
        terminalreporter.line(f"nothing was timed: {bench.nothing}", yellow=True)
    if not bench.records or bench.session is None:
        return
    terminalreporter.section("bench")
    kinds: list[str] = [record.outcome for record in bench.records]
    counts = {outcome: kinds.count(outcome) for outcome in COUNTED}
    said = (f"{count} {outcome.replace('-', ' ')}" for outcome, count in counts.items() if count or outcome not in RARE)
    terminalreporter.line(", ".join(said))
    for record in bench.records:
        if record.outcome in NAMED:
            where = f"{record.implementation} {record.device} {record.dtype} {record.workload}"
            said_of = f"{record.outcome.replace('-', ' ')}: {where}: {record.clause}: {document.reason_of(record)}"
            terminalreporter.line(said_of, **{"red" if record.outcome in BROKEN else "yellow": True})
    for line in _tables(bench):
        terminalreporter.line(line)
    found = (bench.session.outcomes, bench.processes.shares(), bench.extra.overhead, bench.gpu_state)
    for note in document.notes(*found, bench.session.protocol.core_wait):
        terminalreporter.line(note)
    if not counts[TIMED] and not counts[UNSTABLE]:
        if _only_interpreted(bench):
            terminalreporter.line("nothing was timed", yellow=True)
        else:
            terminalreporter.line("FAILED: nothing was timed", red=True)
        reasons = Counter(document.reason_of(each) for each in bench.records if each.outcome == SKIPPED)
        for reason, many in reasons.most_common(REASONS):
            terminalreporter.line(f"  {many} skipped: {reason}")


def _only_interpreted(bench: Bench) -> bool:
    """Whether every cell was skipped, and at least one of them because its kernels are interpreted."""
    return all(each.outcome == SKIPPED for each in bench.records) and NOT_TIMED in map(
        document.reason_of, bench.records
    )


def _tables(bench: Bench) -> list[str]:
    """Tables of the cells' results, of the machine's limits, and of the growth of time and memory."""
    assert bench.session is not None
    outcomes = bench.session.outcomes
    timed = [
        {**document.extra_info(cell, outcome, bench.extra), "seconds": outcome.interval.value}
        for cell, outcome in outcomes.items()
        if outcome.kind == TIMED
    ]
    invalid = [
        {**msgspec.structs.asdict(record), "reason": document.reason_of(record)}
        for record in bench.records
        if record.outcome in NAMED
    ]
    cache = shortened(f"caches {bench.plan.cache}: {MEANING[bench.plan.cache]}", WIDTH)
    grown = sentences(bench.extra.fits(outcomes), bench.extra.memories(outcomes))
    said = [line for text in clocks(timed) for line in textwrap.wrap(text, WIDTH)]
    parts = [[cache, *said, table(timed, invalid)] if timed else [], limits(bench.extra.rooflines), grown]
    return [line for part in parts for line in ("", *part) if part]
