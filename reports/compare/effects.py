"""Effects between two runs of the bench, at three levels: everything, an implementation, a cell.

A cell is measured in k process runs on each side. The *level* y of process run r is the log of the QUANTILE of its
calls, as other work on a machine lengthens calls and shortens none; ``python -m studies comparisons`` shows how much it
and other quantiles scatter. The model is

    y[c,s,r] = μ[c] + g[w,s,r] + [s is new] · (m + e[i] + d[c]) + ε[c,s,r]

for cell c, which belongs to implementation i and workload w, in process run r of side s.

* g is what cells that are measured in the same rounds have in common in a process run: the median of their deviations
  from their own means. It is taken off, but the difference of its means between the sides only up to two standard
  deviations, estimated from its own scatter: anything beyond is not the machine's. Where no library has half of the
  cells, the limit is UNKNOWN if larger, as a machine moves by several percent over hours, in one workload and not in
  the other.
* ε has a variance σ²[c]. A few numbers say little about it, so it is moderated (Smyth, Linear models and empirical
  Bayes methods for assessing differential expression, SAGMB 3, 2004): s̃² = (ν₀ s₀² + ν s²) / (ν₀ + ν), where s₀² is
  the variance for cells of this kind of implementation and length of call, and ν₀ says how alike they are. Both are
  matched to the median and the quartiles of the s² of all cells, as s²/s₀² has the distribution F(ν, ν₀); so a few wild
  cells move neither (Phipson et al., Robust hyperparameter estimation protects against hypervariable genes, AOAS 10,
  2016).
* d and e are what changed, and luck: cells, and implementations as a whole, get other places in memory from one run of
  the bench to the next, which process runs do not show. Most of what is compared did not change, so the variance
  of either is estimated from the middle of the deviations: with it the median of their squares is the median of χ²₁ (an
  empirical null; Efron, Large-scale inference, 2010). It is shrunk to the variance in real runs. With many deviations a
  higher quantile counts too, as tails are heavy; deviations beyond CHANGE and FAR are left out.
* e[i] is Huber's mean of the cells of an implementation, which one cell cannot move.
* m is what all implementations have in common: the median of their effects, if there are at least IMPLEMENTATIONS. One
  that is measured in several dtypes counts once, with the median of its e. *Yardsticks* are the same code in both runs:
  measured peaks and bandwidths. If m is beyond them for certain, everything changed, and is judged against them;
  otherwise m is the machine's, and all is judged against m. With fewer implementations only the yardsticks are left.
  The machine is also assumed to vary by UNKNOWN, by the scatter of its process runs, and by LOAD.

An effect has a p value, by Student's t, of lying within the margin.  The variance of a cell's effect is a sum: the
scatter of its process runs, estimated from few numbers, and luck, estimated from all cells; it has the degrees of
freedom of such a sum (Satterthwaite, Biometrics Bulletin 2, 1946).  The effects of a level are judged together by
Benjamini and Hochberg (JRSS B 57, 1995): a share FALSE of what is called changed is not, on average, and if nothing
changed that is the chance that anything is called so; each level has a third of it, of which TAILED is used.  The
interval *among all* is the one that gives the same verdicts (Benjamini & Yekutieli, JASA 100, 2005): for R changes
found in n, its confidence is 1 − R/n of that share.

An implementation that changed as a whole is one finding, and one of its cells is judged changed by its own 95 %
interval. What could have been seen follows from the same rule: the effect that is found with probability POWER.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attention_conformance.bench.analysis.statistics import CONFIDENCE, LEAST, MARGIN, Interval, Verdict, judge

#: The quantile of the calls of a process run that is its level.
QUANTILE = 0.1

#: Share of findings that are false, and the chance of any finding if nothing changed; a third for each level.
FALSE = 0.01
LEVELS = 3

#: The part of FALSE with which Student's t keeps it, as luck has heavier tails: of all 406 pairs of 29 idle runs of one
#: machine, 1.7 % had a finding with all of it, and 0.7 % with half (``python -m studies comparisons``).
TAILED = 0.5

#: A cell is the same if its 95 % interval lies within this factor on both sides, or within what a rule sets.
SAME = 1.10

#: Probability of finding an effect that "could have been seen".
POWER = 0.9

#: Fewest implementations that show a common factor: no single one moves the median of three.
IMPLEMENTATIONS = 3

#: Fewest cells that show what process runs have in common and how variances spread; and fewest of the same rounds.
CELLS = 8
TOGETHER = 5

#: Two standard deviations of a machine without yardsticks: the top of 3 to 10 %.
UNKNOWN = math.log(1.10)

#: Standard deviation of the log of a yardstick on an otherwise idle machine.
YARDSTICK = 0.02

#: Standard deviation of the slowdown by other work that a machine's yardsticks, the best of several, do not show.
LOAD = 0.05

#: The part of a slowdown by other work that is a cell's own, as other cells do not wait for the same things.
OF_LOAD = 0.25

#: Values of real runs: scatter of process runs, where no cell has a second; luck of a cell and of an implementation
#: from one run of the bench to the next; and the degrees of freedom that these values count as.
SCATTER = 0.03
LUCK_OF_CELL = 0.015
LUCK_OF_IMPLEMENTATION = 0.01
PRIOR = 10

#: Degrees of freedom of a variance: these are tried, the best is taken.
FREEDOMS = (2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0, 40.0, 100.0)

#: Limits between classes of lengths of calls, in seconds.
LENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1)

#: Huber's constant: beyond this many standard deviations a value counts less.
HUBER = 1.345

#: Efficiency of Huber's mean for normal values.
EFFICIENCY = 0.95

#: A variance estimated by a median is worth this share of its numbers (Rousseeuw & Croux, Alternatives to the median
#: absolute deviation, JASA 88, 1993).
OF_MEDIAN = 0.37

#: Most degrees of freedom of a cell, as luck has heavier tails than the normal: with more, 1.5 % of simulated
#: comparisons on a machine that scatters ten times as much have a false finding, and 0.75 % with these.
TAILS = 20

#: Quantiles of χ²₁ that luck is estimated by: the median, and from MANY deviations on this one too, as luck has heavier
#: tails than the normal; and a variance that counts as none.
HALF = 0.45494
MIDDLE = ((0.5, HALF), (0.85, 2.07225))
MANY = 20
TINY = 1e-12

#: A deviation of more than this factor, and of more than this many standard deviations (by the median of all), is a
#: change and not luck: a new library may make a quarter of all implementations twice as fast.
CHANGE = math.log(1.25)
FAR = 6.0


@dataclass(frozen=True)
class Cell:
    """One cell in both runs: the unit that it belongs to, and log seconds by process run."""

    #: Implementation and dtype: what may change as a whole.
    unit: tuple[str, str]
    base: np.ndarray
    new: np.ndarray
    #: Name of the rounds that the cell is measured in, with others of its workload.
    rounds: str = ""
    least: float = LEAST
    margin: float = MARGIN

    @property
    def kind(self) -> str:
        """The kind of implementation: its library, the first part of its name."""
        return self.unit[0].partition("-")[0]


@dataclass(frozen=True)
class Effect:
    """A ratio new ÷ base, without the machine's factor, with its verdict."""

    ratio: Interval
    #: The interval that is valid for all effects of its level together.
    among_all: Interval
    verdict: Verdict
    #: The least slowdown that would have been found with probability POWER.
    seen: float


