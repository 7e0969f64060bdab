"""Statistics of repeated timings: the interval of a median, the interval of a ratio of two, and a verdict.

Timings of one process do not scatter as independent numbers do.  Calls follow each other in *batches*; the batches of a
cell are spread over the run, and a cell is measured in several *process runs*, each in a fresh process at another time.
A machine that slows down for a second shifts a batch; one that slows down for a minute, or a process whose memory lies
badly, shifts a process run.  So intervals come from the scatter of batches and of process runs, never from that of
single calls.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median as middle

import numpy as np

#: Seconds of the calls of one cell, by process run and batch, in order.
ProcessRuns = Sequence[Sequence[Sequence[float]]]

#: Probability that an interval covers the true value.
CONFIDENCE = 0.95

#: Resamples of a bootstrap: the ends of a 95 % interval lie at the 25th value from each end, known to about 5 places.
RESAMPLES = 1000

#: Fewest process runs whose scatter is used; the t quantile of two (12.7) would make every interval useless.
LEAST_PROCESS_RUNS = 3

#: Fewest batches whose range covers the true median in 94 %, and fewest whose bootstrap covers it in 92 % or more: that
#: of seven covers it in 88 %, that of four, which is no wider than their range, in 87 %, and that of two in 50 %.
LEAST_RANGE, LEAST_BOOTSTRAP = 5, 9

#: Said of a ratio whose interval is not known.
TOO_FEW = "fewer than {least} {runs} do not show how much processes differ"

#: A ratio is a change if its interval lies beyond MARGIN and the ratio itself beyond LEAST: "interval above 1" alone
#: calls equal code slower in many comparisons, and so does a ratio alone.  Error rates of these rules are measured:
#: bench/PAIRED.md, and ``python -m studies two_runs`` for runs one after the other.
LEAST = 1.05
MARGIN = 1.02


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval: 0 to infinity where nothing is known.

    From LEAST_PROCESS_RUNS process runs on, an interval covers the true value with about probability CONFIDENCE.  That
    of a median of fewer covers only the median of these very processes, and not what another process would show.
    """

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The larger distance of an end from the value, as a share of the value."""
        return max(self.high / self.value, self.value / self.low if self.low else math.inf) - 1

    @property
    def known(self) -> bool:
        """Whether anything is known about how far the value is from the truth."""
        return self.high < math.inf


class Verdict(enum.Enum):
    """Change of a cell between two measurements."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "slower"
    UNCLEAR = "unclear"


def median(process_runs: ProcessRuns) -> Interval:
    """The median of all samples, with its interval.

    The interval spans two: that of the medians of the batches, and, from three process runs on, Student's interval of
    the mean of the process runs' log medians.  The batches give a bootstrap if they are LEAST_BOOTSTRAP or more, their
    range if LEAST_RANGE or more, else Student's interval of their logs; a single one gives the range of its calls,
    which says nothing about other batches.

    Parameters
    ----------
    process_runs
        Seconds of the calls, by process run and batch; numbers may differ.

    Returns
    -------
    Interval
        The median and its interval, in seconds.

    Raises
    ------
    ValueError
        There are no samples.
    """
    flat = [value for process_run in process_runs for batch in process_run for value in batch]
    if not flat:
        raise ValueError("no samples")
    value = float(np.median(flat))
    batches = np.array([np.median(batch) for process_run in process_runs for batch in process_run])
    if len(batches) == 1:
        low, high = min(flat), max(flat)
    elif len(batches) < LEAST_RANGE:
        low, high = map(math.exp, _of_values(np.log(batches)))
    else:
        low, high = _of_values(batches)
    if len(process_runs) >= LEAST_PROCESS_RUNS:
        by_run = [float(np.median([value for batch in process_run for value in batch])) for process_run in process_runs]
        other = of_process_runs(by_run)
        low, high = min(low, other.low), max(high, other.high)
    return Interval(value, min(low, value), max(high, value))


def of_process_runs(medians: Sequence[float]) -> Interval:
    """The interval from process runs only: Student's, of the mean of their log medians.

    Parameters
    ----------
    medians
        Seconds, one for each process run; at least LEAST_PROCESS_RUNS.

    Returns
    -------
    Interval
        The geometric mean of the medians and its interval, in seconds.
    """
    logs = np.log(medians)
    low, high = _student(logs)
    return Interval(*(math.exp(value) for value in (float(np.mean(logs)), low, high)))


