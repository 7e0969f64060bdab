"""Fitted parameters: the scale, softcap, slope, sink or fill with which attention gives a wrong result.

Where no known mistake fits, a step of the model of attention gets a number that is solved for from the output, weights
and lse of a failed case: one for the call, then one per head, then one per row.  The number is compared with formulas
that mistakes use (1/√(H·D), ln 2, slopes of 2^(−8h/H)), so that it is reported as a cause.  A fitted parameter is an
explanation like a fault, and must give the whole result within the bounds, as a fault must.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.diagnosis.candidates import in_operator
from attention_conformance.conformance.diagnosis.gradient_factors import gradient_factors
from attention_conformance.conformance.faults.models.mha import LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.sdpa.scaling import unit
from attention_conformance.conformance.faults.trials import KEPT, Failed, explains
from attention_conformance.conformance.judging.outcomes import Failure

#: Most failed cases that parameters are solved for on, and most that are solved for one parameter per head or row.
SOLVED, SOLVED_APART = 8, 4

#: Steps of the solver, and halvings of a step that does not come nearer.
STEPS, HALVINGS = 25, 6

#: The share by which two steps must reduce the squared residuals while these are above one bound per number: the solver
#: converges faster from the first steps on for a parameter that gives the results, and never for others.
PROGRESS = 0.1

#: Relative distance of an estimate from a formula within which the formula itself is tried.
NEAR = 2e-3

#: Largest distance of a number of keys from a whole one, and the largest score of one key that is read as many keys of
#: score 0.
WHOLE, LARGEST_SCORE = 0.01, math.log(1000)

#: Numbers below this, added to scores around 1 in float32 at best, change nothing; and the title for that.
NOTHING, UNMASKED = 1e-5, "masked scores are left as they are"

#: A number that changes the output by at most this many units of its dtype's rounding is no explanation.
UNITS = 4

#: A number below this is tried as 0 before it is tried itself.
TINY = 1e-9

#: Numbers that a result must have for each number that is solved for.
REDUNDANT = 3

Law = Callable[[Inputs], Any]


class Fitted(Attention):
    """Attention with a number that a law gives for each call: one, (Hq, 1, 1) or (Sq, 1)."""

    law: ClassVar[Law]

    def number(self, x: Inputs) -> Array:
        """Number that the law gives for a call."""
        return np.asarray(type(self).law(x), x.work)


class ScaledScores(Fitted):
    """The scores times a number, before softcap, bias and masks."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return super().scores(x, q, k) * self.number(x)


class ScaledCosines(Fitted):
    """The cosines of queries and keys times a number."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return unit(q) @ unit(k).swapaxes(2, 3) * self.number(x)


class Tempered(Fitted):
    """The scores with their bias times a number."""

    def added(self, x: Inputs, s: Array) -> Array:
        return super().added(x, s) * self.number(x)


class Powered(Fitted):
    """The powers of the scores to another base, with lse still in the natural one."""

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        return super().powers(x, s, top) ** self.number(x)


class OtherCap(Fitted):
    """The softcap times a number."""

    def capped(self, x: Inputs, s: Array) -> Array:
        if x.softcap is None:
            return super().capped(x, s)
        cap = x.work(x.softcap) * self.number(x)
        return cap * np.tanh(s / cap)


class CapOfItsOwn(Fitted):
    """A softcap in calls that give none."""

    def capped(self, x: Inputs, s: Array) -> Array:
        if x.softcap is not None:
            return super().capped(x, s)
        cap = self.number(x)
        return cap * np.tanh(s / cap)


class BiasTimes(Fitted):
    """The bias times a number."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s + (super().added(x, s) - s) * self.number(x)


class Sloped(Fitted):
    """A number times the distance of the key from the diagonal, added to the scores."""

    def added(self, x: Inputs, s: Array) -> Array:
        return super().added(x, s) + self.number(x) * (self.keys(x) - self.diagonal(x)).astype(x.work)


class Sunk(Fitted):
    """An additional key, whose score is a number and whose value is 0."""

    def sinks(self, x: Inputs) -> Array:
        return np.logaddexp(super().sinks(x), self.number(x).reshape(-1))


class SinksTimes(Fitted):
    """The given sinks times a number."""

    def sinks(self, x: Inputs) -> Array:
        return super().sinks(x) if x.sinks is None else super().sinks(x) * self.number(x)