@dataclass(frozen=True)
class Effects:
    """Effects that a comparison of the cells of a device found."""

    #: The machine's factor, which was taken off, with its 95 % interval.
    machine: Interval
    #: What all implementations have in common beyond the yardsticks; None for too few.
    everything: Effect | None
    units: Mapping[tuple[str, str], Effect]
    cells: Sequence[Effect]
    #: Standard deviations of a log: of process runs (the median cell), and luck of a cell and of an implementation.
    scatter: float = 0.0
    luck: tuple[float, float] = (0.0, 0.0)
    #: Factor that all implementations of a workload have in common, taken off too, by the workload's name.
    workloads: Mapping[str, float] = field(default_factory=dict)


#: What counts as changed.
CHANGED = (Verdict.FASTER, Verdict.SLOWER)


def level(seconds: Sequence[float]) -> float:
    """The log of the QUANTILE of the calls of a process run.

    Parameters
    ----------
    seconds
        Seconds of the calls of one process run.

    Returns
    -------
    float
        Natural logarithm of seconds.
    """
    return math.log(float(np.quantile(np.asarray(seconds), QUANTILE)))


def effects(
    cells: Sequence[Cell],
    yardsticks: Mapping[str, float],
    unknown: float = UNKNOWN,
    q: float = FALSE,
    load: float = 0.0,
) -> Effects:
    """Effects between base and new over some cells.

    Parameters
    ----------
    cells
        Cells of one device, at least one; with one process run or more on each side.
    yardsticks
        Factors of time by name, new ÷ base, of code that is the same in both runs.
    unknown
        Two standard deviations of the log of the machine's factor, where there are no yardsticks; 0 if times are
        multiples of another implementation's, so that the machine cancels.
    q
        Share of findings that may be false.
    load
        Standard deviation of the log of the slowdown by other work, as known for either run.

    Returns
    -------
    Effects
        ``cells`` in the order of the cells.
    """
    base, new, moved, of_workloads = without_common(cells, unknown)
    scatter, scatter_freedom = variances([cell.kind for cell in cells], base, new)
    within = scatter * np.array([1 / len(b) + 1 / len(n) for b, n in zip(base, new, strict=True)])
    units = {unit: [at for at, cell in enumerate(cells) if cell.unit == unit] for unit in {c.unit: 0 for c in cells}}
    luck = variance_component(moved, within, list(units.values()), LUCK_OF_CELL) + (OF_LOAD * load) ** 2
    means = [huber_mean(moved[at], within[at] + luck) for at in units.values()]
    unit_moved, unit_variance = (np.array(each) for each in zip(*means, strict=True))
    unit_luck = variance_component(
        unit_moved, unit_variance, [range(len(unit_moved))], LUCK_OF_IMPLEMENTATION, IMPLEMENTATIONS
    )
    unit_variance, cell_variance = unit_variance + unit_luck, within + luck + unit_luck

    machine, error = machine_factor(cells, yardsticks, unknown, math.hypot(LOAD, load))
    unit_freedom, share = np.full(len(units), float(len(units) - 1 + PRIOR)), TAILED * q / LEVELS
    everything = None
    # The dtypes of one implementation share its code, so they count once: slower code must not pass for the machine.
    own: dict[str, list[int]] = {}
    for at, (name, _) in enumerate(units):
        own.setdefault(name, []).append(at)
    if len(own) >= IMPLEMENTATIONS and unknown > 0:
        own_moved = np.array([np.median(unit_moved[at]) for at in own.values()])
        own_variance = np.array([np.mean(unit_variance[at]) for at in own.values()])
        common, common_error = _median_with_error(own_moved, own_variance)
        (everything,) = judge_level([common - machine], [math.hypot(common_error, error)], unit_freedom[:1], share)
        if everything.verdict not in CHANGED:
            machine, error = common, common_error
    limits = [(cell.least, cell.margin) for cell in cells]
    unit_limits = [tuple(map(min, zip(*(limits[at] for at in those), strict=True))) for those in units.values()]
    found = judge_level(unit_moved - machine, np.sqrt(unit_variance + error**2), unit_freedom, share, unit_limits)
    wholes = {unit: one for (unit, at), one in zip(units.items(), found, strict=True) if len(at) > 1}
    luck_freedom, unit_luck_freedom = (PRIOR + OF_MEDIAN * (count - 1) for count in (len(cells), len(units)))
    parts: list[tuple[np.ndarray | float, np.ndarray | float]] = [
        (within, scatter_freedom),
        (luck, luck_freedom),
        (unit_luck + error**2, unit_luck_freedom),
    ]
    cell_freedom = np.minimum(degrees_of_freedom(parts), TAILS)
    single = judge_level(moved - machine, np.sqrt(cell_variance + error**2), cell_freedom, share, limits)
    of_cells = [
        _within_change(
            {each.verdict for each in (everything, wholes.get(cell.unit)) if each is not None}, one, limit[0]
        )
        for cell, one, limit in zip(cells, single, limits, strict=True)
    ]
    return Effects(
        Interval(*(math.exp(machine + at * error) for at in (0, -2, 2))),
        everything,
        wholes,
        of_cells,
        math.sqrt(float(np.median(scatter))),
        (math.sqrt(luck), math.sqrt(unit_luck)),
        {name: math.exp(log) for name, log in of_workloads.items()},
    )