def ratio(base: Interval, new: Interval) -> Interval:
    """The ratio new ÷ base of two medians measured separately: independent, so relative errors add in squares."""
    up = math.hypot(math.log(new.high / new.value), math.log(base.value / base.low))
    down = math.hypot(math.log(new.value / new.low), math.log(base.high / base.value))
    value = new.value / base.value
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def paired(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Interval:
    """The ratio new ÷ base of batches measured in pairs, one after the other: the median of the pairs.

    Parameters
    ----------
    base, new
        Seconds of the calls, by batch; as many batches on both sides.

    Returns
    -------
    Interval
        A ratio, with the interval of the pairs: a bootstrap, the range of fewer than LEAST_BOOTSTRAP, Student's of
        fewer than LEAST_RANGE; that of a single one is not known.

    Raises
    ------
    ValueError
        There are no batches, or their numbers differ.
    """
    logs = np.array(_log_ratios(base, new))
    if len(logs) == 1:
        return Interval(math.exp(logs[0]), 0.0, math.inf)
    low, high = _of_values(logs)
    return Interval(*(math.exp(value) for value in (middle(logs), low, high)))


def paired_process_runs(base: ProcessRuns, new: ProcessRuns) -> Interval:
    """The ratio new ÷ base of paired process runs, whose batches are pairs: the mean of their median log ratios.

    The interval is Student's and comes only from the scatter of the process runs, which includes that of their
    batches.  With fewer pairs than LEAST_PROCESS_RUNS it is not known, and so every verdict is UNCLEAR: their batches
    do not show how much processes differ.

    Parameters
    ----------
    base, new
        Seconds of the calls, by process run and batch; as many of both on both sides.

    Returns
    -------
    Interval
        A ratio.

    Raises
    ------
    ValueError
        There are no process runs, or the numbers of process runs or batches differ.
    """
    if len(base) != len(new) or not base:
        raise ValueError(f"{len(base)} and {len(new)} process runs are not pairs")
    logs = np.array([middle(_log_ratios(b, n)) for b, n in zip(base, new, strict=True)])
    value = math.exp(np.mean(logs))
    if len(logs) < LEAST_PROCESS_RUNS:
        return Interval(value, 0.0, math.inf)
    low, high = _student(logs)
    return Interval(value, math.exp(low), math.exp(high))


def judge(ratio: Interval, least: float = LEAST, margin: float = MARGIN) -> Verdict:
    """The verdict on new ÷ base.  SAME needs an interval within ``least`` on both sides; the rest is UNCLEAR.

    Parameters
    ----------
    ratio
        Seconds of the new ÷ seconds of the base, with its interval.
    least
        The ratio from which a difference matters, above 1.
    margin
        Factor that the whole interval must be beyond, 1 or more.

    Returns
    -------
    Verdict
        SLOWER, FASTER, SAME or UNCLEAR.
    """
    if ratio.low > margin and ratio.value > least:
        return Verdict.SLOWER
    if ratio.high < 1 / margin and ratio.value < 1 / least:
        return Verdict.FASTER
    if 1 / least <= ratio.low and ratio.high <= least:
        return Verdict.SAME
    return Verdict.UNCLEAR


def _log_ratios(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> list[float]:
    if len(base) != len(new) or not base:
        raise ValueError(f"{len(base)} and {len(new)} batches are not pairs")
    return [math.log(middle(n) / middle(b)) for b, n in zip(base, new, strict=True)]


@functools.cache
def student(freedom: int) -> float:
    """The quantile of Student's t for CONFIDENCE, with that many degrees of freedom."""
    from scipy import stats  # takes half a second, and no worker needs it

    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _of_values(values: np.ndarray) -> tuple[float, float]:
    """The interval of the median of two values or more: a bootstrap of few is narrower than their range."""
    if len(values) < LEAST_RANGE:
        return _student(values)
    if len(values) < LEAST_BOOTSTRAP:
        return float(np.min(values)), float(np.max(values))
    return _bootstrap(values)


def _bootstrap(values: np.ndarray) -> tuple[float, float]:
    """The percentile interval of the median.  Seeded: the same samples give the same interval.

    It equals that of ``scipy.stats.bootstrap`` to the last bit; scipy's takes a millisecond more for each of the
    thousands of cells of a comparison, and refuses a single value.
    """
    picked = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    medians = np.median(values[picked], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(low), float(high)


def _student(values: np.ndarray) -> tuple[float, float]:
    half = student(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    middle = float(np.mean(values))
    return middle - half, middle + half
