"""Whether an implementation is the best call of its library: ``python -m impls.tests.speed`` times both in turns.

Each implementation of SPEED.md is compared with the same computation called by hand (impls.tests.by_hand): in one
process, or in two by turns where that is another library's.  A pair is timed only if both give the same result.

The memory of a process lies well or badly for as long as it lives.  So each pair is measured in PROCESSES fresh ones,
and the interval of its ratio spans both the interval of the median of all turns and the medians of the processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from impls.contract import Implementation
from impls.figures import Figures
from impls.process import allocator, threads
from impls.process.pool import Worker
from impls.select import builtin
from impls.tests.speed_sides import BATCH, HEADS, WIDTH

#: The page, and the file of the numbers on it.
PAGE, FILE = (Path(__file__).resolve().parents[1] / name for name in ("SPEED.md", "speed.json"))

#: Fresh processes, and turns in each at least: of six ratios the whole range is a 97 % interval of the median; fewer
#: have no 95 % interval.
PROCESSES, LEAST = 3, 2

#: Seconds of a turn: 50 times what it takes to hand over, and less than what an idle machine does now and then.
TURN = 0.02

#: Distance of two results, as a share of the length of a row of the output.  Correct ones in float32 differ by up to
#: 1e-5; those of another scale (√65 for √64) by 3e-3, and those of another mask by more.
CLOSE = 1e-4

#: Seconds that a job may take: an export or a compilation takes some.
TIMEOUT = 300.0

#: Variables that change times, beside those for the number of threads.
VARIABLES = ("OPENBLAS_CORETYPE", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "XLA_FLAGS")

#: Lengths: a call of microseconds, one of milliseconds, and one whose scores fit into no cache.
USUAL, JAX = (32, 512, 2048), (32, 512, 1024)

#: What is compared with what by hand, at which lengths, and the process of the latter where it is another library.
COMPARED = (
    ("numpy-tiled", "torch_flash", (512, 1024, 2048, 4096, 8192), "torch"),
    ("torch-sdpa", "torch_sdpa", USUAL, ""),
    ("torch-sdpa-flash", "torch_flash", USUAL, ""),
    ("jax-jit", "jax_plain", JAX, ""),
    ("jax-tiled", "jax_plain", JAX, ""),
    ("jax-nn", "jax_nn", JAX, ""),
    ("onnx-attention23", "onnx_attention", USUAL, ""),
    ("ort-mha", "ort_multi_head", USUAL, ""),
    ("onnx-export23-torch-sdpa", "onnx_attention", USUAL, ""),
    ("onnx-export18-torch-eager", "onnx_plain", USUAL, ""),
    ("onnx-export18-torch-sdpa", "onnx_plain", USUAL, ""),
)

#: The jobs of the workers.
_SIDES = "impls.tests.speed_sides"

HEADERS = ("implementation", "by hand", "S", "ms", "ratio", "causal, ms", "ratio")


class Differs(Exception):
    """Two calls that do not compute the same, so that their times are no comparison."""


@dataclass(frozen=True)
class Pair:
    """An implementation and what it is compared with, on one problem; ``apart`` is the latter's own process."""

    implementation: str
    by_hand: str
    length: int
    causal: bool = False
    apart: str = ""

    @property
    def record(self) -> Implementation:
        """The implementation."""
        return builtin()[self.implementation]


@dataclass(frozen=True)
class Timed:
    """Milliseconds of the turns of a pair, by process."""

    ours: tuple[tuple[float, ...], ...] = ()
    by_hand: tuple[tuple[float, ...], ...] = ()

    @property
    def milliseconds(self) -> float:
        """The median of ours."""
        return statistics.median(itertools.chain(*self.ours))

    def ratio(self) -> tuple[float, float, float]:
        """The median of ours ÷ by hand over all pairs of turns, and the ends of its interval."""
        by_process = [[a / b for a, b in zip(*each, strict=True)] for each in zip(self.ours, self.by_hand, strict=True)]
        ordered = sorted(itertools.chain(*by_process))
        out = beyond(len(ordered))
        ends = (ordered[out], ordered[-1 - out], *map(statistics.median, by_process))
        return statistics.median(ordered), min(ends), max(ends)


PAIRS = tuple(
    Pair(name, f"impls.tests.by_hand:{function}", length, causal, apart)
    for name, function, lengths, apart in COMPARED
    for length in lengths
    for causal in (False, True)
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m impls.tests.speed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="implementations whose names match")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each side of a pair; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="of every library; default: %(default)s")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="write every turn, as JSON")
    parser.add_argument(
        "--page", action="store_true", help="keep the turns, and write the table into SPEED.md; of all pairs"
    )
    options = parser.parse_args(arguments)
    wanted = [pair for pair in PAIRS if fnmatch.fnmatch(pair.implementation, options.only)]
    pairs = [pair for pair in wanted if not pair.record.missing()]
    if not pairs:
        parser.error(f"--only {options.only}: nothing that is compared here and installed has such a name")
    if options.page and pairs != list(PAIRS):
        parser.error("--page needs all pairs: no --only, and all frameworks installed")
    try:
        document = measure(pairs, options.seconds, options.threads)
    except Differs as error:
        print(error, file=sys.stderr)
        return 1
    text = table(document)
    print(text)
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.page:
        figures().keep(document)
    return 0


