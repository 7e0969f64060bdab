"""Paired comparison of cells: base and new alive at the same time, in fresh pairs of processes, one batch each a round.

A cell is measured in pairs of processes until the interval of its ratio is narrow.  The rule never looks at the ratio
itself, so that it does not stop just when chance shows a change.
"""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from attention_conformance.bench.analysis.statistics import Interval, Verdict, judge, paired_process_runs
from attention_conformance.bench.paired import worker
from attention_conformance.bench.paired.revisions import Revision, RevisionError
from attention_conformance.bench.roofline.costs import flops
from attention_conformance.bench.roofline.peaks import product_dtypes
from attention_conformance.bench.sampling.sampler import Batch
from attention_conformance.bench.timing.protocol import LAST, UNSEEN, UNSEEN_CHECKED, UNSEEN_LONGER
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.cheating import Job
from attention_conformance.bench.validity.checks import (
    FIRST,
    Call,
    Invalid,
    References,
    Unstable,
    cause_of_first_call,
    check,
    repeated,
)
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.arguments import SETS
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Framework, Profile
from attention_conformance.impls.interpreters import NOT_TIMED
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Crashed, Place, TimedOut, Worker
from attention_conformance.impls.process.threads import usable_cores

#: The module of the other suite whose functions are called.
MODULE = "attention_conformance.bench.paired.worker"

#: Seconds after which a job is given up; a compilation takes up to 12 s on two cores.
TIMEOUT = 180.0

#: A change must have a ratio beyond LEAST and an interval beyond MARGIN.  Both are smaller than for runs one after the
#: other (bench.analysis.statistics), as rounds leave less scatter: bench/PAIRED.md has how much, and what this finds.
LEAST = 1.03
MARGIN = 1.01

#: The workers, in the order in which ratios are formed: new ÷ base.
BASE, NEW = "base", "new"

#: Most calls of a batch: as many as fit in it for the shortest kernels (20 µs).
CALLS = 500

#: Meaning of a status of bench.sampling.sampler for a cell that has no time without being at fault.
WITHOUT_TIME = {"unsupported": "unsupported", "memory": "out of memory"}

#: Fewest rounds in a pair of processes that show anything.
FEWEST = 3

#: Implementations that each worker can run: paired.worker.offer.
Offers = dict[str, dict[str, Any]]


@functools.cache
def unrandomized() -> tuple[str, ...]:
    """The command that runs another without random addresses; empty where there is none, or the system refuses."""
    setarch = shutil.which("setarch")
    if setarch is None:
        return ()
    command = (setarch, "--addr-no-randomize")
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)  # noqa: S603
    return command if tried.returncode == 0 else ()


class Process(Worker):
    """Worker of base or new, stopped by a signal between its jobs; workers of one ``lot`` lay out their memory alike.

    The place of memory decides some percent of a kernel's time (Mytkowicz et al. 2009, "Producing wrong data without
    doing anything obviously wrong!", https://doi.org/10.1145/1508244.1508275), and is random in every process: the
    system draws addresses, Python's hashes the order of allocations.  Base and new have the same lot, and every pair
    another one.
    """

    def __init__(self, revision: Revision, lot: int = 0) -> None:
        environment = {**allocator.environment(), "PYTHONHASHSEED": str(lot)}
        place = Place(revision.python, revision.suite, revision.folder, unrandomized())
        super().__init__(environment, place=place, stop_idle=True)

    def job(self, function: str, *given: Any) -> Any:
        """Run a function of MODULE; raises as ``call`` does."""
        return self.call(f"{MODULE}:{function}", *given, timeout=TIMEOUT)


@dataclass(frozen=True)
class Plan:
    """Plan: fresh pairs of processes, rounds in a pair, and seconds of each batch of a round."""

    pairs: int = 6
    #: More pairs follow until the interval is within this share of the ratio (half of the distance of a change of 5 %
    #: from MARGIN), or there are ``most_pairs``.
    precision: float = 0.02
    most_pairs: int = 24
    rounds: int = 12
    round_seconds: float = 0.01
    #: Seconds that a cell may take in total; calls that are longer than a batch get fewer rounds, at least FEWEST.
    limit: float = 60.0