def machine_factor(
    cells: Sequence[Cell], yardsticks: Mapping[str, float], unknown: float, load: float = LOAD
) -> tuple[float, float]:
    """The log of the machine's factor by the yardsticks only, with its standard error.

    The machine is assumed to vary by ``unknown`` and by the scatter of process runs; a yardstick is measured once, and
    so scatters as one process run does.

    Parameters
    ----------
    cells
        Cells of one device, with process runs of both sides.
    yardsticks
        New ÷ base of measured limits, by name.
    unknown
        Two standard deviations of the log of the machine's factor.
    load
        Standard deviation of the log of the slowdown by other work that yardsticks do not show.

    Returns
    -------
    tuple[float, float]
        A log, and its standard error.
    """
    if not unknown:
        return 0.0, 0.0
    # Each side by itself: other work may have slowed one process run of one side.
    once, mean = 0.0, 0.0
    for sides in ([cell.base for cell in cells], [cell.new for cell in cells]):
        several = [float(np.var(side, ddof=1)) for side in sides if len(side) > 1]
        scatter = float(np.median(several)) if several else SCATTER**2
        once += scatter
        mean += scatter / float(np.median([len(side) for side in sides]))
    prior = (unknown / 2) ** 2 + mean
    if not yardsticks:
        return 0.0, math.hypot(math.sqrt(prior), load)
    measured = YARDSTICK**2 + once
    told = float(np.median(np.log([*yardsticks.values()])))
    prior = max(prior, told**2 - measured)  # a machine that moved further than assumed
    error = math.sqrt(prior * measured / (prior + measured))
    return told * prior / (prior + measured), math.hypot(error, load)