def figures() -> Figures:
    """Where the table stands, and the turns behind it."""
    return Figures("python -m impls.tests.speed --page", PAGE, FILE, table)


def measure(pairs: Sequence[Pair], seconds: float, count: int = 1, processes: int = PROCESSES) -> dict[str, Any]:
    """Every turn of every pair, and what the times belong to.  Raises Differs for two calls that are not the same."""
    started, load_before = time.perf_counter(), os.getloadavg()[0]
    found = dict.fromkeys(pairs, Timed())
    versions: dict[str, str] = {}
    for number in range(processes):
        with ExitStack() as stack:
            names = {name for pair in pairs for name in (pair.record.process, pair.apart) if name}
            environment = threads.environment(count) | allocator.environment()
            workers = {name: stack.enter_context(closing(Worker(environment))) for name in names}
            for pair, old in found.items():
                both = (workers[pair.record.process], workers[pair.apart or pair.record.process])
                ours, by_hand = _turns(*both, pair, seconds / processes)
                found[pair] = replace(old, ours=(*old.ours, ours), by_hand=(*old.by_hand, by_hand))
                versions |= both[0].call("impls.calls:versions", pair.record)
        print(f"processes {number + 1} of {processes}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 1),
        "threads": count,
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "machine": {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "versions": dict(sorted(versions.items())),
        "pairs": [{**asdict(pair), "milliseconds": asdict(timed)} for pair, timed in found.items()],
    }


def _turns(ours: Worker, theirs: Worker, pair: Pair, seconds: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds of the turns of both sides, which begin by turns."""
    problem, sides = (pair.length, pair.causal), {"ours": ours, "by_hand": theirs}
    one = ours.call(f"{_SIDES}:open_implementation", "ours", pair.record, *problem, timeout=TIMEOUT)
    other = theirs.call(f"{_SIDES}:open_by_hand", "by_hand", pair.by_hand, *problem, timeout=TIMEOUT)
    apart = distance(one, other)
    if not apart <= CLOSE:  # NaN as well
        raise Differs(f"{pair.implementation} and {pair.by_hand} at S = {pair.length}: rows differ by {apart:.1g}")
    taken: dict[str, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    while (number := len(taken["ours"])) < LEAST or time.perf_counter() - started < 2 * seconds:
        for side in sorted(sides, reverse=bool(number % 2)):
            taken[side].append(sides[side].call(f"{_SIDES}:turn", side, TURN, number, timeout=TIMEOUT))
    for side, worker in sides.items():
        worker.call(f"{_SIDES}:close", side)
    return tuple(taken["ours"]), tuple(taken["by_hand"])


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance of two rows, as a share of the length of the second's."""
    if one.shape != other.shape:
        return math.inf
    apart = np.linalg.norm(one.astype(np.float64) - other, axis=-1)
    return float(np.max(apart / np.linalg.norm(other.astype(np.float64), axis=-1)))


def beyond(count: int) -> int:
    """How many of so many ordered values lie outside of a 95 % interval of their median, at each end.

    A value is below the true median as often as above it, so the number below it is binomial, whatever they scatter by.
    """
    below, out = 0.0, 0
    while (below := below + math.comb(count, out) / 2**count) <= 0.025:
        out += 1
    return max(0, out - 1)


def table(document: Mapping[str, Any]) -> str:
    """The figures as Markdown: a row for each length, causal beside not causal."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in document["pairs"]:
        timed = Timed(**each["milliseconds"])
        value, low, high = timed.ratio()
        key = (f"`{each['implementation']}`", f"`{each['by_hand'].partition(':')[2]}`", str(each["length"]))
        milliseconds = float(f"{timed.milliseconds:.3g}")
        rows.setdefault(key, []).extend((f"{milliseconds:g}", f"{value:.2f} ({low:.2f}–{high:.2f})"))
    lines = tabulate(
        [(*key, *figures) for key, figures in rows.items()],
        HEADERS,
        tablefmt="pipe",
        disable_numparse=True,
        colalign=("left", "left", *["right"] * (len(HEADERS) - 2)),
    )
    return f"{lines}\n\n{_below(document)}"


def _below(document: Mapping[str, Any]) -> str:
    """What the figures belong to, in a sentence."""
    machine = document["machine"]
    parts = (
        f"B = {BATCH}, H = {HEADS}, D = {WIDTH}, float32, forward",
        f"threads: {document['threads']}, of {machine['cores']} cores of {machine['processor']}",
        ", ".join(f"{name} {version}" for name, version in document["versions"].items()),
        ", ".join(f"{name}={value}" for name, value in document["variables"].items()) or f"no {', '.join(VARIABLES)}",
        "load average before and after: " + ", ".join(map(str, document["load_average"])),
        document["written"],
    )
    return f"{'; '.join(parts)}."


def processor() -> str:
    """What the processor calls itself, where Linux tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