class GuardedTotal(Fitted):
    """A number added to the sum of the powers."""

    def total(self, x: Inputs, powers: Array) -> Array:
        return super().total(x, powers) + self.number(x)


class ScaledOutput(Fitted):
    """The output times a number."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return super().summed(x, weights, allowed, v) * self.number(x)


class SmallFill(Fitted):
    """A number of the size of scores written at masked keys."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, self.number(x))


class SmallAddend(Fitted):
    """A number of the size of scores added at masked keys."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, s + self.number(x))


#: Families whose number takes weight from all keys, and a larger number: where that gives the same, all results are
#: zeros, for which there are many reasons, and no number is known.
MORE: dict[type[Fitted], Callable[[Array], Array]] = {Sunk: lambda n: n + 10, GuardedTotal: lambda n: 1000 * n}

#: Families whose number multiplies the scores, so that a large one gives all weight to the largest score.
FACTORS = (ScaledScores, ScaledCosines, Tempered, Powered)


@dataclass(frozen=True)
class Family:
    """A parameter: the step that has it, its right value, and its title."""

    name: str
    clause: str
    make: type[Fitted]
    #: "{}" for the number.
    title: str
    #: The value that changes nothing.
    neutral: float
    starts: tuple[float, ...]
    #: Whether a call has it.
    applies: Callable[[Inputs], bool] = lambda x: True
    #: Axes along which it may differ: from head to head, from row to row.
    apart: tuple[str, ...] = ("head", "row")


def _powers(low: int, high: int, step: int = 3) -> tuple[float, ...]:
    return tuple(2.0 ** (n / step) for n in range(step * low, step * high + 1))


def _masked(x: Inputs) -> bool:
    return any(a is not None and a is not False for a in (x.mask, x.bias, x.is_causal, x.window, x.kv_lengths))


FAMILIES = (
    Family(
        "fitted-scale",
        "SDPA-3",
        ScaledScores,
        "the scores are {} times the expected ones",
        1.0,
        (0.0, -1.0, *_powers(-6, 6)),
    ),
    Family(
        "fitted-cosine",
        "SDPA-2",
        ScaledCosines,
        "queries and keys are normalised to length 1, and the scores are {} times their cosines",
        np.nan,
        _powers(-3, 6),
        apart=("head",),
    ),
    Family(
        "fitted-temperature",
        "SDPA-14",
        Tempered,
        "the scores with their bias are {} times the expected ones",
        1.0,
        (0.0, -1.0, *_powers(-6, 6)),
    ),
    Family(
        "fitted-base",
        "SDPA-14",
        Powered,
        "the softmax uses base exp({}) instead of e",
        1.0,
        _powers(-6, 6),
        apart=(),
    ),
    Family(
        "fitted-bias",
        "SDPA-6",
        BiasTimes,
        "the bias is multiplied by {}",
        1.0,
        (0.0, -1.0, *_powers(-6, 6)),
        lambda x: x.bias is not None,
    ),
    Family(
        "fitted-softcap",
        "SDPA-5",
        OtherCap,
        "the softcap is {} times the given one",
        1.0,
        _powers(-6, 6),
        lambda x: x.softcap is not None,
        (),
    ),
    Family(
        "fitted-own-softcap",
        "SDPA-5",
        CapOfItsOwn,
        "the scores are capped by a softcap of {} that no call gives",
        np.inf,
        _powers(-4, 8),
        lambda x: x.softcap is None,
        (),
    ),
    Family(
        "fitted-slope",
        "SDPA-6",
        Sloped,
        "a bias of {} times the distance of the key from the diagonal is added",
        0.0,
        tuple(sign * n for n in _powers(-10, 2, 1) for sign in (1, -1)),
        apart=("head",),
    ),
    Family(
        "fitted-sink",
        "SDPA-14",
        Sunk,
        "exp({}) is added to every softmax denominator, like a sink that no call gives",
        -np.inf,
        tuple(np.arange(-10.0, 10.0, 1.5)),
        apart=("head",),
    ),
    Family(
        "fitted-sinks",
        "SDPA-38",
        SinksTimes,
        "the sinks are {} times the given ones",
        1.0,
        (0.0, -1.0, *_powers(-6, 6)),
        lambda x: x.sinks is not None,
        (),
    ),
    Family(
        "fitted-guard",
        "SDPA-14",
        GuardedTotal,
        "{} is added to the sum of the powers",
        0.0,
        tuple(10.0**n for n in range(-12, 1)),
        apart=(),
    ),
    Family(
        "fitted-output",
        "SDPA-16",
        ScaledOutput,
        "the output is {} times the expected one",
        1.0,
        (0.0, -1.0, *_powers(-6, 6)),
    ),
    Family(
        "fitted-fill",
        "SDPA-7",
        SmallFill,
        "masked scores are filled with {}",
        -np.inf,
        (0.0, *(-n for n in _powers(-8, 14, 1)), *_powers(-4, 5, 1)),
        _masked,
        (),
    ),
    Family(
        "fitted-addend",
        "SDPA-7",
        SmallAddend,
        "{} is added to masked scores",
        -np.inf,
        (0.0, *(-n for n in _powers(-8, 14, 1)), *_powers(-4, 5, 1)),
        _masked,
        (),
    ),
)


class Estimate(NamedTuple):
    """Value of a parameter that was solved for on a case."""

    failed: Failed
    #: "", "head" or "row".
    apart: str
    #: One number, (Hq, 1, 1) or (Sq, 1).
    value: Array


# Formulas.


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call, as formulas use them."""

    hq: int
    hkv: int
    sq: int
    sk: int
    d: int
    dv: int

    @classmethod
    def of(cls, x: Inputs) -> Sizes:
        """The sizes of a call; none is 0, as formulas divide by them."""
        sizes = (x.q.shape[1], x.k.shape[1], x.q.shape[2], x.k.shape[2], x.q.shape[3], x.v.shape[3])
        return cls(*(max(1, n) for n in sizes))