@dataclass(frozen=True)
class Task:
    """A cell of a paired comparison: an implementation that both workers have, and a workload."""

    implementation: str
    device: str
    dtype: str
    workload: Workload
    #: Share by which every call of the new worker takes longer: an injected change, to see whether it is found.
    slowdown: float = 0.0

    @property
    def key(self) -> str:
        """Name in the workers."""
        injected = f" {self.slowdown:+.0%}" if self.slowdown else ""
        return f"{self.implementation} {self.device} {self.dtype} {self.workload.name}{injected}"


@dataclass
class Result:
    """Result of a cell.  ``outcome`` is "timed", "unstable", "invalid" (``clause`` says by what) or "skipped".

    An unstable one has rounds and no verdict: a result was wrong once, and right in every equal call that followed.
    """

    task: Task
    outcome: str = "timed"
    clause: str = ""
    reason: str = ""
    #: The worker at fault, "" for neither.
    worker: str = ""
    #: Seconds of the calls, by worker, pair of processes and round.
    rounds: dict[str, list[list[list[float]]]] = field(default_factory=lambda: {BASE: [], NEW: []})
    shares: dict[str, float] = field(default_factory=dict)
    #: Times of the jobs of the rounds.
    jobs: dict[str, list[Job]] = field(default_factory=lambda: {BASE: [], NEW: []})
    #: Seconds that it took so far.
    seconds: float = 0.0
    #: Results that were wrong once: the worker, the pair of processes, and the finding.
    wrong_once: list[tuple[str, int, Unstable]] = field(default_factory=list)

    def fail(self, outcome: str, reason: str, worker: str = "", clause: str = "") -> None:
        """Record why the cell has no time."""
        self.outcome, self.reason, self.worker, self.clause = outcome, reason, worker, clause

    @property
    def excused(self) -> bool:
        """Whether it is unstable in only one pair of processes, and by a known cause, which is not the change."""
        return self.outcome == "unstable" and len(self.wrong_once) == 1 and self.wrong_once[0][2].known

    def end(self) -> None:
        """Finish after the last pair: a cell with a result that was wrong once has times that are shown apart."""
        if self.outcome == "timed" and self.wrong_once:
            ratio = self.ratio
            assert ratio is not None
            workers = [name for name, _, _ in self.wrong_once]
            found, worker = self.wrong_once[0][2], BASE if BASE in workers else NEW
            ends = f" ({ratio.low:.3f} to {ratio.high:.3f})" if ratio.known else ""
            apart = f"new ÷ base {ratio.value:.3f}{ends} apart: {found.text}"
            pairs = len({pair for _, pair, _ in self.wrong_once})
            self.fail("unstable", f"{apart}; in {pairs} of {self.pairs} pairs of processes", worker, found.clause)

    @property
    def ratio(self) -> Interval | None:
        """New ÷ base, None if it was not timed."""
        return paired_process_runs(self.rounds[BASE], self.rounds[NEW]) if self.outcome == "timed" else None

    @property
    def pairs(self) -> int:
        """Pairs of processes that ran it."""
        return len(self.rounds[BASE])

    def goes_on(self, plan: Plan) -> bool:
        """Whether another pair of processes must run it: decided by the interval of its ratio, never by the ratio."""
        if self.outcome != "timed" or self.pairs < plan.pairs:
            return self.outcome == "timed"
        assert self.ratio is not None
        return self.ratio.spread > plan.precision and self.pairs < plan.most_pairs and self.seconds < plan.limit

    def verdict(self, least: float = LEAST, margin: float = MARGIN) -> Verdict | None:
        """The verdict on the ratio, None if it was not timed."""
        return None if self.ratio is None else judge(self.ratio, least, margin)


