"""Measurement of the evidence: problems judged in parallel blocks, and the totals."""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import local
from typing import Any

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.evidence.series import SERIES, Series
from attention_conformance.conformance.evidence.verdicts import Jury, Kind, Verdict
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.targets import choose
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.process.pool import InProcess, Pool, Worker

#: Problems of one block; its processes end with it, which frees what libraries keep for every shape.
BLOCK = 1000

#: One thread for every library, as two blocks run in parallel; no compiled program is cached, as none is used again.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
}


@dataclass(frozen=True)
class Block:
    """Consecutive problems of a series, by its name, and the implementations that are judged."""

    series: str
    start: int
    stop: int
    implementations: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """Measurements of a block, and the versions of its libraries."""

    verdicts: tuple[Verdict, ...]
    versions: dict[str, str]


class Near(Pool):
    """NumPy in this process, as it neither crashes nor hangs; every other library in its own."""

    def __init__(self) -> None:
        super().__init__(in_process=False)
        self._here = InProcess()

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run a job; what an implementation raises is part of its reply."""
        if implementation.framework is Framework.NUMPY and implementation.requires[0] == "numpy":
            return self._here.call(function, *arguments, timeout=timeout)
        return super().call(implementation, function, *arguments, timeout=timeout)


def judge_block(block: Block) -> Measured:
    """Judge the problems of a block, in this process and the processes of the libraries."""
    with closing(Near()) as pool:
        selection = choose(block.implementations, ("cpu",), (), pool)
        jury = Jury(pool, selection, read(), SERIES[block.series])
        verdicts = [verdict for index in range(block.start, block.stop) for verdict in jury.verdicts(index)]
    return Measured(tuple(verdicts), selection.versions)


def measure(series: Series, problems: int, parallel: int) -> Measured:
    """Judge the first problems, ``parallel`` blocks at a time, each in a process with one thread per library."""
    starts = range(0, problems, BLOCK)
    blocks = [Block(series.name, start, min(start + BLOCK, problems), series.implementations) for start in starts]
    verdicts: list[Verdict] = []
    versions: dict[str, str] = {}
    workers: list[Worker] = []
    mine = local()

    def run(block: Block) -> Measured:
        if not hasattr(mine, "worker"):
            mine.worker = Worker(ENVIRONMENT)
            workers.append(mine.worker)
        judged: Measured = mine.worker.call(f"{__name__}:judge_block", block)
        return judged

    try:
        with ThreadPoolExecutor(parallel) as executor:
            for block, judged in zip(blocks, executor.map(run, blocks), strict=True):
                verdicts += judged.verdicts
                versions |= judged.versions
                found = alarms(judged.verdicts)
                print(
                    f"{series.name}, problems {block.start} to {block.stop - 1}: {len(found)} false alarms",
                    *found,
                    sep="\n  ",
                    file=sys.stderr,
                )
    finally:
        for worker in workers:
            worker.close()
    return Measured(tuple(verdicts), versions)


def alarms(verdicts: Iterable[Verdict]) -> list[str]:
    """The false alarms, one line each."""
    found = (each for each in verdicts if each.kind is Kind.ALARM)
    return [f"{each.implementation} in {each.dtype}, problem {each.index}: {each.why}" for each in found]


def rows(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """One row per implementation and dtype: counts, the share of the bound that was used, the profiles kept."""
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[verdict.implementation, verdict.dtype].append(verdict)
    return [_row(implementation, dtype, group) for (implementation, dtype), group in groups.items()]


def _row(implementation: str, dtype: str, group: Sequence[Verdict]) -> dict[str, Any]:
    kinds = Counter(each.kind for each in group)
    kept = [each for each in group if each.kind is Kind.KEPT]
    shares = [each.share or 0.0 for each in kept]
    worst = max(kept, key=lambda each: each.share or 0.0, default=None)
    return {
        "implementation": implementation.rpartition(":")[2],
        "variant": ":" in implementation,
        "dtype": dtype,
        "profile": group[0].profile,
        "judged": kinds[Kind.KEPT] + kinds[Kind.ALARM],
        "alarms": kinds[Kind.ALARM],
        "unsupported": kinds[Kind.UNSUPPORTED],
        "known": dict(sorted(Counter(each.why for each in group if each.kind is Kind.KNOWN).items())),
        "median": _digits(statistics.median(shares)) if shares else None,
        "largest": _digits(max(shares)) if shares else None,
        "largest_at": worst.index if worst else None,
        "meets": {p.value: sum(p.value in each.meets for each in kept) for p in bounds.profiles(dtype)},
    }


def _digits(number: float) -> float:
    return float(f"{number:.3g}")
