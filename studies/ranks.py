"""Rings at scale: 2²⁰ tokens over eight ranks judged by sampled exact rows, and the cost of a ring next to a model.

Every rank is a process that makes its own shards from a seed, so that only the judge has all keys.  The ring is
PyTorch's template with the flash kernel of the CPU; keys go from rank to rank (impls/torch/rings.py).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance import assert_close
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.ranks import ENGINES
from studies.common import Measured, Study, markdown, peak_bytes, sentence

#: The call that is judged: keys over all ranks, queries (a part of a prefill; each attends to every key), ranks.
TOKENS, QUERIES, RANKS = 2**20, 2**14, 8

#: The calls that are timed: rows and keys, heads, and numbers of ranks.
TIMED, HEADS, OVER = 6144, 2, (1, 2, 3, 4, 8)

#: Width of a head, bytes of a number, calls that a median is taken over, and seconds that a rank may take.
WIDTH, FLOAT, REPEATS, LIMIT = 64, 4, 3, 1800.0

#: Factor from a key to a query: its score is then about 20, and others scatter by 2.5 around 0.
POINTING = 2.5

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Cost:
    """Model of a ring: what each rank computes, sends and holds in a call of attention without causal.

    Parameters
    ----------
    queries, keys
        Numbers over all ranks.
    heads, key_heads, width, size
        Query heads, key heads, D, and bytes of a number.
    ranks
        Number of ranks.
    rate
        Floating-point operations per second of a rank.
    bandwidth, latency
        Bytes per second that a rank sends to the next one while it receives as many, and seconds before the first byte.
    causal
        Whether computing is halved, as with shards in zigzag.
    """

    queries: int
    keys: int
    heads: int
    key_heads: int
    width: int
    size: int
    ranks: int
    rate: float
    bandwidth: float
    latency: float
    causal: bool = False

    @property
    def sent(self) -> float:
        """Bytes of k and v that a rank sends in a step."""
        return 2 * self.key_heads * self.keys / self.ranks * self.width * self.size

    @property
    def moved(self) -> float:
        """Bytes that a rank sends in a call; in the backward pass k and v rotate again, with their gradients."""
        return (self.ranks - 1) * self.sent

    @property
    def computing(self) -> float:
        """Seconds of the two products in a step."""
        operations = 4 * self.heads * (self.queries / self.ranks) * (self.keys / self.ranks) * self.width
        return operations / (2 if self.causal else 1) / self.rate

    @property
    def sending(self) -> float:
        """Seconds until a step's keys and values have arrived."""
        return self.latency + self.sent / self.bandwidth

    @property
    def one_after_the_other(self) -> float:
        """Seconds of a call that computes and sends in turn."""
        return self.ranks * self.computing + (self.ranks - 1) * self.sending

    @property
    def overlapped(self) -> float:
        """Seconds of a call that sends a block while it computes with the previous one."""
        return self.computing + (self.ranks - 1) * max(self.computing, self.sending)

    @property
    def held(self) -> float:
        """Bytes of a rank's arrays: q and the output, its keys and values, and the arriving ones."""
        rows = 2 * self.heads * self.queries + 4 * self.key_heads * self.keys
        return rows / self.ranks * self.width * self.size


# The part of a rank.