class PairedComparison:
    """Measures cells on two revisions or environments."""

    def __init__(self, base: Revision, new: Revision, plan: Plan | None = None, seed: int = 0) -> None:
        """Begin with nothing measured; ``seed`` draws the orders within rounds, and all inputs."""
        self.revisions = {BASE: base, NEW: new}
        self.plan, self.seed = plan or Plan(), seed
        self._expected = References()
        #: Operations per second of the best matrix products that were seen, by worker, framework, device and dtypes.
        self._peaks: dict[tuple[str, str, str, tuple[str, ...]], float] = {}
        self._order = random.Random(seed)  # noqa: S311  (an order within rounds)

    def offers(self, patterns: list[str], device: str, dtype: str) -> Offers:
        """Implementations that each worker can run.  Raises RevisionError for a revision that cannot run the suite."""
        return {name: self._offer(name, patterns, device, dtype) for name in self.revisions}

    def _within_peak(self, one: Result, offers: Offers) -> None:
        """Fail a cell in which a worker seems faster than the machine, by its own framework's matrix product."""
        for name, pairs in one.rounds.items():
            seconds = median(call for rounds in pairs for batch in rounds for call in batch)
            has, device = offers[name]["implementations"][one.task.implementation], one.task.device
            dtypes = product_dtypes(one.task.dtype, device, Profile(has["profile"]))
            measure = functools.partial(self._peak, (name, has["framework"], device, dtypes))
            try:
                cheating.beyond_peak(cheating.share_of_peak(flops(one.task.workload), seconds, measure))
            except Invalid as error:
                one.fail("invalid", error.text, name, error.clause)
                return

    def _peak(self, key: tuple[str, str, str, tuple[str, ...]], seconds: float) -> float:
        """The best matrix product that was seen in a worker's framework, on the device, in the dtypes."""
        name, framework, device, dtypes = key
        if seconds:
            with contextlib.closing(Process(self.revisions[name])) as process, contextlib.suppress(Crashed, TimedOut):
                # Each job measures its dtype and float32.
                for dtype in [each for each in dtypes if each != "float32"] or ["float32"]:
                    found = process.job("peak", framework, device, dtype, seconds)
                    self._peaks[key] = max(found, self._peaks.get(key, 0.0))
        return self._peaks.get(key, 0.0)

    def run(self, tasks: Iterable[Task], offers: Offers, notify: Callable[[str], None]) -> list[Result]:
        """Measure all cells in fresh pairs of processes.  ``notify`` gets a line on each step."""
        results = [Result(task) for task in tasks]
        for one in results:
            _skip_what_is_missing(one, offers)
        for pair in range(max(self.plan.pairs, self.plan.most_pairs)):
            for library, group in _by_process([one for one in results if one.goes_on(self.plan)], offers):
                processes = {name: Process(revision, lot=pair + 1) for name, revision in self.revisions.items()}
                try:
                    _load(group[0].task, processes)
                    for one in group:
                        at = f"pair {pair + 1} of {self.plan.pairs} to {self.plan.most_pairs}"
                        notify(f"{at}, {library}: {one.task.key}")
                        started = time.perf_counter()
                        self._pair(one, processes, offers, pair)
                        one.seconds += time.perf_counter() - started
                finally:
                    for each in processes.values():
                        each.close()
        notify("the machine's peak")
        for one in results:
            if one.outcome == "timed":
                self._within_peak(one, offers)
            one.end()
        return results

    def _pair(self, one: Result, processes: dict[str, Process], offers: Offers, pair: int) -> None:
        task, plan = one.task, self.plan
        # Each pair of processes has other values, so that no result of an earlier one can be reused.
        seeds = range(self.seed + SETS * pair, self.seed + SETS * (pair + 1))
        inputs = [arguments.make(task.workload, task.dtype, seed) for seed in seeds]
        seconds = {}
        for name, process in processes.items():
            slowdown = task.slowdown if name == NEW else 0.0
            given = (task.key, task.implementation, task.workload.name, task.device, task.dtype, inputs, slowdown)
            begun = _job(one, process, name, "begin", *given)
            if begun is None or not self._right(one, name, process, offers, pair, inputs[0], FIRST, begun["results"]):
                return
            seconds[name] = begun["seconds"]
        both = sum(max(plan.round_seconds, call) for call in seconds.values())
        count = min(plan.rounds, int(plan.limit / plan.pairs / both))
        if count < FEWEST:
            reason = f"{FEWEST} rounds in {plan.pairs} pairs take {FEWEST * plan.pairs * both:.0f} s"
            one.fail("skipped", f"over the time budget: {reason}, allowed {plan.limit:g} s")
            return
        batches = self._rounds(one, processes, count, max(seconds.values()))
        for name, process in processes.items():
            if one.outcome != "timed":
                return
            right = functools.partial(self._right, one, name, process, offers, pair, inputs[0])
            if self._honest(one, name, batches[name], process, right):
                right(LAST, batches[name][-1].results)
                _job(one, process, name, "end", task.key)

    def _rounds(self, one: Result, processes: dict[str, Process], count: int, call: float) -> dict[str, list[Batch]]:
        """Make the rounds: a batch of each worker, in an order drawn for each.  The last batches have results."""
        batches: dict[str, list[Batch]] = {name: [] for name in processes}
        most = 1 if call >= self.plan.round_seconds else CALLS
        for name in processes:
            one.rounds[name].append([])
        for number in range(count, 0, -1):
            names = list(processes)
            self._order.shuffle(names)
            last = number == 1
            for name in names:
                given = (one.task.key, self.plan.round_seconds, most, LAST if last else number, last)
                taken = _job(one, processes[name], name, "batch", *given)
                if taken is None:
                    return batches
                batches[name].append(Batch(**taken))
                spent = processes[name].spent
                assert spent is not None
                one.jobs[name].append(cheating.job(batches[name][-1], spent, usable_cores()))
            for name in names:
                one.rounds[name][-1].append(list(batches[name][-1].seconds))
        return batches

    def _honest(
        self, one: Result, name: str, batches: Sequence[Batch], process: Process, right: Callable[..., bool]
    ) -> bool:
        """Whether the worker is as fast as it looks, by the rules of ``pytest bench`` (bench.validity.cheating)."""

        def cold_calls() -> Sequence[float]:
            found = _job(one, process, name, "cold_calls", one.task.key, cheating.LEAST_PAIRS)
            return () if found is None else found["seconds"]

        def longer() -> list[Job]:
            most = CALLS * cheating.LONGER
            found = []
            for number in range(cheating.LONGER_JOBS):
                given = (one.task.key, cheating.LONGER * self.plan.round_seconds, most, UNSEEN_LONGER + number, False)
                taken, spent = _job(one, process, name, "batch", *given), process.spent
                if taken is not None and spent is not None:
                    found.append(cheating.job(Batch(**taken), spent, usable_cores()))
            return found

        @functools.cache
        def checked(number: int) -> Batch | None:
            given = (one.task.key, self.plan.round_seconds, CALLS, UNSEEN_CHECKED + number, True)
            taken = _job(one, process, name, "batch", *given)
            if taken is None or not right(UNSEEN_CHECKED + number, taken["results"]):
                return None
            batch = Batch(**taken)
            cheating.asynchronous_return(batch)
            return replace(batch, results={})

        def more(count: int) -> Iterator[Batch]:
            for batch in map(checked, range(count)):
                if batch is None:  # the cell has no time any more
                    return
                yield batch

        try:
            cheating.asynchronous_return(batches[-1])
            cheating.deferred(batches, more)
            cheating.agreeing_clocks(one.jobs[name], longer)
            cheating.cached_result(one.rounds[name][-1], cold_calls, more)
        except Invalid as error:
            if one.outcome == "timed":  # else it broke in the calls with cold caches, which says more
                one.fail("invalid", error.text, name, error.clause)
        return one.outcome == "timed"

    def _right(
        self,
        one: Result,
        name: str,
        process: Process,
        offers: Offers,
        pair: int,
        first: worker.Inputs,
        number: int,
        results: dict[str, Any],
    ) -> bool:
        """Whether the results on the first inputs, or on new ones with this number, are within their bounds.

        The cell is invalid if not; one that is wrong once a pair, and right when called again, continues.
        """
        task, has = one.task, offers[name]["implementations"][one.task.implementation]
        given = first if number == FIRST else arguments.fresh(task.workload, *first, number)
        # Equal numbers give equal inputs and rows in every cell of the workload, so the reference is computed once.
        seed = 2 * pair + (number != FIRST) + (number >= UNSEEN) * number
        call = Call(task.workload, *given, task.dtype, Profile(has["profile"]), seed)

        def again() -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = process.job("again", task.key, number)
            except Exception:  # the process is gone, or its suite is older than this job
                return None
            return answer["results"] if answer["status"] == "returned" else None

        def right(got: dict[str, Any]) -> float:
            return check(call, got, seed, self._expected.expect)

        try:
            share = right(results)
        except Invalid as error:
            cause = cause_of_first_call(Framework(has["framework"]), task.device, number == FIRST)
            found = repeated(error, again, right, cause)
            if not isinstance(found, Unstable) or any((name, pair) == wrong[:2] for wrong in one.wrong_once):
                one.fail("invalid", found.text, name, found.clause)
                return False
            share = found.share
            one.wrong_once.append((name, pair, found))
            if number != FIRST:  # a kernel that is wrong on new inputs is wrong again
                new = _job(one, process, name, "again", task.key, UNSEEN)
                if new is None or not self._right(one, name, process, offers, pair, first, UNSEEN, new["results"]):
                    return False
        one.shares[name] = max(share, one.shares.get(name, 0.0))
        return True

    def _offer(self, name: str, patterns: list[str], device: str, dtype: str) -> dict[str, Any]:
        revision = self.revisions[name]
        process = Process(revision)
        try:
            form = process.job("form")
            if form != worker.FORM:
                raise RevisionError(
                    f"{name} {revision.name} has form {form} of the paired comparison, this suite {worker.FORM}"
                )
            found: dict[str, Any] = process.job("offer", patterns, device, dtype)
            return found
        except Crashed as error:
            last = (error.stderr.strip().splitlines() or [str(error)])[-1]
            raise RevisionError(f"{name} {revision.name} ({revision.python}) cannot run the suite: {last}") from None
        except RevisionError:
            raise
        except Exception as error:  # what the other revision's own code raises
            if MODULE in str(error):
                error = RevisionError("its suite is older than the paired comparison, and cannot be compared")
            raise RevisionError(f"{name} {revision.name}: {error}") from None
        finally:
            process.close()


