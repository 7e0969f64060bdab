"""Cheating: what a kernel may do to look fast, and how it is detected.

* It returns what it computed before.  The last call of every batch is on inputs that it never saw; if every one of
  them takes CACHED times as long as the others do, the others did not compute, or found their inputs in a cache of
  the processor.  So it is called on inputs that it knows with cold caches: if that takes long too, it did compute.  A
  quick last call clears it only if its result is checked: others may be quick because they are wrong.
* It returns before it is done.  The results are copied right after the clock has stopped, and those copies are
  checked; the results are also read again later, and must not have changed.
* It has a clock of its own.  Times are by clocks that were bound before it was loaded (impls.process.clocks), and a
  function of ``time`` that it replaced is detected.  A clock that it replaces only during a call is not: so the call
  times that the worker reports must account for the time that its parent waited.
* It is faster than the machine: more than NOISE times as fast as the best measured matrix product.
* It computes when its result is read.  Reading the results back must not take LATE_SHARE of a call more than reading
  plain copies of them does; here too a quick reading counts only if the result is checked.

``pytest bench``, paired comparisons, the gate and ``benchmark()`` call the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.roofline.costs import flops
from attention_conformance.bench.roofline.peaks import best_product
from attention_conformance.bench.sampling.sampler import LATE_SECONDS, LATE_SHARE, Batch
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import INVALID, Cell, Outcome
from attention_conformance.impls.process.pool import Spent

#: Factor by which calls on inputs never seen may take longer than others, by the low end of the interval, and than
#: calls on known inputs with cold caches; a cached result costs next to nothing.
CACHED = 2.0

#: Pairs of calls that an interval needs: the lowest of five is below the median with probability 31 in 32.
LEAST_PAIRS = 5


#: Gives at most that many batches, each with right results; raises Invalid for one with wrong results.
Checked = Callable[[int], Iterable[Batch]]


def _no_checked(count: int) -> Iterable[Batch]:
    return ()


def cached_result(
    batches: Sequence[Sequence[float]],
    cold_calls: Callable[[], Sequence[float]] = tuple,
    checked: Checked = _no_checked,
) -> None:
    """Raise Invalid if the last call of each batch takes far longer than the others, and than known inputs can.

    The interval of the ratio must show it, and every single last call: on a busy machine many calls after a pause are
    slow, but not all.  A call of one query row and many keys does little more than read the keys, and is slow on keys
    that no cache has.

    Parameters
    ----------
    batches
        Seconds of each call, batch by batch; the results of the last one were checked.
    cold_calls
        Gives the seconds of calls on known inputs with cold caches, none where they cannot be cleared; it is called
        only where cheating is suspected.
    checked
        Gives more batches, each with a checked last call.  They decide where the very last call, or most of the last
        calls, are slow, but some are not, whose results were not checked.

    Raises
    ------
    Invalid
        If calls on inputs never seen are slow, and those on known inputs are not.
    """
    pairs = [batch for batch in batches if len(batch) > 1]
    ratio = _of_fresh(pairs)
    if ratio is None or (ratio.low <= CACHED and _some_fresh_quick(pairs[-1:], pairs)):
        return
    if _some_fresh_quick(pairs, pairs) or ratio.low <= CACHED:
        known, pairs = pairs, []
        for batch in checked(len(known)):
            pairs.append(batch.seconds)
            if _some_fresh_quick(pairs[-1:], known):
                return
        ratio = _of_fresh(pairs)
        if ratio is None or ratio.low <= CACHED:
            return
    fresh, read = [batch[-1] for batch in pairs], cold_calls()
    if read and statistics.median([[fresh]]).value <= CACHED * statistics.median([[read]]).value:
        return
    raise Invalid(
        "cached result",
        f"it returns what it computed before: on inputs that it never saw a call takes {ratio.value:.3g} times as"
        f" long ({ratio.low:.3g} to {ratio.high:.3g})",
    )


def _of_fresh(pairs: Sequence[Sequence[float]]) -> statistics.Interval | None:
    """Time of the last call of a batch ÷ time of the others; None for too few batches."""
    if len(pairs) < LEAST_PAIRS:
        return None
    return statistics.paired([batch[:-1] for batch in pairs], [[batch[-1]] for batch in pairs])


def _some_fresh_quick(pairs: Sequence[Sequence[float]], known: Sequence[Sequence[float]]) -> bool:
    """Whether the last call of some batch is about as quick as the calls on known inputs."""
    return min(batch[-1] for batch in pairs) <= CACHED * statistics.median([[batch[:-1] for batch in known]]).value


def asynchronous_return(last: Batch) -> None:
    """Raise Invalid if results changed after they had been returned."""
    if last.unsettled:
        raise Invalid(
            "asynchronous return", f"it returns before it is done: {', '.join(last.unsettled)} changed afterwards"
        )


def deferred(batches: Sequence[Batch], checked: Checked = _no_checked) -> None:
    """Raise Invalid if reading the results back always takes far longer than reading plain arrays ever does.

    Parameters
    ----------
    batches
        Batches of a process run; the results of the last one were checked.
    checked
        Gives more batches, each with a checked last call.  They decide where reading the very last results, or most of
        them, is late, but reading some is not, which were not checked.

    Raises
    ------
    Invalid
        If reading is late in every one of them.
    """
    if len(batches) < LEAST_PAIRS - 1:
        return
    call = statistics.median([[batch.seconds for batch in batches]]).value
    plain, allowed = max(batch.plain_seconds for batch in batches), max(LATE_SHARE * call, LATE_SECONDS)
    each = [batch.readback_seconds for batch in batches]
    if max(median(each), each[-1]) - plain <= allowed:
        return
    if min(each) - plain <= allowed:
        each = []
        for batch in checked(len(batches)):
            each.append(batch.readback_seconds)
            plain = max(plain, batch.plain_seconds)
            if min(each) - plain <= allowed:
                return
    if each:
        late = min(each) - plain
        raise Invalid(
            "deferred",
            f"it computes when its results are read: reading them takes {1e3 * late:.3g} ms longer than plain arrays,"
            f" the call {1e3 * call:.3g} ms",
        )


#: Fewest jobs for comparing clocks; and seconds that a job takes in addition to the worker's report, to wake the worker
#: and to be woken by it.
LEAST_JOBS, UNTOLD_SECONDS = 3, 0.004

#: Share of the calls' own time by which a job may take longer.  Honest kernels, with nine others on two cores, took up
#: to 2.8 ms more processor time (2.4 ms for 13 ms of calls), and by the parent's clock up to 4 % of the calls or 2 ms.
UNTOLD_SHARE = 0.25


@dataclass(frozen=True)
class Job:
    """Seconds of a job with timed calls: its calls by the worker's clock, and time that this does not report.

    ``untold`` is the rest of the parent's wait, except for a core.  ``worked`` is the processor time beyond that of all
    cores for the reported time, None where the system does not report it.  ``each`` is its median sample.
    """

    calls: float
    untold: float
    worked: float | None
    each: float = 0.0


def job(batch: Batch, spent: Spent, cores: int) -> Job:
    """The job of a batch.

    For processor time each of its calls counts as the median sample, as the worker's report of calls that are no
    samples could hide others.  Waiting for a core counts too: while the first thread of a call has none, the threads
    that share the call may spin on all cores.  Two threads that woke on one core waited 2 to 10 ms, until the
    scheduler's tick separated them, and took twice that.
    """
    each, calls = median(batch.seconds), batch.call_seconds
    told = calls if batch.held else batch.made * each  # on a GPU calls that are no samples have their launch in them
    worked = None if spent.cpu is None else spent.cpu - cores * (told + batch.other_seconds + spent.queued)
    return Job(calls, spent.waited - spent.queued - calls - batch.other_seconds, worked, each)


#: Number of jobs that are run where clocks seem to disagree, and their length in those of the jobs that did.  After a
#: pause the calls of two threads took twice as long for up to 25 ms on a virtual machine, which is much in a batch of
#: 20 ms and within UNTOLD_SHARE in eight of them; time that is hidden in each call grows with the batch.
LONGER_JOBS, LONGER = LEAST_JOBS, 8


def agreeing_clocks(jobs: Sequence[Job], longer: Callable[[], Sequence[Job]]) -> None:
    """Raise Invalid if jobs take far longer than the worker says, and longer ones do so too.

    Parameters
    ----------
    jobs
        Jobs of a process run.
    longer
        Runs LONGER_JOBS jobs of LONGER times the length; it is called where ``jobs`` disagree.

    Raises
    ------
    Invalid
        If the longer jobs disagree too, or their calls take longer than the ones before by more than UNTOLD_SHARE: then
        only theirs were reported rightly.
    """
    try:
        disagreeing_clocks(jobs)
    except Invalid as error:
        again = longer()
        disagreeing_clocks(again)
        if not again:
            return  # the process is gone, which says more
        before, after = (median(each.each for each in some) for some in (jobs, again))
        if after > (1.0 + UNTOLD_SHARE) * before:
            raise Invalid(
                "clock", f"{error.text}; in longer batches its calls take {1e3 * after:.3g} ms, not {1e3 * before:.3g}"
            ) from error


def disagreeing_clocks(jobs: Sequence[Job], overhead: float = 0.0) -> None:
    """Raise Invalid if jobs take far longer than the worker says that its calls took.

    By the parent's clock all of them must, as on a busy machine many wait for a core; by processor time, which no other
    process takes, half of them must, as half of the calls decide a median time.  ``overhead`` is the seconds of a job
    that calls nothing.
    """
    if not jobs:
        return
    calls = median(each.calls for each in jobs)
    if calls <= 0:
        raise Invalid("clock", "its clock and ours disagree: its calls take no time")
    allowed = max(UNTOLD_SHARE * calls, UNTOLD_SECONDS) + overhead
    worked = [each.worked for each in jobs if each.worked is not None]
    found = {
        "by its parent's": min(each.untold for each in jobs),
        "of processor time": median(worked) if worked else 0.0,
    }
    for clock, untold in found.items():
        if len(jobs) >= LEAST_JOBS and untold > allowed:
            raise Invalid(
                "clock",
                f"its clock and ours disagree: what takes {1e3 * calls:.3g} ms by the worker's clock takes"
                f" {1e3 * untold:.3g} ms more {clock}",
            )


#: Seconds of the measurements of the peak: the first, and those that follow while a time is beyond it.
PEAK_SECONDS = (0.1, 0.5, 1.0, 1.0)

#: Factor by which a call may seem faster than the peak on a machine that is busy while the peak is measured.
NOISE = 4.0


def share_of_peak(count: float, seconds: float, measure: Callable[[float], float], known: float = 0.0) -> float | None:
    """Operations per second of a call ÷ those of the best matrix product; None where there is none.

    Parameters
    ----------
    count, seconds
        Operations of a call, and its time.
    measure
        Gives operations per second of the best product that was seen, after measuring for that many seconds; it is
        called with 0 first, and longer each time while the call seems faster, as the machine may be busy.
    known
        Peak from elsewhere; a call within NOISE of it needs no further measurement.
    """
    best, enough = known, NOISE if known else 1.0
    for lasting in (0.0, *PEAK_SECONDS):
        best = max(best, measure(lasting))
        if best and count / seconds <= enough * best:
            break
    return count / seconds / best if best else None


def beyond_peak(share: float | None) -> None:
    """Raise Invalid for a share of the measured peak that no kernel reaches."""
    if share is not None and share > NOISE:
        raise Invalid("peak", f"it is {share:.3g} times as fast as the best matrix product on this machine")


def within_peak(cell: Cell, outcome: Outcome, cores: int, known: float = 0.0) -> tuple[Outcome, float | None]:
    """The outcome of a timed cell with its share of the peak; invalid if no kernel is that fast.

    Parameters
    ----------
    cell
        The workload and the target that are timed.
    outcome
        Seconds of the cell, with their interval.
    cores
        Number of cores that the call may use.
    known
        FLOP/s of the peak if it was measured already, 0 if not.

    Returns
    -------
    tuple[Outcome, float | None]
        The outcome, and FLOP/s of the call ÷ those of the peak; None where there is no peak.
    """
    measure = functools.partial(best_product, cell.target, count=cores)
    share = share_of_peak(flops(cell.workload), outcome.interval.value, measure, known)
    try:
        beyond_peak(share)
    except Invalid as error:
        return replace(outcome, kind=INVALID, clause=error.clause, reason=error.text), share
    return outcome, share
