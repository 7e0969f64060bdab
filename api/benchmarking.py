"""``benchmark``: a quick, checked timing of a function from Python, and its report.

It does for a function object what ``attention-conformance bench`` does for files and names.  The protocol is the
bench's own (bench/README.md): fresh processes, rounds of batches, results of the timed calls compared with the
reference; a function that only looks fast is invalid.
"""

from __future__ import annotations

import html
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from attention_conformance.checking import as_list
from attention_conformance.conformance.judging.message import clause_lines
from attention_conformance.conformance.targets import DEVICES, Selection, examine, refuse_unknown
from attention_conformance.impls.contract import DTYPES, Function, Implementation, ImplementationError
from attention_conformance.impls.given import given
from attention_conformance.impls.process.threads import usable_cores
from attention_conformance.impls.select import select

if TYPE_CHECKING:
    import pandas as pd

    from attention_conformance.bench.timing.session import Session
    from attention_conformance.bench.validity.outcomes import Cell, Outcome
    from attention_conformance.bench.workloads.workload import Workload

#: Packages that timing needs in addition to those of ``check``: the extra ``bench``.
NEEDS = ("rich", "scipy")

#: The workload that is timed if no shape is given.
SHAPE = "prefill-b1h8d64s512"

#: A median whose interval spreads further than this share of it is unstable.
UNSTABLE = 0.1

#: (B, H, S, D), or as in the gate (B, Hq, Hkv, Sq, Sk, D) and (…, Dv); or the name of a workload.
Size = str | Sequence[int]