def _padded(to: int) -> Callable[[Sizes], float]:
    return lambda s: 1 / math.sqrt(-(-s.d // to) * to)


#: Wrong scales, used instead of 1/√D.
SCALES: dict[str, Callable[[Sizes], float]] = {
    "1": lambda s: 1.0,
    "1/√(H·D)": lambda s: (s.hq * s.d) ** -0.5,
    "1/√(Hkv·D)": lambda s: (s.hkv * s.d) ** -0.5,
    "1/√Dv": lambda s: s.dv**-0.5,
    "1/√(D/2)": lambda s: (s.d / 2) ** -0.5,
    "1/√(2·D)": lambda s: (2 * s.d) ** -0.5,
    "1/√(3·D)": lambda s: (3 * s.d) ** -0.5,
    "1/√(4·D)": lambda s: (4 * s.d) ** -0.5,
    "1/D": lambda s: 1 / s.d,
    "√D": lambda s: s.d**0.5,
    "D": lambda s: float(s.d),
    "D^(−1/4)": lambda s: s.d**-0.25,
    "1/√H": lambda s: s.hq**-0.5,
    "1/√Sk": lambda s: s.sk**-0.5,
    "1/√Sq": lambda s: s.sq**-0.5,
    "1/Sk": lambda s: 1 / s.sk,
    "1/√(D + 1)": lambda s: (s.d + 1) ** -0.5,
    "1/√(D + Dv)": lambda s: (s.d + s.dv) ** -0.5,
    "1/√(D·Dv)": lambda s: (s.d * s.dv) ** -0.5,
    "1/√(D·Hq/Hkv)": lambda s: (s.d * s.hq / s.hkv) ** -0.5,
    "log2(e)/√D": lambda s: s.d**-0.5 / math.log(2),
    "ln 2/√D": lambda s: s.d**-0.5 * math.log(2),
    "ln(Sk)/√D": lambda s: s.d**-0.5 * math.log(s.sk),
    **{f"1/√(D padded to a multiple of {n})": _padded(n) for n in (8, 16, 32, 64, 128)},
}

#: Wrong factors of the scores, used instead of a given scale s, by s and D.
OF_GIVEN: dict[str, Callable[[float, float], float]] = {
    "divided by the scale that is given, and not multiplied by it": lambda s, d: 1 / s,
    "multiplied twice by the scale that is given": lambda s, d: s * s,
    "multiplied by the scale that is given on top of 1/√D": lambda s, d: s / math.sqrt(d),
    "divided by the scale that is given on top of 1/√D": lambda s, d: 1 / (s * math.sqrt(d)),
    "multiplied by the root of the scale that is given": lambda s, d: math.copysign(math.sqrt(abs(s)), s),
}

#: Constants with a name.
NAMED: dict[str, float] = {
    "√2": 2**0.5,
    "1/√2": 0.5**0.5,
    "log2(e)": 1 / math.log(2),
    "ln 2": math.log(2),
    "ln 10": math.log(10),
    "log10(e)": 1 / math.log(10),
}

#: Numbers per head, and per row.
HEADS: dict[str, Callable[[Sizes], Array]] = {
    "2^(−8·(h + 1)/H)": lambda s: 2.0 ** (-8 * (np.arange(s.hq) + 1) / s.hq),
    "−2^(−8·(h + 1)/H)": lambda s: -(2.0 ** (-8 * (np.arange(s.hq) + 1) / s.hq)),
    "1/(h + 1)": lambda s: 1 / (np.arange(s.hq) + 1.0),
    "h + 1": lambda s: np.arange(s.hq) + 1.0,
}
ROWS: dict[str, Callable[[Sizes], Array]] = {
    "1/(i + 1)": lambda s: 1 / (np.arange(s.sq) + 1.0),
    "i + 1": lambda s: np.arange(s.sq) + 1.0,
    "√(i + 1)": lambda s: np.sqrt(np.arange(s.sq) + 1.0),
    "1/√(i + 1)": lambda s: 1 / np.sqrt(np.arange(s.sq) + 1.0),
    "ln(i + 1)": lambda s: np.log(np.arange(s.sq) + 1.0),
    "log2(i + 1)": lambda s: np.log2(np.arange(s.sq) + 1.0),
    "log2(i + 2)": lambda s: np.log2(np.arange(s.sq) + 2.0),
    "1 + ln(i + 1)": lambda s: 1 + np.log(np.arange(s.sq) + 1.0),
}


def fitted(failures: Sequence[Failed], *, tables: bool) -> list[Fault]:
    """Parameters that give some of the failed results, each as a fault with its own title.

    Parameters
    ----------
    failures
        Failures of one operator: the first SOLVED of them that have a wrong number are solved for.
    tables
        Give the numbers as they were found, by the sizes of the call, instead of formulas and constants.

    Returns
    -------
    list of Fault
        Formulas before constants, so that the first of two that fit alike says more.
    """
    tried = list(itertools.islice(_solvable(failures), SOLVED))
    if tried and tried[0].case.operator == "sdpa_grad":
        return [] if tables else gradient_factors(tried)
    found: list[Fault] = []
    for family in FAMILIES:
        estimates = [e for n, each in enumerate(tried) for e in _estimates(family, each, n < SOLVED_APART)]
        for apart in ("", "head", "row") if not (tables and family.make is GuardedTotal) else ():
            of_kind = [e for e in estimates if e.apart == apart]
            if of_kind:
                laws = [_table(family, of_kind)] if tables else _laws(family, of_kind)
                found += [
                    Fault(
                        family.name, family.clause, title, (), in_operator(_with(family, law), tried[0].case.operator)
                    )
                    for title, law in laws
                ]
    return found


def _solvable(failures: Sequence[Failed]) -> Iterator[Failed]:
    """Failures with a wrong number, on calls that a model takes; the first one of each case."""
    seen = set()
    for failed in failures:
        wrong = failed.failure is Failure.VALUE and failed.telling and failed.case.size[0] <= KEPT
        if wrong and failed.case.operator in ("sdpa", "mha", "sublayer", "sdpa_grad") and failed.case not in seen:
            seen.add(failed.case)
            yield failed


def _with(family: Family, law: Law) -> type[Fitted]:
    return type(family.make.__name__, (family.make,), {"law": staticmethod(law), "__module__": __name__})


# Solving.


@functools.lru_cache(maxsize=1000)
def _estimates(family: Family, failed: Failed, several: bool) -> tuple[Estimate, ...]:
    """The values of a parameter that a case gives: one number, or, where that does not fit, one per head or per row."""
    return tuple(_solutions(family, failed, several))


def _solutions(family: Family, failed: Failed, several: bool) -> Iterator[Estimate]:
    x = attention_call(failed)
    if x is None or not family.applies(x):
        return
    with np.errstate(all="ignore"):
        residuals = _Residuals(family, failed)
        start = min(family.starts, key=lambda value: residuals.cost(np.array(value)), default=None)
        if start is None or not np.isfinite(residuals.cost(np.array(start))):
            return
        shapes = {"": (), "head": (x.q.shape[1], 1, 1), "row": (x.q.shape[2], 1)}
        for apart in ("", *(family.apart if several else ())):
            count = math.prod(shapes[apart])
            if (apart and count < 2) or count * REDUNDANT > residuals.numbers:
                continue
            value = residuals.solved(np.full(shapes[apart], start))
            if np.allclose(value, family.neutral, rtol=1e-3, atol=0 if family.neutral else 1e-12):
                continue
            if _explains_with(family, value, failed):
                more = MORE.get(family.make)
                if _is_rounding(family, value, failed):
                    return
                if more is None or not _explains_with(family, more(value), failed):
                    yield Estimate(failed, apart, value)
                return


def _is_rounding(family: Family, value: Array, failed: Failed) -> bool:
    """Whether a number changes the output by a few units of its dtype's rounding at most, as other rounding does."""
    make = in_operator(_with(family, lambda _: value), failed.case.operator)
    found = np.asarray(computed(make, failed.case.inputs(failed.dtype)).output, np.float64)
    right = np.asarray(failed.case.expected(failed.dtype).output, np.float64)
    unit = float(ml_dtypes.finfo(failed.dtype).eps)
    only = failed.reply.results.keys() == {"output"} and found.shape == right.shape
    return only and bool((np.abs(found - right) <= UNITS * unit * np.abs(right)).all())


def _explains_with(family: Family, value: Array, failed: Failed) -> bool:
    """Whether a number gives a result, within the bounds."""
    return explains(in_operator(_with(family, lambda _: value), failed.case.operator), failed)


def attention_call(failed: Failed) -> Inputs | None:
    """The call of attention that a case makes, within a layer or not; None where there is none."""
    return _attention_call(failed.case, failed.dtype)


@functools.lru_cache(maxsize=256)
def _attention_call(case: AnyCase, dtype: str) -> Inputs | None:
    given, operator = case.inputs(dtype), case.operator
    if operator == "sdpa":
        known = {f.name for f in fields(Inputs)}
        return Attention().joined(Inputs(**given.arrays, **{n: v for n, v in given.keywords.items() if n in known}))
    layer: Any = in_operator(_Seen, operator)()
    with np.errstate(all="ignore"):
        layer.attend(LayerCall(**given.arrays, **given.keywords))
    return layer.inner.seen


class _Seen(Attention):
    """Attention that records its call."""

    seen: Inputs | None = None

    def attend(self, x: Inputs) -> Any:
        self.seen = x
        return super().attend(x)


class _Residuals:
    """Distance of a parameter's results from the returned ones, in bounds of the case."""

    def __init__(self, family: Family, failed: Failed) -> None:
        self.family, self.failed = family, failed
        self.given = failed.case.inputs(failed.dtype)
        bound = failed.case.bound(failed.dtype, failed.profile)
        self.got: dict[str, tuple[Array, Array, Array]] = {}
        for name in ("output", "weights", "lse"):
            if name in failed.reply.results:
                values = failed.reply.results[name].astype(np.float64)
                finite = np.isfinite(values)
                least = 1e-7 * np.abs(values[finite]).max(initial=0) + 1e-30
                limit = np.broadcast_to(np.nan_to_num(getattr(bound, name), nan=0.0, posinf=1e30), values.shape)
                self.got[name] = (values[finite], np.maximum(limit, least)[finite], finite)
        self.numbers = sum(len(values) for values, _, _ in self.got.values())

    def at(self, value: Array) -> Array:
        """The residuals, one per finite number of the results."""
        make = in_operator(_with(self.family, lambda _: value), self.failed.case.operator)
        found = computed(make, self.given)
        parts = []
        for name, (values, limit, finite) in self.got.items():
            wanted = np.asarray(getattr(found, name), np.float64)
            if wanted.shape != finite.shape:
                return np.full(self.numbers, np.inf)
            parts.append((wanted[finite] - values) / limit)
        return np.concatenate(parts) if parts else np.zeros(0)

    def cost(self, value: Array) -> float:
        """The mean logarithmic size of the residuals; infinite where there are none, or any is not finite."""
        size = np.log1p(np.abs(self.at(value)))
        return float(size.mean()) if size.size and np.isfinite(size).all() else np.inf

    def solved(self, start: Array) -> Array:
        """The parameter with the least squares of the residuals, from a start nearby."""
        value, found = start.astype(np.float64), self.at(start)
        squares = [found @ found]
        for _ in range(STEPS):
            columns = []
            for place in np.ndindex(value.shape):
                step = np.zeros(value.shape)
                step[place] = 1e-6 * max(abs(float(value[place])), 1e-3)
                columns.append((self.at(value + step) - found) / step[place])
            slopes = np.stack(columns, axis=1)
            if not np.isfinite(slopes).all() or not np.isfinite(found).all():
                break
            change = -np.linalg.lstsq(slopes, found, rcond=1e-12)[0].reshape(value.shape)
            for halved in range(HALVINGS):
                nearer = self.at(value + change / 2**halved)
                if np.isfinite(nearer).all() and nearer @ nearer < found @ found:
                    break
            else:
                break
            change = change / 2**halved
            value, found = value + change, nearer
            squares.append(found @ found)
            stuck = len(squares) > 2 and squares[-1] > max(self.numbers, (1 - PROGRESS) * squares[-3])
            if stuck or np.abs(change).max() <= 1e-13 * np.abs(value).max():
                break
        return value


def computed(make: type[Model], given: Any) -> Any:
    """Results of a model for the inputs of a case, in float64, as attributes."""
    model: Any = make()
    if make.operator != "sdpa":
        return model.attend(LayerCall(**given.arrays, **given.keywords))
    known = {f.name for f in fields(Inputs)}
    return model.attend(model.joined(Inputs(**given.arrays, **{n: v for n, v in given.keywords.items() if n in known})))


# Laws.


def _laws(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    """Laws that estimates suggest, with their titles: formulas, then constants."""
    if family.make is ScaledScores and estimates[0].apart == "":
        yield from _of_given(estimates)
    formulas = {"": _formulas, "head": _head_formulas, "row": _row_formulas}[estimates[0].apart](family, estimates)
    yield from formulas
    if estimates[0].apart == "":
        yield from _constants(family, estimates)


def _of_given(estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    """Laws of the given scale, only for calls that give one; those near most estimates first."""
    given = [e for e in estimates if (x := attention_call(e.failed)) is not None and x.scale]
    found = []
    for text, scale in OF_GIVEN.items():

        def law(x: Inputs, scale: Callable[[float, float], float] = scale) -> float:
            return scale(x.scale, max(1, x.q.shape[3])) / x.scale if x.scale else 1.0

        found.append((_near(law, given), f"scores are {text}", law))
    yield from ((title, law) for near, title, law in sorted(found, key=lambda each: -each[0]) if near)


def _near(law: Law, estimates: Iterable[Estimate]) -> int:
    """Number of estimates that a law gives; 0 for the right law, as estimates are wrong numbers."""
    count = 0
    for each in estimates:
        x = attention_call(each.failed)
        wanted = np.broadcast_to(np.asarray(law(x), float), each.value.shape) if x is not None else each.value
        count += bool(np.allclose(each.value, wanted, rtol=NEAR, atol=0))
    return count


def _constant_scales(estimates: Sequence[Estimate]) -> dict[str, Callable[[Sizes], float]]:
    """Scales that are the same number in every call, from the estimates."""
    found: dict[str, Callable[[Sizes], float]] = {}
    calls = [attention_call(each.failed) for each in estimates]
    if len({x.q.shape[3] for x in calls if x is not None}) < 2:
        return found  # one width does not distinguish a scale from a factor
    for each, x in zip(estimates, calls, strict=True):
        if x is not None:
            scale = float(each.value) / math.sqrt(max(1, x.q.shape[3]))
            for number in (*_neat(scale), _square_root(scale)):
                if number and math.isclose(number, scale, rel_tol=NEAR):
                    found.setdefault(f"{_root(number)} for every D", lambda _, number=number: number)  # type: ignore[misc]
    return found


def _square_root(scale: float) -> float:
    """1/√n near a scale; 0 for none."""
    square = round(1 / scale**2) if scale and 1 / scale**2 < 1e9 else 0
    return math.copysign(square**-0.5, scale) if square else 0.0


def _gives(family: Family, law: Law, estimates: Iterable[Estimate]) -> bool:
    """Whether a law gives the results of all cases that were solved for, within their bounds."""
    return all(explains(in_operator(_with(family, law), e.failed.case.operator), e.failed) for e in estimates)


def _formulas(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    if family.make is not ScaledScores:
        return

    def relative(scale: Callable[[Sizes], float]) -> Law:
        return lambda x: scale(Sizes.of(x)) * math.sqrt(max(1, x.q.shape[3]))

    scales = SCALES | _constant_scales(estimates)
    near = {text: _near(relative(scale), estimates) for text, scale in scales.items()}
    most = max(near.values())
    fit = [text for text, count in near.items() if count == most > 0]
    for text in fit[:4]:
        law = relative(scales[text])
        others = [o for o in fit if o != text and _gives(family, relative(scales[o]), estimates)][:2]
        too = f"; {' and '.join(others)} fit{'s' if len(others) == 1 else ''} too" if others else ""
        calls = [x for e in estimates if _near(law, [e]) and (x := attention_call(e.failed)) is not None]
        widths = Counter(x.q.shape[3] for x in calls)
        x = max(calls, key=lambda x: widths[x.q.shape[3]])  # an example, of the commonest width
        title = f"{_scale_title(family, text, scales[text], x)}{too}"
        yield title, lambda x, law=law: law(x) if x.scale is None else 1.0  # type: ignore[misc]
        yield f"{title}, also where a scale is given", law


#: Calls on which a scale is compared with 1/√D, to see whether it is the same multiple of it in all.
PROBES = (Sizes(2, 1, 3, 5, 8, 4), Sizes(4, 2, 7, 6, 24, 16), Sizes(6, 3, 16, 32, 80, 64), Sizes(1, 1, 1, 1, 40, 40))


def _scale_title(family: Family, text: str, scale: Callable[[Sizes], float], x: Inputs) -> str:
    """A scale in words: as a multiple of the right one where that is constant, else only by its formula."""
    times = [scale(sizes) * math.sqrt(sizes.d) for sizes in PROBES]
    if np.allclose(times, times[0], rtol=1e-9, atol=0):
        d = f" ({_root(scale(Sizes.of(x)))} where D = {x.q.shape[3]})"
        return f"{family.title.format(_number(times[0]))}: a scale of {text}{d}"
    if math.isclose(scale(PROBES[0]), scale(PROBES[1])) and math.isclose(scale(PROBES[1]), scale(PROBES[2])):
        return f"the scores have a scale of {text} in the place of 1/√D"
    return (
        f"the scores have a scale of {text} ({_root(scale(Sizes.of(x)))} where D = {x.q.shape[3]}) in the place of 1/√D"
    )


def _scale_words(times: float, x: Inputs) -> str:
    scale = times / math.sqrt(max(1, x.q.shape[3]))
    return _root(scale)


def _root(number: float) -> str:
    """A number as 1/√n where it is one, else in digits."""
    square = 1 / number**2 if number else 0.0
    if 1 < square < 1e6 and abs(square - round(square)) < 1e-3 * square:
        root = math.isqrt(round(square))
        return f"1/{root}" if root * root == round(square) else f"1/√{round(square)}"
    return f"{number:.5g}"


def _constants(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    """Each number that was found, once, after the named and round numbers near it."""
    seen: list[float] = []
    for each in estimates:
        value = float(each.value)
        for number in _numbers(family, value):
            if not any(math.isclose(number, s, rel_tol=1e-9, abs_tol=1e-30) for s in seen):
                seen.append(number)
                if _saturated(family, number, estimates):
                    continue
                title = _constant_title(family, number, each)
                given = _one_given(number, estimates) if family.make is ScaledScores else None
                if given is None:
                    yield title, lambda _, number=number: number  # type: ignore[misc]
                else:  # other scales may have another number, so the title names this one
                    law = functools.partial(_where_given, number=number, given=given)
                    yield f"{title} where a scale of {_number(given)} is given", law


def _saturated(family: Family, number: float, estimates: Sequence[Estimate]) -> bool:
    """Whether twice a factor gives the same results: the largest score has all weight, so no number is known."""
    return family.make in FACTORS and abs(number) > 1 and _gives(family, lambda _: 2 * number, estimates)


def _one_given(number: float, estimates: Sequence[Estimate]) -> float | None:
    """The scale that is given in all cases that a factor of the scores comes from; None where there are several."""
    near = [each for each in estimates if math.isclose(float(each.value), number, rel_tol=NEAR)]
    scales = {x.scale for each in near if (x := attention_call(each.failed)) is not None}
    return scales.pop() if len(scales) == 1 else None


def _where_given(x: Inputs, number: float, given: float) -> float:
    return number if x.scale == given else 1.0


def _numbers(family: Family, value: float) -> tuple[float, ...]:
    """Numbers that an estimate may represent; for a guard, as small as rounding, only a positive round number."""
    if family.make is GuardedTotal:
        rounded = float(f"{value:.0e}")
        return (rounded,) if value > 0 and math.isclose(rounded, value, rel_tol=1e-2) else ()
    if family.make is SmallAddend and abs(value) < NOTHING:
        return (0.0,)
    return (*_neat(value), value) if abs(value) > TINY else (0.0, value)


def _whole(number: float) -> int:
    """The whole number within WHOLE of a number; 0 for none."""
    return round(number) if abs(number - round(number)) <= WHOLE else 0


def _constant_title(family: Family, number: float, estimate: Estimate) -> str:
    title, x = family.title.format(_number(number)), attention_call(estimate.failed)
    if family.make is SmallAddend and number == 0:
        return UNMASKED
    if family.make is ScaledOutput and number == 0:
        return "the output is zeros"
    if family.make is Sunk and number <= LARGEST_SCORE and (many := _whole(math.exp(number))) > 1:
        return (
            f"the softmax denominator counts {many} extra keys of score 0 and value 0, like zero padding that is not"
            " masked"
        )
    if family.make in (Tempered, Powered) and math.isclose(number, math.log(2), rel_tol=1e-6):
        return f"{title}: powers of 2 in the place of e"
    if family.make is ScaledScores and x is not None and x.scale is None:
        return f"{title} (a scale of {_scale_words(number, x)} where D = {x.q.shape[3]})"
    return title


def _neat(value: float) -> Iterator[float]:
    """Round numbers near a value."""
    yield from (named for named in NAMED.values() if math.isclose(value, named, rel_tol=NEAR))
    if value and math.isfinite(value):
        for digits in (1, 2, 3):
            rounded = float(f"{value:.{digits - 1}e}")
            if math.isclose(rounded, value, rel_tol=1e-4):
                yield rounded


def _number(value: float) -> str:
    named = next((text for text, number in NAMED.items() if math.isclose(value, number, rel_tol=1e-4)), "")
    text = f"{value:.5g}".replace("-", "−")
    return f"{text} ({named})" if named else text


def _head_formulas(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    for text, formula in HEADS.items():

        def law(x: Inputs, formula: Callable[[Sizes], Array] = formula) -> Array:
            return formula(Sizes.of(x))[:, None, None]

        if _near(law, estimates):
            yield f"{family.title.format(text)} (h is the head)", law
    yield from _by_index(family, estimates)


def _row_formulas(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    for text, formula in ROWS.items():

        def law(x: Inputs, formula: Callable[[Sizes], Array] = formula) -> Array:
            return formula(Sizes.of(x))[:, None]

        if _near(law, estimates):
            yield f"{family.title.format(text)} (i is the row)", law
    yield from _by_index(family, estimates)


def _by_index(family: Family, estimates: Sequence[Estimate]) -> Iterator[tuple[str, Law]]:
    """A number for each head, or row, that is the same in every call, like a learned one; none where calls disagree."""
    known = max((each.value for each in estimates), key=np.size)
    alike = (np.allclose(each.value, known[: len(each.value)], rtol=NEAR, atol=0) for each in estimates)
    if len(estimates) < 2 or not all(alike):
        return
    numbers = np.array([next(_neat(float(n)), float(n)) for n in known.ravel()]).reshape(known.shape)
    axis, apart = (1, "head") if estimates[0].apart == "head" else (2, "row")

    def law(x: Inputs) -> Array:
        count = x.q.shape[axis]
        return numbers[:count] if count <= len(numbers) else np.array(family.neutral)

    what = ", ".join(_number(float(n)) for n in numbers.ravel()[:6])
    yield f"{family.title.format(what)}, {apart} by {apart}", law


def _table(family: Family, estimates: Sequence[Estimate]) -> tuple[str, Law]:
    """Table of the numbers found, by the sizes of the call; other calls get the neutral number."""
    values = {_key(x): e.value for e in estimates if (x := attention_call(e.failed)) is not None}
    apart = estimates[0].apart
    what = " or ".join(
        dict.fromkeys(", ".join(_number(float(n)) for n in each.value.ravel()[:6]) for each in estimates[:3])
    )
    title = family.title.format(what) + (f", {apart} by {apart}" if apart else "")
    if family.make is SmallAddend and all(np.abs(each.value).max() < NOTHING for each in estimates):
        title = UNMASKED
    return title, lambda x: values.get(_key(x), np.array(family.neutral))


def _key(x: Inputs) -> tuple[Any, ...]:
    return x.q.shape, x.k.shape, x.v.shape, x.scale, x.softcap
