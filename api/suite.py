"""Main job: conformance, a benchmark, and a report of both or, after an interrupt, of what is there."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.cli import INTERRUPTED

#: Stage and exit status of a bench that had nothing to time, as it says: the kernels are interpreted here, or take
#: other dtypes; no failure.
NOT_TIMED = ("bench", 5)

#: Seconds that a stage has after an interrupt to write what it has, before it is ended.
GRACE = 60.0


@dataclass(frozen=True)
class Stage:
    """A part of the job that ran: its exit status and its cost.

    Parameters
    ----------
    name
        The command's name.
    status
        Exit status of the command.
    seconds
        From start to end.
    processor
        Seconds of processor time, including those of its workers.
    interrupted
        Whether it was ended by an interrupt.
    """

    name: str
    status: int
    seconds: float
    processor: float
    interrupted: bool = False


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``suite``.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="as for --impl; default: all built-in and registered ones"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="FOLDER", help="default: results")
    parser.add_argument("--preset", default="quick", help="workloads of the benchmark; default: quick")
    parser.add_argument("--quick", action="store_true", help="run only the quick selection of conformance cases")


def run(what: Sequence[str], output: Path, preset: str, quick: bool) -> tuple[str, int]:
    """Judge and time implementations, and write the report; after an interrupt, a report of what is there.

    Parameters
    ----------
    what
        Functions, as ``--impl`` takes them, one each; none for all.
    output
        Folder of the result files and of the report.
    preset
        Workloads of the benchmark.
    quick
        Judge on the quick cases.

    Returns
    -------
    (str, int)
        A line for each stage, and the exit status: 0 if every stage ended with 0 or could time nothing, 130 after
        an interrupt, else 1.
    """
    output.mkdir(parents=True, exist_ok=True)
    results, timed = output / "conformance.jsonl", output / "bench.json"
    measuring = {
        "check": (*what, "-q", "--conformance-json", str(results), *(["--quick"] if quick else [])),
        "bench": (*what, "--preset", preset, "--benchmark-json", str(timed)),
    }
    for stale in (results, timed, *output.glob(f"{timed.name}.checkpoint*")):
        stale.unlink(missing_ok=True)
    stages: list[Stage] = []
    for name, words in measuring.items():
        stages.append(_stage(name, words))
        if stages[-1].interrupted:
            break
    files = [str(file) for file in (results, timed) if file.is_file() and file.stat().st_size]
    if files:
        stages.append(_stage("report", (*files, "-o", str(output))))
    if any(stage.interrupted for stage in stages):
        return _stage_lines(stages), INTERRUPTED
    return _stage_lines(stages), int(any(stage.status and (stage.name, stage.status) != NOT_TIMED for stage in stages))


def _stage(name: str, words: Sequence[str]) -> Stage:
    """Run a command of the suite in a process of its own; an interrupt of the terminal reaches it too."""
    began, before = time.monotonic(), _processor_seconds()
    child = subprocess.Popen([sys.executable, "-P", "-m", __package__ or "", name, *words])  # noqa: S603  (this suite)
    interrupted = False
    while True:
        try:
            status = child.wait(GRACE if interrupted else None)
            break
        except KeyboardInterrupt:
            if interrupted:
                child.terminate()
            interrupted = True
        except subprocess.TimeoutExpired:
            child.kill()
    return Stage(name, status, time.monotonic() - began, _processor_seconds() - before, interrupted)


def _processor_seconds() -> float:
    """Processor time of the children that ended, and of theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _stage_lines(stages: Sequence[Stage]) -> str:
    """A line for each stage and one for all."""
    lines = [
        f"{stage.name:8} {stage.seconds:7.0f} s, {stage.processor:7.0f} s of processor time{_ended(stage)}"
        for stage in stages
    ]
    whole = sum(stage.seconds for stage in stages), sum(stage.processor for stage in stages)
    return "\n".join([*lines, f"{'all':8} {whole[0]:7.0f} s, {whole[1]:7.0f} s of processor time"])


def _ended(stage: Stage) -> str:
    """Text on a stage that did not end as it should, after a comma; "" otherwise."""
    if stage.interrupted:
        return ", interrupted"
    if (stage.name, stage.status) == NOT_TIMED:
        return ", nothing was timed, for the reason above"
    return f", exit status {stage.status}" if stage.status else ""
