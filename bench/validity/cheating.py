"""What a kernel may do to look fast, and how it is seen.

* It returns what it computed before.  The last call of every turn is on inputs that it never saw; if every one of
  them takes REMEMBERED times as long as the others do, the others did not compute, or found their inputs in a cache of
  the processor.  So inputs that it knows are given from emptied caches: if that takes long too, it did compute.
* It returns before it is done.  The results are copied right after the clock has stopped, and it is those copies that
  are checked; they are also read again later, and must not have changed.
* It computes when its result is read.  Reading the results back must not take LATE_SHARE of a call more than reading
  plain copies of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.timing.sampler import LATE_SECONDS, LATE_SHARE, Chunk
from attention_conformance.bench.validity.checks import StruckOut

#: How many times as long calls on inputs never seen may take, by the low end of the interval, and than calls on known
#: inputs from emptied caches; a remembered result costs next to nothing.
REMEMBERED = 2.0

#: Pairs of calls that an interval needs: the lowest of five is below the median with probability 31 in 32.
LEAST_PAIRS = 5


def remembers(chunks: Sequence[Sequence[float]], emptied: Callable[[], Sequence[float]] = tuple) -> None:
    """Raise StruckOut if the last call of each chunk takes far longer than the others, and than known inputs can.

    Certain by the interval of the ratio, and every single one: on a busy machine many calls after a pause are slow, and
    of a few some are not.  ``emptied`` gives the seconds of calls on known inputs from emptied caches, none where they
    cannot be emptied; it is asked if there is a suspicion.  A call of one query row and many keys does little more than
    read them, and is slow on those that no cache has.
    """
    pairs = [chunk for chunk in chunks if len(chunk) > 1]
    if len(pairs) < LEAST_PAIRS:
        return
    known, fresh = [chunk[:-1] for chunk in pairs], [chunk[-1] for chunk in pairs]
    ratio = statistics.paired(known, [[seconds] for seconds in fresh])
    if ratio.low <= REMEMBERED or min(fresh) <= REMEMBERED * statistics.median([known]).value:
        return
    read = emptied()
    if read and statistics.median([[fresh]]).value <= REMEMBERED * statistics.median([[read]]).value:
        return
    raise StruckOut(
        "remembered",
        f"it returns what it computed before: on inputs that it never saw a call takes {ratio.value:.3g} times as"
        f" long ({ratio.low:.3g} to {ratio.high:.3g})",
    )


def unfinished(last: Chunk) -> None:
    """Raise StruckOut if results changed after they had been returned."""
    if last.unsettled:
        raise StruckOut("unfinished", f"it returns before it is done: {', '.join(last.unsettled)} changed afterwards")


def lazy(chunks: Sequence[Chunk]) -> None:
    """Raise StruckOut if reading the results back always takes far longer than reading plain arrays ever does."""
    late = min(chunk.readback_seconds for chunk in chunks) - max(chunk.plain_seconds for chunk in chunks)
    call = statistics.median([[chunk.seconds for chunk in chunks]]).value
    if len(chunks) >= LEAST_PAIRS - 1 and late > max(LATE_SHARE * call, LATE_SECONDS):
        raise StruckOut(
            "lazy",
            f"it computes when its results are read: reading them takes {1e3 * late:.3g} ms longer than plain arrays,"
            f" the call {1e3 * call:.3g} ms",
        )