def without_common(
    cells: Sequence[Cell], unknown: float = UNKNOWN
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, dict[str, float]]:
    """The levels of both sides without what cells of a process run have in common, and how far each cell moved.

    Parameters
    ----------
    cells
        Cells of one device, with process runs of both sides.
    unknown
        Two standard deviations of the log of the machine's factor; 0 where it is not in the times.

    Returns
    -------
    tuple[list[np.ndarray], list[np.ndarray], np.ndarray, dict[str, float]]
        Levels of base, levels of new, how far each cell moved, and what was taken off for each workload: logs.
    """
    base, new = [cell.base for cell in cells], [cell.new for cell in cells]
    moved = np.array([float(np.mean(n) - np.mean(b)) for b, n in zip(base, new, strict=True)])
    groups: dict[object, list[int]] = {}
    for at, cell in enumerate(cells):
        groups.setdefault((len(cell.base), len(cell.new)), []).append(at)
    _take_off_common(base, new, [at for at in groups.values() if len(at) >= CELLS])
    groups.clear()
    for at, cell in enumerate(cells):
        groups.setdefault((cell.rounds, len(cell.base), len(cell.new)), []).append(at)
    workloads = [at for at in groups.values() if len(at) >= TOGETHER]
    drifts = np.array(_take_off_common(base, new, workloads))
    centre, taken_off = float(np.median(moved)), {}
    for part, drift in zip(workloads, drifts, strict=True):
        beside = float(np.median(moved[part])) - centre
        # The machine's possible deviation from its mean while these were measured, as process runs show.
        possible = 2 * math.sqrt((drift + float(np.mean(drifts))) / 2)
        if 2 * max(Counter(cells[at].kind for at in part).values()) < len(part):
            possible = max(possible, unknown)
        taken_off[cells[part[0]].rounds] = off = float(np.clip(beside, -possible, possible))
        moved[part] -= off
    return base, new, moved, taken_off


def _take_off_common(base: list[np.ndarray], new: list[np.ndarray], groups: Sequence[Sequence[int]]) -> list[float]:
    """Take off what process runs of a group have in common; returns the variance of how far its mean moved."""
    found = []
    for group in groups:
        variance = 0.0
        for side in (base, new):
            common = np.median([side[at] - side[at].mean() for at in group], axis=0)
            for at in group:
                side[at] = side[at] - (common - common.mean())
            variance += float(np.var(common, ddof=1)) / len(common) if len(common) > 1 else 0.0
        found.append(variance)
    return found


