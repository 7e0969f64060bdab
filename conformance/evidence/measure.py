"""The measurement: which implementations, how many problems each, in blocks side by side, and what it adds up to."""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import local
from typing import Any

from conformance import bounds
from conformance.deviations import read
from conformance.evidence.verdicts import Jury, Kind, Verdict
from conformance.targets import Pool, choose
from impls.isolation import Worker

#: Where the honest variants are.
VARIANTS = "conformance.evidence.variants:"

#: Every n-th problem, by the name of an implementation.  XLA compiles for each shape (about half a second), flex
#: attention traces for each call (a tenth), and opset 23 runs in the kernel of opset 24; the others get every problem.
EVERY: Mapping[str, int] = {"jax-jit": 125, "jax-nn": 25, "torch-flex": 50, "onnx-attention23": 4}

#: What is judged: every built-in that neither compiles nor exports for seconds, and the honest variants.
IMPLEMENTATIONS = (
    "numpy-eager",
    "numpy-tiled",
    "torch-eager",
    "torch-sdpa",
    "torch-sdpa-math",
    "torch-sdpa-flash",
    "torch-flex",
    "jax-jit",
    "jax-nn",
    "onnx-attention23",
    "onnx-attention24",
    "ort-mha",
    "ort-gqa",
    "onnx-reference",
    *(VARIANTS + name for name in ("storage", "fused", "flash", "online", "tf32", "sequential", "coarse")),
)

#: Problems of one block; its processes end with it, and with them what libraries keep for every shape.
BLOCK = 1000

#: One thread for every library, as two blocks run side by side; and no compiled program kept, as none comes again.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
}


@dataclass(frozen=True)
class Block:
    """Consecutive problems, and what they are judged on."""

    start: int
    stop: int
    implementations: tuple[str, ...] = IMPLEMENTATIONS


@dataclass(frozen=True)
class Measured:
    """What came of a block, and the versions of the libraries that took part."""

    verdicts: tuple[Verdict, ...]
    versions: dict[str, str]


def judge_block(block: Block) -> Measured:
    """Judge the problems of a block, in this process and the processes of the libraries."""
    with closing(Pool(in_process=False)) as pool:
        selection = choose(block.implementations, ("cpu",), (), pool)
        jury = Jury(pool, selection, read(), EVERY)
        verdicts = [verdict for index in range(block.start, block.stop) for verdict in jury.verdicts(index)]
    return Measured(tuple(verdicts), selection.versions)


def measure(problems: int, parallel: int, implementations: Sequence[str] = IMPLEMENTATIONS) -> Measured:
    """Judge the first problems, ``parallel`` blocks at a time, each in a process with one thread per library."""
    starts = range(0, problems, BLOCK)
    blocks = [Block(start, min(start + BLOCK, problems), tuple(implementations)) for start in starts]
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
                    f"problems {block.start} to {block.stop - 1}: {len(found)} false alarms",
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
    """One row per implementation and dtype: counts, the share of the bound that was used, profiles that were kept."""
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
        "implementation": implementation.removeprefix(VARIANTS),
        "variant": implementation.startswith(VARIANTS),
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
