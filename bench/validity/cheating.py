"""Cheating: what a kernel may do to look fast, and how it is detected.

* It returns what it computed before.  The last call of every batch is on inputs that it never saw; if every one of
  them takes CACHED times as long as the others do, the others did not compute, or found their inputs in a cache of
  the processor.  So inputs that it knows are given with cold caches: if that takes long too, it did compute.
* It returns before it is done.  The results are copied right after the clock has stopped, and it is those copies that
  are checked; they are also read again later, and must not have changed.
* It has a clock of its own.  What the worker says that calls took must account for what its parent waited.
* It is faster than the machine: beyond the best matrix product that was measured by more than NOISE.
* It computes when its result is read.  Reading the results back must not take LATE_SHARE of a call more than reading
  plain copies of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.timing.sampler import LATE_SECONDS, LATE_SHARE, Batch
from attention_conformance.bench.validity.checks import Invalid

#: How many times as long calls on inputs never seen may take, by the low end of the interval, and than calls on known
#: inputs with cold caches; a cached result costs next to nothing.
CACHED = 2.0

#: Pairs of calls that an interval needs: the lowest of five is below the median with probability 31 in 32.
LEAST_PAIRS = 5


def cached_result(batches: Sequence[Sequence[float]], cold_calls: Callable[[], Sequence[float]] = tuple) -> None:
    """Raise Invalid if the last call of each batch takes far longer than the others, and than known inputs can.

    Certain by the interval of the ratio, and every single one: on a busy machine many calls after a pause are slow, and
    of a few some are not.  ``cold_calls`` gives the seconds of calls on known inputs with cold caches, none where they
    cannot be cleared; it is called on a suspicion alone.  A call of one query row and many keys does little more than
    read them, and is slow on those that no cache has.
    """
    pairs = [batch for batch in batches if len(batch) > 1]
    if len(pairs) < LEAST_PAIRS:
        return
    known, fresh = [batch[:-1] for batch in pairs], [batch[-1] for batch in pairs]
    ratio = statistics.paired(known, [[seconds] for seconds in fresh])
    if ratio.low <= CACHED or min(fresh) <= CACHED * statistics.median([known]).value:
        return
    read = cold_calls()
    if read and statistics.median([[fresh]]).value <= CACHED * statistics.median([[read]]).value:
        return
    raise Invalid(
        "cached result",
        f"it returns what it computed before: on inputs that it never saw a call takes {ratio.value:.3g} times as"
        f" long ({ratio.low:.3g} to {ratio.high:.3g})",
    )


def asynchronous_return(last: Batch) -> None:
    """Raise Invalid if results changed after they had been returned."""
    if last.unsettled:
        raise Invalid(
            "asynchronous return", f"it returns before it is done: {', '.join(last.unsettled)} changed afterwards"
        )


def deferred(batches: Sequence[Batch]) -> None:
    """Raise Invalid if reading the results back always takes far longer than reading plain arrays ever does."""
    late = min(batch.readback_seconds for batch in batches) - max(batch.plain_seconds for batch in batches)
    call = statistics.median([[batch.seconds for batch in batches]]).value
    if len(batches) >= LEAST_PAIRS - 1 and late > max(LATE_SHARE * call, LATE_SECONDS):
        raise Invalid(
            "deferred",
            f"it computes when its results are read: reading them takes {1e3 * late:.3g} ms longer than plain arrays,"
            f" the call {1e3 * call:.3g} ms",
        )


#: How much faster than the measured peak a call may seem on a machine that is busy while the peak is measured, and
#: seconds that the parent may have waited for nothing that the worker tells of.
NOISE, UNTOLD_SECONDS = 4.0, 0.002


def disagreeing_clocks(by_worker: Sequence[float], by_parent: Sequence[float], overhead: float) -> None:
    """Raise Invalid if the parent always waited far longer than the worker says that calls took.

    Parameters
    ----------
    by_worker, by_parent
        Seconds of each call, and of the whole job that it was in by the parent's clock.
    overhead
        Seconds of a job that calls nothing, the most of some.
    """
    untold = min(whole - call for call, whole in zip(by_worker, by_parent, strict=True)) - 2 * overhead
    call = statistics.median([[by_worker]]).value
    if min(by_worker) <= 0 or (len(by_worker) >= LEAST_PAIRS and untold > max(0.5 * call, UNTOLD_SECONDS)):
        raise Invalid(
            "clock",
            f"its clock and ours disagree: a call takes {1e3 * call:.3g} ms by the worker's, and each time"
            f" {1e3 * untold:.3g} ms more by its parent's",
        )


def beyond_peak(share: float | None) -> None:
    """Raise Invalid for a share of the measured peak that no kernel reaches."""
    if share is not None and share > NOISE:
        raise Invalid("peak", f"it is {share:.3g} times as fast as the best matrix product on this machine")