def shards(rank: int, ranks: int, queries: int, keys: int, heads: int) -> tuple[np.ndarray, ...]:
    """q, k and v of a rank, float32 (1, H, length / ranks, D), from its number.

    Its rows point at keys of all ranks in turn, so that one key of a block decides a row: with plain random numbers,
    the mean over 2²⁰ values hardly changes without a block.
    """
    k, v = _drawn(rank, ranks, keys, heads)
    q = np.empty((1, heads, queries // ranks, WIDTH), np.float32)
    for other in range(ranks):
        rows = q[:, :, other::ranks]
        theirs = k if other == rank else _drawn(other, ranks, keys, heads)[0]
        at = np.random.default_rng((8, rank, other)).integers(0, keys // ranks, rows.shape[2])
        rows[:] = POINTING * theirs[:, :, at]
    return q, k, v


def _drawn(rank: int, ranks: int, keys: int, heads: int) -> np.ndarray:
    rng = np.random.default_rng((7, rank))
    return rng.standard_normal((2, 1, heads, keys // ranks, WIDTH), dtype=np.float32)


def of_rank(rank: int, ranks: int, meeting: str, queries: int, keys: int, heads: int, repeats: int) -> dict[str, Any]:
    """The output of a rank's rows, seconds of calls, of one block's kernel and of one rotation, and its peak memory."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import scaled_dot_product_attention

    from attention_conformance.impls.torch import ring as written
    from attention_conformance.impls.torch import rings

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    group = dist.group.WORLD
    base = peak_bytes()
    q, k, v = map(torch.from_numpy, shards(rank, ranks, queries, keys, heads))

    def timed(call: Callable[[], Any]) -> float:
        dist.barrier()
        started = time.perf_counter()
        call()
        dist.barrier()
        return time.perf_counter() - started

    found: list[torch.Tensor] = []
    calls = [timed(lambda: found.append(rings.rotating(q, k, v, group=group))) for _ in range(repeats)]
    peak = peak_bytes()
    both = torch.cat([k, v], dim=3)
    blocks = [timed(lambda: scaled_dot_product_attention(q, k, v)) for _ in range(repeats)] if repeats > 1 else []
    turns = [timed(lambda: written.passed_on(both, group)) for _ in range(repeats)] if ranks > 1 else []
    return {"output": found[-1].numpy(), "calls": calls, "blocks": blocks, "turns": turns, "held": peak - base}


def over(ranks: int, queries: int, keys: int, heads: int, repeats: int) -> list[dict[str, Any]]:
    """Results of every rank, each in a process with its share of the cores."""
    cores = max(1, threads.usable_cores() // ranks)
    environment = {**threads.environment(cores), **ENGINES[Framework.TORCH].environment(ranks)}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()), "meeting")
        workers = [stack.enter_context(closing(Worker(environment))) for _ in range(ranks)]
        pool = stack.enter_context(ThreadPoolExecutor(ranks))
        job = "studies.ranks:of_rank"
        given = [
            pool.submit(worker.call, job, rank, ranks, str(place), queries, keys, heads, repeats, timeout=LIMIT)
            for rank, worker in enumerate(workers)
        ]
        return [each.result() for each in given]


# The judge.


def share(outputs: Sequence[np.ndarray], ranks: int, queries: int, keys: int, heads: int) -> float:
    """The worst share of the error bound in sampled rows of the outputs of all ranks.

    Raises NotClose for a row that is wrong.
    """
    parts = [shards(rank, ranks, queries, keys, heads) for rank in range(ranks)]
    q, k, v = (np.concatenate(each, axis=2) for each in zip(*parts, strict=True))
    return float(assert_close(np.concatenate(outputs, axis=2), q, k, v).share)


def measure(tokens: int = TOKENS, queries: int = QUERIES, ranks: int = RANKS, timed: int = TIMED) -> dict[str, Any]:
    """The judged call, and the timed ones over 1 to 8 ranks."""
    found = over(ranks, queries, tokens, 1, 1)
    started = time.perf_counter()
    worst = share([each["output"] for each in found], ranks, queries, tokens, 1)
    judged = {
        "tokens": tokens,
        "queries": queries,
        "ranks": ranks,
        "seconds": max(each["calls"][0] for each in found),
        "held": max(each["held"] for each in found),
        "share": worst,
        "judging": time.perf_counter() - started,
        "judge": peak_bytes(),
    }
    times = {}
    for count in OVER:
        runs = over(count, timed, timed, HEADS, REPEATS)
        share([each["output"] for each in runs], count, timed, timed, HEADS)
        slowest = {name: [max(each[name][n] for each in runs) for n in range(REPEATS)] for name in ("calls", "blocks")}
        turns = [max(each["turns"][n] for each in runs) for n in range(REPEATS)] if count > 1 else [0.0]
        middle = {name: statistics.median(values) for name, values in {**slowest, "turns": turns}.items()}
        times[str(count)] = middle
    versions = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"judged": judged, "timed": timed, "times": times, "versions": versions}


# The tables.


def judged(found: Measured) -> str:
    """Markdown: the long call."""
    one = found["judged"]
    cost = Cost(one["queries"], one["tokens"], 1, 1, WIDTH, FLOAT, one["ranks"], 1, 1, 0)
    heads = ["keys", "queries", "ranks", "seconds", "MiB of arrays a rank", "MiB more at most", "share of the bound"]
    heads += ["seconds of the judge", "GiB of the judge"]
    row = [f"{one['tokens']:,}", f"{one['queries']:,}", one["ranks"], f"{one['seconds']:.0f}", f"{cost.held / MIB:.0f}"]
    row += [f"{one['held'] / MIB:.0f}", f"{one['share']:.2g}", f"{one['judging']:.0f}", f"{one['judge'] / GIB:.1f}"]
    return f"{markdown(heads, [row], left=())}\n\n{sentence(found, f'One head, D = {WIDTH}, float32')}"


def costs(found: Measured) -> str:
    """Markdown: the measurements next to the model."""
    rows = []
    for count, one in found["times"].items():
        ranks, length = int(count), found["timed"]
        call = Cost(length, length, HEADS, HEADS, WIDTH, FLOAT, ranks, 1, 1, 0)
        # The measured kernel and exchange give rate and bandwidth; the model is of the call that consists of them.
        cost = replace(call, rate=call.computing / one["blocks"], bandwidth=call.sent / (one["turns"] or 1))
        shown = f"{cost.sent / MIB:.2f}" if ranks > 1 else "–"
        turns = f"{1000 * one['turns']:.1f}" if ranks > 1 else "–"
        model = f"{cost.overlapped:.2f} to {cost.one_after_the_other:.2f}"
        held = f"{cost.held / MIB:.1f}"
        rows.append([ranks, shown, f"{1000 * one['blocks']:.0f}", turns, model, f"{one['calls']:.2f}", held])
    heads = ["ranks", "MiB a step", "ms of a block", "ms of a rotation", "model, s", "measured, s"]
    heads += ["MiB of arrays a rank"]
    shape = f"{found['timed']:,} rows and keys, {HEADS} heads, D = {WIDTH}, float32; medians of {REPEATS} calls"
    return f"{markdown(heads, rows, left=())}\n\n{sentence(found, shape)}"


#: On paper: a prefill of 2²⁰ tokens by a model with grouped heads, on accelerators in several nodes.
PAPER = Cost(2**20, 2**20, 32, 8, 128, 2, 64, 400e12, 50e9, 10e-6, causal=True)


def paper(found: Measured) -> str:
    """Markdown: the model from 64 ranks on, under assumptions."""
    rows = []
    for ranks in (64, 128, 256, 512, 1024):
        cost = replace(PAPER, ranks=ranks)
        steps = [f"{1e3 * cost.computing:.3f}", f"{1e3 * cost.sending:.3f}"]
        hidden = "yes" if cost.computing >= cost.sending else f"{100 * cost.computing / cost.sending:.0f} %"
        whole = [f"{1e3 * cost.overlapped:.0f}", f"{1e3 * cost.one_after_the_other:.0f}"]
        moved = [f"{cost.moved / GIB:.2f}", f"{cost.held / MIB:.0f}"]
        rows.append([ranks, f"{cost.sent / MIB:.1f}", *steps, hidden, *whole, *moved])
    heads = ["ranks", "MiB a step", "computing, ms", "sending, ms", "hidden", "overlapped, ms", "in turn, ms"]
    heads += ["GiB sent by a rank", "MiB held by a rank"]
    said = (
        f"Assumed, not measured: {PAPER.queries:,} rows and keys, {PAPER.heads} query heads over {PAPER.key_heads} key"
        f" heads, D = {PAPER.width}, bfloat16, causal in zigzag; {PAPER.rate / 1e12:.0f} TFLOP/s"
        f" and {PAPER.bandwidth / 1e9:.0f} GB/s a rank, {1e6 * PAPER.latency:.0f} µs before a message; every link is as"
        " good as every other, and no rank is later than another."
    )
    return f"{markdown(heads, rows, left=())}\n\n{said}"


STUDY = Study(
    "ranks",
    "a ring over 2²⁰ tokens judged, and its cost over 1 to 8 ranks beside a model",
    measure,
    {"impls/RANKS.md#judged": judged, "impls/RANKS.md#costs": costs, "impls/RANKS.md#paper": paper},
    {
        "--tokens": {"type": int, "default": TOKENS, "help": "keys of the judged call (default: %(default)s)"},
        "--queries": {"type": int, "default": QUERIES, "help": "its queries (default: %(default)s)"},
        "--ranks": {"type": int, "default": RANKS, "help": "its ranks (default: %(default)s)"},
        "--timed": {"type": int, "default": TIMED, "help": "rows and keys of the timed calls (default: %(default)s)"},
    },
)
