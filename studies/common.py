"""Shared parts of the studies: their options, the circumstances of a measurement, and the tables that pages quote.

A table is in its page between two marks; its numbers are in ``studies/data``.  A page is never edited there: ``--page``
replaces the text between the marks, and a test compares the page with the data.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.bench.machine.machine import describe, load_average
from attention_conformance.bench.paired.revisions import RevisionError
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import Skipped
from attention_conformance.bench.workloads.workload import WorkloadError
from attention_conformance.conformance.targets import Selection, choose
from attention_conformance.impls import compressed
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.process.threads import usable_cores

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).resolve().parent / "data"

#: Most bytes that are read of a file of numbers.
LARGEST = 1 << 26

#: Bytes in the system's unit for the most memory of a process.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024

#: The line after a table.
END = "<!-- end of figures -->\n"

#: The measurements of a study, and a function that makes their Markdown table.
Measured = Mapping[str, Any]
Table = Callable[[Measured], str]


class Unfit(Exception):
    """Options that cannot be used, or name what cannot be measured; the text says why in one sentence."""


#: Errors that end a study with one sentence instead of a trace.
ERRORS = (Unfit, RevisionError, WorkloadError, ImplementationError, Invalid, Skipped)


@dataclass(frozen=True)
class Study:
    """A study: what it measures, its options, and the pages that quote its tables."""

    name: str
    about: str
    #: Called with the options by name; returns JSON, with ``versions`` of the libraries, and ``threads`` where they are
    #: not all usable cores.
    measure: Callable[..., dict[str, Any]]
    #: Tables by page (from the top of the repository) and, where a page has two, ``#part``; "" is printed only.
    tables: Mapping[str, Table]
    #: Settings of ``add_argument``, by flag.
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Raises Unfit for options that would make ``--page`` quote only a part of the numbers.
    whole: Callable[..., None] = lambda **_: None

    @property
    def file(self) -> Path:
        """File of the numbers."""
        return DATA / f"{self.name}.json{compressed.SUFFIX}"

    def kept(self) -> Any:
        """Content of the file."""
        return json.loads(compressed.read(self.file, LARGEST))

    def blocks(self) -> list[tuple[Path, str, str]]:
        """Every page, the mark that begins its table, and the table of the numbers in the file."""
        found = self.kept()
        places = [(key.partition("#"), table) for key, table in self.tables.items() if key]
        return [
            (ROOT / page, f"<!-- figures: python -m studies {self.name} --page{f' ({part})' * bool(part)} -->\n", text)
            for (page, _, part), table in places
            for text in [f"{table(found)}\n{END}"]
        ]

    def print(self) -> None:
        """Write the tables of the file into their pages.  Raises ValueError if a page has no place for one."""
        for page, begin, block in self.blocks():
            before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
            _, ended, after = rest.partition(END)
            if not mark or not ended:
                raise ValueError(f"{page.name} has no place for the figures of studies.{self.name}")
            page.write_text(before + begin + block + after, encoding="utf-8")

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measure, print the tables, and write the files; returns the exit code, 2 where it cannot be measured."""
        parser = argparse.ArgumentParser(prog=f"python -m studies {self.name}", description=self.about)
        for flag, settings in self.options.items():
            parser.add_argument(flag, **settings)
        parser.add_argument("--of", type=Path, metavar="FILE", help="measure nothing; take the numbers of this file")
        parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="write the numbers, as JSON")
        if any(self.tables):
            parser.add_argument("--page", action="store_true", help="keep the numbers, and set the tables into pages")
        given = vars(parser.parse_args(arguments))
        of, output, page = (given.pop(name, False) for name in ("of", "output", "page"))
        try:
            if page and of is None:
                self.whole(**given)
            found = json.loads(compressed.read(of, LARGEST)) if of else measured(self.measure, **given)
        except ERRORS as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        text = json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
        for file in [output] * bool(output) + [self.file] * page:
            compressed.write(file, text.encode())
        if page:
            self.print()
        print("\n\n".join(table(found) for table in self.tables.values()))
        return 0


def measured(measure: Callable[..., dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Measurements of a study, with when and where."""
    load, started = load_average(), time.perf_counter()
    found = measure(**options)
    return {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 1),
        "threads": found.pop("threads", usable_cores()),
        "load_average": [load, load_average()],
        "machine": describe(found.pop("versions", {})),
    } | found


def sentence(found: Measured, *first: str) -> str:
    """The last line under a table: words about the table, and the circumstances as far as they are known."""
    loads = ", ".join("not told" if load is None else f"{load:.1f}" for load in found["load_average"])
    machine = found["machine"]
    usable = machine.get("cores_usable")
    cores = f"{usable} core{'s' * (usable != 1)}" if usable else ""
    where = ", ".join(filter(None, [machine.get("cpu"), cores, "virtual" * bool(machine.get("virtual"))]))
    threads = f"{found['threads']} thread{'s' * (found['threads'] != 1)}"
    return "; ".join([*first, where, threads, f"load average before and after: {loads}", found["written"]]) + "."


def libraries(found: Measured) -> str:
    """The versions of the libraries, and the variables that change times."""
    machine = found["machine"]
    variables = (
        ", ".join(f"{name}={value}" for name, value in machine["threads"].items())
        or "kernels as the libraries choose them"
    )
    return "; ".join([", ".join(f"{name} {version}" for name, version in machine["versions"].items()), variables])


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]], left: Iterable[int] = (0,)) -> str:
    """A table whose columns are aligned right, except those in ``left``."""
    rules = ["---" if at in set(left) else "---:" for at in range(len(heads))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, rules, *rows))


def ratio_with_interval(of: Interval, digits: int = 2) -> str:
    """A ratio with its interval."""
    return f"{of.value:.{digits}f} ({of.low:.{digits}f} to {of.high:.{digits}f})"


def chosen(names: Iterable[str]) -> Selection:
    """The implementations of these names on the CPU, in float32."""
    pool = Pool(in_process=False)
    try:
        return choose(list(names), ("cpu",), ("float32",), pool)
    finally:
        pool.close()


def resources_used(
    command: Sequence[str], codes: Iterable[int], folder: Path, variables: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Seconds by the clock and of the processor, and most bytes in memory, of one command and all that it starts.

    Raises RuntimeError if it ends with none of the codes.
    """
    started = time.perf_counter()
    with subprocess.Popen(  # noqa: S603  (what a study measures)
        command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, **(variables or {})}
    ) as process:
        _, status, use = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}, not {' or '.join(map(str, codes))}")
    return {"seconds": seconds, "cpu_seconds": use.ru_utime + use.ru_stime, "bytes": use.ru_maxrss * RSS_UNIT}


def peak_bytes() -> int:
    """Most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def calls_for(run: Callable[[], Any], seconds: float) -> list[float]:
    """The seconds of every call that fits into ``seconds``, and of at least one."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of some values, and the ends of its interval: two of the values, or all that there are.

    A value is below the true median as often as above it, so the number below it is binomial, whatever their scatter;
    as many values are left out at each end as keep each end wrong with at most 2.5 %.
    """
    from scipy.stats import binom

    ordered = sorted(values)
    out = max(0, int(binom.ppf(0.025, len(ordered), 0.5)) - 1)
    return statistics.median(ordered), ordered[out], ordered[-1 - out]