@dataclass(frozen=True)
class Timing:
    """Timing of a function at one size and dtype, or why there is none.

    Attributes
    ----------
    name, workload, dtype, device
        What was timed; the workload's name has its sizes and options (bench/README.md).
    outcome
        ``timed``, ``unstable`` (a result was wrong once, and right in every equal call that followed: it has a time,
        and no ratio), ``invalid`` (a wrong result, or what only looks fast) or ``skipped`` (it refuses, lacks an
        option, or would take too much).
    clause, reason
        Why there is no time: the clause that is broken, or the rule (``clock``, ``peak``, ``cached result``, …).
    seconds
        The median of all calls; None without a time.
    interval
        95 % interval of the median, from the scatter of batches and processes; with fewer than three processes that of
        the median of these very processes, as it cannot know how much others would differ.
    spread
        The interval's larger distance from the median, as a share of it.
    unstable
        Why the median is unreliable; "" if it is reliable.
    calls, processes
        How many calls were timed, and in how many processes.
    flops_per_second
        Operations of the formula (masked pairs count nothing) ÷ the median.
    share_of_peak
        ``flops_per_second`` ÷ that of the framework's best matrix product on this machine; None if not measured.
    error_share
        Error ÷ bound of the worst element that was checked.
    threads
        Threads that worked at the same time: processor time ÷ time.
    prepare_seconds, first_call_seconds
        Seconds in the first process before timing: building or compiling, and the first call.
    samples
        Seconds of every call, by process and batch.
    """

    name: str
    workload: str
    dtype: str
    device: str
    outcome: str
    clause: str = ""
    reason: str = ""
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    spread: float | None = None
    unstable: str = ""
    calls: int = 0
    processes: int = 0
    flops_per_second: float | None = None
    share_of_peak: float | None = None
    error_share: float | None = None
    threads: int | None = None
    prepare_seconds: float | None = None
    first_call_seconds: float | None = None
    samples: tuple[tuple[tuple[float, ...], ...], ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether there is a time and every result was right; ``unstable`` says what the time is worth."""
        return self.outcome == "timed"

    @property
    def message(self) -> str:
        """Reason why there is no time, or what is wrong despite it, with the clause in full; "" if all is right."""
        if self.outcome == "timed":
            return ""
        head = f"{self.name} at {self.workload} in {self.dtype}: {self.outcome}: "
        told = clause_lines(self.clause)
        more = [f"check({self.name}) says which mistake it looks like"] if told and self.name.isidentifier() else []
        return "\n".join([head + ": ".join(filter(None, (self.clause, self.reason))), *told, *more])


@dataclass(frozen=True)
class Ratio:
    """Ratio of the times of two functions, from batches that were measured in the same rounds.

    Attributes
    ----------
    name, against
        The function, and the one that it is compared with.
    workload, dtype, device
        Name of the size, "float32" and the like, "cpu" or "cuda".
    ratio
        Seconds of a call ÷ seconds of the other's.
    interval
        95 % confidence interval of the ratio, from the scatter of processes; None for fewer than three.
    verdict
        Verdict on ``name``: "faster", "slower", "same" or "unclear", as ``compare`` decides (a change of at least 5 %
        whose interval lies beyond 2 %); always "unclear" without an interval.
    """

    name: str
    against: str
    workload: str
    dtype: str
    device: str
    ratio: float
    interval: tuple[float, float] | None
    verdict: str

    @property
    def reason(self) -> str:
        """Reason why there is no interval, "" if there is one."""
        from attention_conformance.bench.analysis.statistics import LEAST_PROCESS_RUNS, TOO_FEW

        too_few = TOO_FEW.format(least=LEAST_PROCESS_RUNS, runs="processes")
        return "" if self.interval else f"{too_few}: processes={LEAST_PROCESS_RUNS} gives an interval and a verdict"


@dataclass(frozen=True)
class BenchmarkReport:
    """The times of a function, and how it compares.

    Attributes
    ----------
    timings
        Timings of the function and of those that it is compared with, by size and dtype.
    ratios
        The function ÷ each other one, where both have a time.
    threads
        How many threads every library was given.
    seconds
        How long it took.
    """

    name: str
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]
    threads: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the function has a time at every size."""
        return all(timing.ok for timing in self.timings if timing.name == self.name)

    @property
    def timing(self) -> Timing:
        """The function's first timing: the only one for one size and dtype."""
        return next(timing for timing in self.timings if timing.name == self.name)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join(
            [self._verdict(), *_grid(_HEADS, self._rows()), *_grid(_RATIO_HEADS, self._compared()), *self._reasons()]
        )

    __repr__ = __str__

    def _verdict(self) -> str:
        states = [timing.outcome for timing in self.timings]
        counts = ", ".join(f"{states.count(each)} {each}" for each in dict.fromkeys(states))
        plural = "" if self.threads == 1 else "s"
        return f"{self.name}: {counts}, {self.threads} thread{plural}, in {self.seconds:.1f} s"

    def _rows(self) -> list[tuple[str, ...]]:
        return [_row(timing) for timing in self.timings if timing.seconds is not None]

    def _compared(self) -> list[tuple[str, ...]]:
        return [
            (f"{r.name} ÷ {r.against}", r.workload, r.dtype, f"{r.ratio:.3f}",
             "{:.3f} … {:.3f}".format(*r.interval) if r.interval else "unknown", r.verdict)
            for r in self.ratios
        ]  # fmt: skip

    def _reasons(self) -> list[str]:
        """Reasons why there is no time, no reliable one, or no verdict on a ratio."""
        shaky = (f"unstable: {t.name} at {t.workload} in {t.dtype}: {t.unstable}" for t in self.timings if t.unstable)
        unclear = dict.fromkeys(f"unclear: {ratio.reason}" for ratio in self.ratios if ratio.reason)
        return [*(timing.message for timing in self.timings if timing.message), *shaky, *unclear]

    def _repr_html_(self) -> str:
        """The report as a notebook shows it."""
        color = "#1a7f37" if self.ok else "#cf222e"
        parts = [f'<div style="font-family: monospace"><b style="color: {color}">{html.escape(self._verdict())}</b>']
        tables = ((_HEADS, self._rows()), (_RATIO_HEADS, self._compared()))
        parts += [tabulate(rows, heads, "html", disable_numparse=True) for heads, rows in tables if rows]
        parts += [f'<pre style="white-space: pre-wrap">{html.escape(line)}</pre>' for line in self._reasons()]
        return "".join([*parts, "</div>"])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data that JSON can hold."""
        plain = asdict(self)
        return {**plain, "ok": self.ok, "timings": list(plain["timings"]), "ratios": list(plain["ratios"])}

    def to_json(self) -> str:
        """``to_dict`` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each timing, without its samples.  Raises ModuleNotFoundError without pandas."""
        import pandas as pd

        rows = [{k: v for k, v in asdict(timing).items() if k != "samples"} for timing in self.timings]
        return pd.DataFrame(rows)


_HEADS = ("function", "workload", "dtype", "median", "95 % interval", "of peak", "error ÷ bound", "calls")
_RATIO_HEADS = ("compared", "workload", "dtype", "ratio", "95 % interval", "verdict")


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", *tabulate(rows, heads, "simple", disable_numparse=True).splitlines()] if rows else []


def _row(timing: Timing) -> tuple[str, ...]:
    assert timing.seconds is not None
    assert timing.interval is not None
    unit, factor = next((u, f) for u, f in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)) if timing.seconds * f >= 1 or f > 1e3)
    low, high = (f"{factor * each:.3g}" for each in timing.interval)
    return (
        timing.name,
        timing.workload,
        timing.dtype,
        f"{factor * timing.seconds:.3g} {unit}",
        f"{low} … {high}",
        "" if timing.share_of_peak is None else f"{timing.share_of_peak:.0%}",
        "" if timing.error_share is None else f"{timing.error_share:.2g}",
        str(timing.calls),
    )


def benchmark(
    function: Function | str,
    *,
    shapes: Size | Sequence[Size] = SHAPE,
    is_causal: bool = False,
    dtypes: Sequence[str] = ("float32",),
    against: Function | str | Sequence[Function | str] = (),
    framework: str | None = None,
    operator: str = "sdpa",
    device: str = "cpu",
    threads: int = 1,
    seconds: float = 0.6,
    processes: int = 3,
    isolated: bool = True,
) -> BenchmarkReport:
    """Time a function on inputs for which its results are compared with the reference.

    Parameters
    ----------
    function
        The function, as in ``check``, or what ``--impl`` takes: the name of a built-in, such as ``"torch-sdpa"``,
        ``path.py:function``.
    shapes
        One or several: (B, H, S, D); (B, Hq, Hkv, Sq, Sk, D) with another number of key heads or keys, and a seventh
        number for Dv; or the name of a workload, ``"prefill-b1h8g2d64s1024-causal"``, ``"model/gpt2"``, or a glob.
    is_causal
        Whether shapes that are numbers are causal; a workload's name says it itself.
    dtypes
        Dtypes to time, one result each; if empty, all that the function has.
    against
        Functions or names that are timed in the same rounds, for a ratio with its interval.
    framework, operator
        As in ``check``; the framework applies to every function object here.
    device
        ``cpu`` or ``cuda``.
    threads
        Threads that every library is given, on as many cores.
    seconds
        Seconds of timed calls of each function at each size, over all processes; fewer once the interval is within 2 %.
    processes
        Fresh processes of each, one after another: the chance in each process's start shows in the interval.  With
        fewer than three a ratio has no interval, and its verdict is "unclear".
    isolated
        Call the functions in processes of their own.  Otherwise they are called in this one, where a debugger sees
        them: nothing outside watches the clock, a crash ends this process, and libraries keep the threads they have.

    Returns
    -------
    BenchmarkReport
        Returned whatever the function does: one that is wrong, or only looks fast, has a message instead of a time.

    Raises
    ------
    ImplementationError, WorkloadError
        In one sentence, for a function that cannot be called or sent to a process, a misspelt name or an invalid shape.
    ModuleNotFoundError
        Without the packages of the extra ``bench``.
    """
    started = time.perf_counter()
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        raise ModuleNotFoundError(
            f"benchmark needs {' and '.join(lacking)}: pip install 'attention-conformance[bench]'", name=lacking[0]
        )
    from attention_conformance.bench.processes import Processes
    from attention_conformance.bench.timing.plan import LEAST_EACH, LIMIT, Plan, drawn_seed

    dtypes = as_list(dtypes) or list(DTYPES)
    refuse_unknown("dtypes=", dtypes, DTYPES)
    refuse_unknown("device=", [device], DEVICES)
    for name, value, least, most in (
        ("threads", threads, 1, usable_cores()),
        ("processes", processes, 1, 100),
        ("seconds", seconds, 1e-3, 3600),
    ):
        if not least <= value <= most:
            raise ImplementationError(f"{name} is {value:g}; expected {least:g} to {most:g}")
    workloads = _workloads(shapes, is_causal)
    others = [against] if isinstance(against, str) or callable(against) else list(against)
    plan = Plan(
        seconds=seconds,
        limit=LIMIT * LEAST_EACH * processes * seconds,
        process_runs=processes,
        threads=threads,
        seed=drawn_seed(),
    )
    with ExitStack() as stack:
        named: list[Implementation] = []
        for each in (function, *others):
            found = _implementation(each, framework, operator, isolated, stack)
            named += [replace(one, name=_unused(one.name, named)) for one in found]
        pool = Processes(threads, in_process=not isolated)
        stack.callback(pool.close)
        selection = examine(named, [device], dtypes, pool)
        for name, missing in selection.not_installed.items():
            raise ImplementationError(f"{name} needs {', '.join(missing)}, which is not installed")
        session = _session(selection, workloads, plan, pool)
        session.run()
        wait = session.protocol.core_wait
        timings = [_timing(cell, outcome, threads, wait) for cell, outcome in session.outcomes.items()]
    timings += _refused(named, selection, workloads, dtypes, device)
    order = {one.name: number for number, one in enumerate(named)}
    timings.sort(key=lambda t: (order[t.name], dtypes.index(t.dtype)))
    ratios = _ratios(named[0].name, timings)
    return BenchmarkReport(named[0].name, tuple(timings), tuple(ratios), threads, time.perf_counter() - started)


def _workloads(shapes: Size | Sequence[Size], is_causal: bool) -> list[Workload]:
    """The workloads of the given shapes.  Raises WorkloadError."""
    from attention_conformance.bench.workloads.presets import select as workloads_of
    from attention_conformance.bench.workloads.workload import Workload, WorkloadError

    single = isinstance(shapes, str) or all(isinstance(each, int) for each in shapes)
    found: list[Workload] = []
    for each in [shapes] if single else shapes:
        if isinstance(each, str):
            found += workloads_of([each])
            continue
        sizes = [int(n) for n in each]  # type: ignore[union-attr, arg-type]
        if len(sizes) == 4:
            b, h, s, d = sizes
            sizes = [b, h, h, s, s, d]
        if len(sizes) not in (6, 7):
            raise WorkloadError(f"a shape is (B, H, S, D), (B, Hq, Hkv, Sq, Sk, D), (…, Dv) or a name; got {each}")
        b, hq, hkv, sq, sk, d = sizes[:6]
        kind, other = ("prefill", 0) if sq == sk else ("cross", sk)
        found.append(Workload(b, hq, d, sq, is_causal, kind, hkv, sizes[6] if len(sizes) == 7 else 0, other))
    return list(dict.fromkeys(found))


def _implementation(
    each: Function | str, framework: str | None, operator: str, isolated: bool, stack: ExitStack
) -> tuple[Implementation, ...]:
    """The implementation of a function object or of a name."""
    if isinstance(each, str):
        return select([each])
    return (stack.enter_context(given(each, framework, operator, isolated=isolated)),)


def _unused(name: str, taken: Sequence[Implementation]) -> str:
    """The name, with a number if another one has it."""
    names = {one.name for one in taken}
    numbers = (name if n == 1 else f"{name}-{n}" for n in range(1, len(names) + 2))
    return next(each for each in numbers if each not in names)


def _session(selection: Selection, workloads: Sequence[Workload], plan: Any, pool: Any) -> Session:
    """The session over every function at every size.  Raises ImplementationError for a size of another operator."""
    from attention_conformance.bench.timing.progress import Progress
    from attention_conformance.bench.timing.protocol import Protocol
    from attention_conformance.bench.timing.session import Session
    from attention_conformance.bench.validity.outcomes import Cell

    operators = {target.implementation.operator for target in selection.targets}
    for workload in workloads:
        if operators and workload.operator not in operators:
            raise ImplementationError(
                f"{workload.name} is of {workload.operator}, and what is timed computes {', '.join(sorted(operators))}"
            )
    cells = [
        Cell(target, workload)
        for target in selection.targets
        for workload in workloads
        if target.implementation.operator == workload.operator
    ]
    protocol = Protocol(pool, plan, lambda implementation: selection.keywords[implementation.name])
    return Session(cells, protocol, pool, Progress(None))


def _timing(cell: Cell, outcome: Outcome, threads: int, core_wait: float | None = None) -> Timing:
    """The record of a cell; a time that beats the machine's peak is invalid."""
    from attention_conformance.bench.records import BUSY
    from attention_conformance.bench.roofline.costs import flops
    from attention_conformance.bench.validity import cheating
    from attention_conformance.bench.validity.outcomes import MEASURED

    target, name = cell.target, cell.target.implementation.name
    here = Timing(name, cell.workload.name, target.dtype, target.device, outcome.kind, outcome.clause, outcome.reason)
    if outcome.kind not in MEASURED:
        return here
    outcome, share = cheating.within_peak(cell, outcome, threads)
    if outcome.kind not in MEASURED:
        return replace(here, outcome=outcome.kind, clause=outcome.clause, reason=outcome.reason)
    interval, count = outcome.interval, flops(cell.workload)
    first = outcome.process_runs[0]
    unstable = ""
    if interval.spread > UNSTABLE:
        beside = f" calls waited {core_wait:.0%} of their time for a core;" if (core_wait or 0) > BUSY else ""
        if core_wait is None:
            beside = f" load average {os.getloadavg()[0]:.1f} on {usable_cores()} cores;"
        unstable = (
            f"its median is known only to within {interval.spread:.0%};{beside} a larger seconds= gives it more calls"
        )
    return replace(
        here,
        seconds=interval.value,
        interval=(interval.low, interval.high),
        spread=interval.spread,
        unstable=unstable,
        calls=len(outcome.seconds),
        processes=len(outcome.process_runs),
        flops_per_second=count / interval.value,
        share_of_peak=share,
        error_share=outcome.share,
        threads=outcome.threads,
        prepare_seconds=first.prepare_seconds,
        first_call_seconds=first.first_call_seconds,
        samples=tuple(process_run.batches for process_run in outcome.process_runs),
    )


def _refused(
    named: Sequence[Implementation],
    selection: Selection,
    workloads: Sequence[Workload],
    dtypes: Sequence[str],
    device: str,
) -> Iterator[Timing]:
    """Records of dtypes and devices that a function says it does not take."""
    have = {(target.implementation.name, target.dtype) for target in selection.targets}
    for one in named:
        for dtype in dtypes:
            if (one.name, dtype) not in have:
                reason = f"it does not take {dtype} on {device}, or {device} is not there"
                yield from (Timing(one.name, w.name, dtype, device, "skipped", "", reason) for w in workloads)


def _ratios(name: str, timings: Sequence[Timing]) -> list[Ratio]:
    """The function ÷ each other one, where both have a time."""
    from attention_conformance.bench.analysis import statistics

    timed: Mapping[tuple[str, str, str], Timing] = {
        (t.workload, t.dtype, t.name): t for t in timings if t.outcome == "timed"
    }
    found = []
    for (workload, dtype, other), base in timed.items():
        new = timed.get((workload, dtype, name))
        if other == name or new is None:
            continue
        # Batches with the same number were measured in the same round; one of the two may have ended some rounds later.
        runs = [(b[:n], a[:n]) for b, a in zip(base.samples, new.samples, strict=True) for n in (min(len(b), len(a)),)]
        ratio = statistics.paired_process_runs([b for b, _ in runs], [a for _, a in runs])
        verdict = statistics.judge(ratio).value
        interval = (ratio.low, ratio.high) if ratio.known else None
        found.append(Ratio(name, other, workload, dtype, new.device, ratio.value, interval, verdict))
    return found


__all__ = ["BenchmarkReport", "Ratio", "Timing", "benchmark"]