def _load(task: Task, processes: dict[str, Process]) -> None:
    """Have both workers import their libraries at the same time; a failure happens again when it counts."""
    for process in processes.values():
        process.start()

    def load(process: Process) -> None:
        with contextlib.suppress(Exception):
            process.job("load", task.implementation, task.device, task.dtype)

    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(load, processes.values()))


def _job(one: Result, process: Process, name: str, function: str, *given: Any) -> Any:
    """The job's answer, or None if it killed its process or has no times: then the cell fails."""
    try:
        answer = process.job(function, *given)
    except (Crashed, TimedOut) as error:
        one.fail("invalid", str(error), name, "crashed" if isinstance(error, Crashed) else "timeout")
        return None
    if answer is None or answer["status"] == "returned":
        return answer
    if answer["status"] in WITHOUT_TIME:
        one.fail("skipped", f"{WITHOUT_TIME[answer['status']]}: {answer['text']}", name)
    else:
        one.fail("invalid", answer["text"], name, "clock" if answer["status"] == "clock" else "error")
    return None


def _skip_what_is_missing(one: Result, offers: Offers) -> None:
    """Skip a cell that one of the workers does not have, or has without the keywords that it needs."""
    for name, offer in offers.items():
        has = offer["implementations"].get(one.task.implementation)
        absent = offer["not_installed"].get(one.task.implementation)
        lacks = arguments.keywords(one.task.workload) - set(has["keywords"]) if has else set()
        if absent:
            one.fail("skipped", f"not installed: {', '.join(absent)}", name)
        elif has is None:
            one.fail("skipped", "no such implementation on this device, in this dtype", name)
        elif lacks:
            one.fail("skipped", f"unsupported: no keyword {', '.join(sorted(lacks))}", name)
        elif has.get("interpreted"):  # an older suite's worker does not say so
            one.fail("skipped", NOT_TIMED, name)


def _by_process(results: list[Result], offers: Offers) -> Iterator[tuple[str, list[Result]]]:
    """The timed cells by the process that runs them: libraries do not share one."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(offers[BASE]["implementations"][one.task.implementation]["process"], []).append(one)
    yield from groups.items()