def variances(
    kinds: Sequence[str], base: Sequence[np.ndarray], new: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The moderated variance of a process run of each cell, with its degrees of freedom.

    Parameters
    ----------
    kinds
        The kind of each cell; cells of one kind share their variance.
    base
        Levels of each cell's process runs, logs.
    new
        The same for the new run.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        A variance and degrees of freedom for each cell.
    """
    from scipy import stats  # takes half a second, and only a comparison needs it

    own = np.array([float(len(b) + len(n) - 2) for b, n in zip(base, new, strict=True)])
    squares = np.array(
        [float(np.sum((b - b.mean()) ** 2) + np.sum((n - n.mean()) ** 2)) for b, n in zip(base, new, strict=True)]
    )
    known = (own > 0) & (squares > 0)
    if known.sum() < CELLS:
        return (PRIOR * SCATTER**2 + squares) / (PRIOR + own), PRIOR + own
    logs = np.log(squares[known] / own[known])
    classes = np.digitize([float(np.exp(np.mean(b))) for b in base], LENGTHS)
    centre = np.full(len(base), float(np.median(logs)))
    for groups in (classes, np.array(kinds)):  # what a length of call, then what a kind adds, shrunk
        rest = logs - centre[known]
        for group in set(groups.tolist()):
            those = rest[groups[known] == group]
            if len(those):
                centre[groups == group] += float(np.median(those)) * len(those) / (len(those) + CELLS)
    rest, freedom = logs - centre[known], float(np.median(own[known]))
    width = float(np.subtract(*np.quantile(rest, (0.75, 0.25))))
    tried = np.array(FREEDOMS)
    widths = np.log(stats.f.ppf(0.75, freedom, tried)) - np.log(stats.f.ppf(0.25, freedom, tried))
    prior = float(tried[np.argmin(np.abs(widths - width))])
    start = np.exp(centre + float(np.median(rest))) / stats.f.ppf(0.5, freedom, prior)
    return (prior * start + squares) / (prior + own), prior + own


def degrees_of_freedom(parts: Sequence[tuple[np.ndarray | float, np.ndarray | float]]) -> np.ndarray:
    """The degrees of freedom of a sum of estimated variances (Satterthwaite, Biometrics Bulletin 2, 1946).

    Parameters
    ----------
    parts
        Variances, each with the degrees of freedom that it is known by: numbers, or one for each value.

    Returns
    -------
    numpy.ndarray
        Degrees of freedom of each value: at least the smallest of the parts', at most their sum.
    """
    total = sum(variance for variance, _ in parts)
    return np.asarray(total**2 / sum(variance**2 / known for variance, known in parts))


def variance_component(
    values: np.ndarray, variance: np.ndarray, groups: Sequence[Sequence[int]], usual: float, least: int = 2
) -> float:
    """The variance that values of a group have in addition to their own ``variance``, shrunk to ``usual``².

    Groups of fewer than ``least`` say nothing.

    Parameters
    ----------
    values
        Logs of ratios.
    variance
        Variance of each value.
    groups
        Indices of the values of each group.
    usual
        Standard deviation that it is shrunk to.
    least
        Values of the smallest group that counts.

    Returns
    -------
    float
        A variance.
    """
    squares, own = [np.zeros(0)], [np.zeros(0)]
    for at in (np.array(group) for group in groups if len(group) >= least):
        off = (values[at] - np.median(values[at])) ** 2 * (2 if len(at) == 2 else 1)
        kept = np.argsort(off)[1:]  # one lies at the median, however much they scatter
        squares.append(off[kept])
        own.append(variance[at][kept])
    square, known = np.concatenate(squares), np.concatenate(own)
    if not len(square):
        return usual**2
    by_median = _variance_beside(square, known, MIDDLE[:1])
    luck = square <= np.maximum(CHANGE**2, FAR**2 * (known + by_median))
    square, known = square[luck], known[luck]
    found = _variance_beside(square, known, MIDDLE[: 1 + (len(square) >= MANY)])
    return (PRIOR * usual**2 + len(square) * found) / (PRIOR + len(square))


def _variance_beside(square: np.ndarray, known: np.ndarray, quantiles: Sequence[tuple[float, float]]) -> float:
    """The variance that, added to ``known``, gives the squares a quantile of χ²₁: the largest over these quantiles."""
    found = 0.0
    for share, typical in quantiles:
        low, high = 0.0, float(np.max(square)) / HALF
        for _ in range(40):
            tried = (low + high) / 2
            # The lower of two values: one of two deviations may be a change.
            beyond = np.sort(square / (known + tried + TINY))[int(share * (len(square) - 1))] > typical
            low, high = (tried, high) if beyond else (low, tried)
        found = max(found, low)
    return found


def huber_mean(values: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """Huber's mean of values with known variances, and its variance.

    Parameters
    ----------
    values
        Logs of ratios.
    variance
        Variance of each value.

    Returns
    -------
    tuple[float, float]
        The mean and its variance.
    """
    centre = float(np.median(values))
    for _ in range(20):
        beyond = np.abs(values - centre) / np.sqrt(variance)
        weight = np.minimum(1.0, HUBER / np.maximum(beyond, 1e-9)) / variance
        centre = float(np.sum(weight * values) / np.sum(weight))
    return centre, float(1 / np.sum(1 / variance)) / EFFICIENCY


def _median_with_error(values: np.ndarray, variance: np.ndarray) -> tuple[float, float]:
    """The median of values with known variances, and its standard error."""
    return float(np.median(values)), math.sqrt(math.pi / 2 / float(np.sum(1 / variance)))


def judge_level(
    values: Sequence[float] | np.ndarray,
    errors: Sequence[float] | np.ndarray,
    freedom: np.ndarray,
    q: float,
    limits: Sequence[tuple[float, float]] | None = None,
) -> list[Effect]:
    """The effects of one level, judged together, from logs with standard errors and the limits of each.

    Parameters
    ----------
    values
        Logs of ratios.
    errors
        Standard error of each value.
    freedom
        Degrees of freedom of each.
    q
        False discovery rate of the level.
    limits
        For each, the least ratio that counts and the margin that its interval must lie beyond; None: those of time.

    Returns
    -------
    list[Effect]
        An effect for each value, in their order.
    """
    from scipy import stats

    value, error = np.asarray(values), np.asarray(errors)
    least, margin = np.array(limits if limits is not None else [(LEAST, MARGIN)] * len(value)).T
    beyond = (np.abs(value) - np.log(margin)) / error
    chance = np.minimum(1.0, 2 * stats.t.sf(beyond, freedom))
    count = int(np.sum(stats.false_discovery_control(chance) <= q))
    share = q * max(count, 1) / len(value)
    single, wide = (stats.t.isf(each / 2, freedom) * error for each in (1 - CONFIDENCE, share))
    seen = np.maximum(np.log(least), np.log(margin) + wide) + stats.t.isf(1 - POWER, freedom) * error
    found = []
    for at, log in enumerate(value.tolist()):
        own, among_all = (
            Interval(*(math.exp(log + sign * half) for sign in (0, -1, 1)))
            for half in (float(single[at]), float(wide[at]))
        )
        verdict = judge(among_all, float(least[at]), float(margin[at]))
        alike = max(SAME, float(least[at]))
        same = own.low >= 1 / alike and own.high <= alike
        if verdict not in CHANGED:
            verdict = Verdict.SAME if same else Verdict.UNCLEAR
        found.append(Effect(own, among_all, verdict, math.exp(float(seen[at]))))
    return found


def common_over_runs(logs: np.ndarray, implementations: Sequence[str]) -> np.ndarray:
    """Effect that all implementations have in common in each run of a series, relative to their medians over the runs.

    Parameters
    ----------
    logs
        Log seconds, shape (cells, runs); NaN where a run lacks a cell.
    implementations
        Implementation of each cell.

    Returns
    -------
    numpy.ndarray
        Shape (runs,); 0 for a run with fewer than IMPLEMENTATIONS.
    """
    rest = np.ma.masked_invalid(logs)
    rest = rest - np.ma.median(rest, axis=1, keepdims=True)
    names = np.array(implementations)
    units = np.ma.stack([np.ma.median(rest[names == name], axis=0) for name in dict.fromkeys(implementations)])
    several = units.count(axis=0) >= IMPLEMENTATIONS
    return np.where(several, np.ma.median(units, axis=0).filled(0.0), 0.0)


def _within_change(wholes: set[Verdict], one: Effect, least: float) -> Effect:
    """The effect of a cell in something that changed as a whole: its own 95 % interval is enough."""
    for whole in CHANGED:
        sure = judge(one.ratio, least, 1.0) is whole
        if whole in wholes and sure:
            return replace(one, verdict=whole)
    return one
