"""Options of ``pytest bench``, and the plan that they make."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.sampling.cold_cache import MEANING
from attention_conformance.bench.timing.plan import LEAST_EACH, LIMIT, Plan, drawn_seed
from attention_conformance.bench.workloads.presets import PRESETS, SECONDS, THREADS, select
from attention_conformance.bench.workloads.workload import Workload, WorkloadError
from attention_conformance.impls.process.threads import usable_cores

#: Presets that are too short for measuring memory, which takes 0.4 to 30 s a cell.
WITHOUT_MEMORY = ("quick",)

#: Unless ``--dtype`` names others, the first of these dtypes that an implementation takes is timed.
DTYPE_ORDER = ("float32", "bfloat16", "float16", "float64")


class Renamed(argparse.Action):
    """A hidden option that says its new name: ``add_argument("--old", action=Renamed, now="--new")``."""

    def __init__(self, *, now: str, **settings: Any) -> None:
        super().__init__(**settings | {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS})
        self.now = now

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the new name, and exit."""
        parser.error(f"{self.option_strings[0]} is now {self.now}")


def add(add: Callable[..., Any]) -> None:
    """Add the bench's own options by ``add``, as ``conformance.options.add`` does."""
    plan = Plan()
    add(
        "--workload",
        action="append",
        default=[],
        metavar="NAME|GLOB",
        help="a workload such as prefill-b1h8d64s1024-causal or model/gpt2, or a glob over the known ones such as"
        " 'model/*'; may be repeated",
    )
    add(
        "--preset",
        default="",
        metavar="NAME",
        help=f"a set of workloads: {', '.join(PRESETS)}; workloads named by --workload are added",
    )
    add(
        "--bench-seconds",
        type=float,
        metavar="SECONDS",
        help=f"seconds of calls per cell, over all process runs, with at least {LEAST_EACH} calls in each; a cell is"
        f" skipped if one call is predicted to take {LIMIT} times as long (default: set by the preset, {SECONDS['']:g}"
        " without one)",
    )
    add(
        "--process-runs",
        type=int,
        default=plan.process_runs,
        metavar="N",
        help="how many times each cell is measured, each in fresh processes (default: %(default)s)",
    )
    add("--visits", metavar="N", help=argparse.SUPPRESS)  # ``plan`` gives its new name
    add(
        "--noise",
        type=float,
        default=plan.noise,
        metavar="SHARE",
        help="stop a cell once the interval of its median is within this share (default: %(default)s)",
    )
    add(
        "--threads",
        type=int,
        default=None,
        metavar="N",
        help="threads of every library, on as many cores (default: 1 with the preset quick, else all usable cores,"
        f" here {usable_cores()})",
    )
    add(
        "--cache",
        choices=tuple(MEANING),
        default=plan.cache,
        dest="bench_cache",
        help="; ".join(f"{name}: {meaning}" for name, meaning in MEANING.items()) + " (default: %(default)s)",
    )
    text = "measure the memory of each timed cell in a separate process (default: yes, except with the preset quick)"
    add("--memory", action="store_true", default=None, help=text)
    add("--no-memory", action="store_false", dest="memory", help="do not measure memory, which takes minutes")
    add(
        "--resume",
        action="store_true",
        help="continue a run that was killed, from the checkpoint next to the file of --benchmark-json",
    )


def workloads(config: pytest.Config) -> tuple[Workload, ...]:
    """Workloads to time.  Raises UsageError for a name that is not a workload's."""
    try:
        # The defaults apply where pytest finds this file too late to add options, as with ``pytest .``.
        return select(config.getoption("workload", []), config.getoption("preset", ""))
    except WorkloadError as error:
        raise pytest.UsageError(f"--workload, --preset: {error}") from None


def plan(config: pytest.Config) -> Plan:
    """Plan of the timing.  Raises UsageError for a number that makes no sense."""
    if config.getoption("visits", None) is not None:
        raise pytest.UsageError("--visits is now --process-runs")
    preset, cores = config.getoption("preset", ""), usable_cores()

    def given(option: str, default: Any) -> Any:
        found = config.getoption(option, None)
        return default if found is None else found

    seconds: float = given("bench_seconds", SECONDS[preset])
    process_runs: int = config.getoption("process_runs", Plan.process_runs)
    threads: int = given("threads", THREADS.get(preset, cores))
    made = Plan(
        seconds=seconds,
        limit=LIMIT * LEAST_EACH * process_runs * seconds,
        process_runs=process_runs,
        noise=config.getoption("noise", Plan.noise),
        threads=threads,
        cache=config.getoption("bench_cache", Plan.cache),
        seed=drawn_seed(),
    )
    for option, value, holds, expected in (
        ("--bench-seconds", made.seconds, 0 < made.seconds < math.inf, "more than 0, and finite"),
        ("--process-runs", made.process_runs, made.process_runs >= 1, "1 or more"),
        ("--noise", made.noise, 0 <= made.noise < math.inf, "0 or more"),
        ("--threads", made.threads, 1 <= made.threads <= cores, f"1 to {cores}, the usable cores"),
    ):
        if not holds:
            raise pytest.UsageError(f"{option} {value:g}: expected {expected}")
    return made


def memory(config: pytest.Config) -> bool:
    """Whether memory is measured."""
    requested = config.getoption("memory", None)
    return config.getoption("preset", "") not in WITHOUT_MEMORY if requested is None else bool(requested)


def json_file(config: pytest.Config) -> Path | None:
    """Path of the JSON that will be written."""
    path = config.getoption("benchmark_json", None)
    # Later versions of pytest-benchmark give a path, earlier ones a file, whose name is its path.
    return path if path is None or isinstance(path, Path) else Path(getattr(path, "name", path))
