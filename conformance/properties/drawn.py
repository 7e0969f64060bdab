"""Random problems of sdpa, decoding and sdpa_grad: every option drawn independently, the same for the same index.

Shapes are log-uniform, so that short and long, narrow and wide are equally frequent.  The work of one problem is
limited by cutting rows, heads and batches: the lengths of the two sums, D and Sk, are what the bound is about, and are
never cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.data import Rng, Shape
from attention_conformance.conformance.cases.gradient import GradientCase
from attention_conformance.conformance.cases.store import RANDOM
from attention_conformance.conformance.properties.problem import Axes, Problem, RandomBias, RandomMask
from attention_conformance.conformance.spec.inputs import GradientInputs

#: The seed of everything; another seed gives evidence from other problems.
SEED = 25

#: Part of the seed, so that these problems differ from those of sdpa with the same index.
DECODING, GRADIENTS = 2, 3

#: Largest width of a head, keys, query rows, batches, key heads, and query heads per key head.
WIDTH, KEYS, ROWS, BATCHES, HEADS, GROUP = 256, 4096, 8, 2, 2, 3

#: B · Hq · Sq · Sk · (D + Dv) of one problem, at most: one row of the largest lengths and widths.
WORK = 2**21

#: Dtypes, and the percentage of problems in each.
DTYPES = {"float32": 40, "bfloat16": 25, "float16": 25, "float64": 10}

#: Percentage of problems that have each option.
CHANCE = {
    "mask": 25,
    "bias": 25,
    "is_causal": 25,
    "causal_offset": 50,  # of those with is_causal or window
    "window": 15,
    "kv_lengths": 15,
    "scale": 30,
    "softcap": 12,
    "return_weights": 20,
    "return_lse": 20,
    "offset": 40,
    "outlier": 30,
    "values": 30,
    "same width": 40,  # Dv = D
    "broadcast": 40,  # an axis of a mask or bias has length 1
    "lower rank": 15,  # a mask or bias has fewer than four axes
    "as many rows as keys": 8,
    "sinks": 20,
    "all new": 60,  # the rows' own keys are the new ones, as in every step of a model
    "ones": 15,  # the loss is the sum of the output
}

#: Ranges of the log-uniform sizes: of q and k, of values, of the offset of all scores, of one key over the others.
SPREAD, VALUES, OFFSET, OUTLIER = (0.01, 30.0), (0.01, 100.0), (1.0, 1e4), (1.0, 50.0)
#: The same for a given scale, as a multiple of 1/√D, for softcap, and for the spread of a bias.
SCALE, SOFTCAP, BIAS = (0.01, 10.0), (0.5, 100.0), (0.01, 30.0)
#: Spreads of sinks, and of a gradient of the output.
SINKS, GRADIENT = (0.1, 30.0), (0.01, 30.0)


@dataclass(frozen=True)
class Limits:
    """The largest problem: keys, query rows, and B · Hq · Sq · Sk · (D + Dv)."""

    keys: int = KEYS
    rows: int = ROWS
    work: int = WORK


#: Decoding has few rows and many keys; a backward pass has as many sums over rows as over keys.
DECODED, DIFFERENTIATED = Limits(keys=1024, work=2**20), Limits(keys=512, rows=64, work=2**19)


def random_problem(index: int) -> Problem:
    """The problem of an index, always the same one."""
    return drawn_problem(np.random.default_rng((SEED, index)), f"evidence-{index}", Limits())


def drawn_problem(rng: Rng, name: str, limits: Limits) -> Problem:
    """A problem of this name, with every option drawn."""
    return problem_of(rng, name, _shape(rng, limits))


def problem_of(rng: Rng, name: str, shape: Shape) -> Problem:
    """A problem of this name and shape, with every option drawn."""
    is_causal = happens(rng, "is_causal")
    window = (_side(rng, shape), _side(rng, shape)) if happens(rng, "window") else None
    shifted = (is_causal or window is not None) and happens(rng, "causal_offset")
    return Problem(
        name=name,
        shape=shape,
        spread=log_uniform(rng, *SPREAD),
        offset=signed(rng, log_uniform(rng, *OFFSET)) if happens(rng, "offset") else 0.0,
        outlier=log_uniform(rng, *OUTLIER) if happens(rng, "outlier") else 1.0,
        values=log_uniform(rng, *VALUES) if happens(rng, "values") else 1.0,
        mask=RandomMask(round(float(rng.uniform(0.05, 0.95)), 2), axes(rng)) if happens(rng, "mask") else None,
        bias=RandomBias(log_uniform(rng, *BIAS), axes(rng)) if happens(rng, "bias") else None,
        is_causal=is_causal,
        causal_offset=_causal_offset(rng, shape) if shifted else None,
        window=window,
        kv_lengths=_lengths(rng, shape) if happens(rng, "kv_lengths") else None,
        scale=scaled(rng, shape.d) if happens(rng, "scale") else None,
        softcap=log_uniform(rng, *SOFTCAP) if happens(rng, "softcap") else None,
        return_weights=happens(rng, "return_weights"),
        return_lse=happens(rng, "return_lse"),
    )


@dataclass(frozen=True)
class DecodeProblem:
    """A problem of sdpa whose first ``past`` keys are past ones; ``sinks`` is the spread of its sinks."""

    of_sdpa: Problem
    past: int
    sinks: float | None = None

    @property
    def shape(self) -> Shape:
        """Lengths and widths; Sk counts past and new keys."""
        return self.of_sdpa.shape

    def case(self) -> Case:
        """The problem as a case, for every dtype."""
        case = self.of_sdpa.case()
        extra = {} if self.sinks is None else {"sinks": partial(_per_head, self.sinks)}
        return replace(case, past=self.past, options={**case.options, **extra})


def decode_problem(index: int) -> DecodeProblem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index, DECODING))
    return with_past(rng, drawn_problem(rng, f"evidence-decode-{index}", DECODED))


def with_past(rng: Rng, problem: Problem) -> DecodeProblem:
    """The problem with a drawn number of past keys, and drawn sinks."""
    sinks = log_uniform(rng, *SINKS) if happens(rng, "sinks") else None
    keys, rows = problem.shape.sk, problem.shape.sq
    past = keys - rows if keys >= rows and happens(rng, "all new") else int(rng.integers(keys + 1))
    return DecodeProblem(problem, past, sinks)


def _per_head(spread: float, rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return (spread * rng.standard_normal(s.hq)).astype(dtype)


@dataclass(frozen=True)
class GradientProblem:
    """A problem of sdpa with a gradient of its output: normal numbers of this spread, or ones times it."""

    of_sdpa: Problem
    gradient: float
    ones: bool = False

    @property
    def shape(self) -> Shape:
        """Lengths and widths."""
        return self.of_sdpa.shape

    def case(self) -> GradientCase:
        """The problem as a case, for every dtype."""
        x = self.of_sdpa.case()
        return GradientCase(x.name, ("GRAD-9",), x.why, x.shape, x.data, x.options, edit=self._sized, dtypes=x.dtypes)

    def _sized(self, x: GradientInputs) -> GradientInputs:
        return replace(x, grad_output=sized(x.grad_output, self.gradient, self.ones))


def sized(drawn: np.ndarray, size: float, ones: bool) -> np.ndarray:
    """A gradient of the output: the drawn one, or ones, times a size."""
    array: Any = np.ones(drawn.shape) if ones else drawn.astype(np.float64)
    return (size * array).astype(drawn.dtype)


def gradient_problem(index: int) -> GradientProblem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index, GRADIENTS))
    problem = drawn_problem(rng, f"evidence-gradient-{index}", DIFFERENTIATED)
    problem = replace(problem, return_weights=False, return_lse=False)
    return GradientProblem(problem, log_uniform(rng, *GRADIENT), happens(rng, "ones"))


def once(problem: Any, dtype: str) -> Any:
    """The case of a random problem in one dtype, in a store that forgets: few are needed again."""
    return replace(problem.case(), dtypes=(dtype,), store=RANDOM)


def dtype_of(index: int) -> str:
    """The dtype that the problem of an index is judged in."""
    of_hundred = np.array(list(DTYPES.values()))
    return list(DTYPES)[int(np.random.default_rng((SEED, index, 1)).choice(len(DTYPES), p=of_hundred / 100))]


def _shape(rng: Rng, limits: Limits) -> Shape:
    d, dv, keys = (log_integer(rng, most) for most in (WIDTH, WIDTH, limits.keys))
    dv = d if happens(rng, "same width") else dv
    rows, batches, heads, group = (int(rng.integers(1, most + 1)) for most in (limits.rows, BATCHES, HEADS, GROUP))
    if happens(rng, "as many rows as keys"):
        rows = keys = min(keys, limits.rows)

    def work() -> int:
        return batches * heads * group * rows * keys * (d + dv)

    while work() > limits.work and rows > 1:
        rows -= 1
    if work() > limits.work:
        group = 1
    if work() > limits.work:
        heads = 1
    if work() > limits.work:
        batches = 1
    return Shape(batches, heads * group, heads, rows, keys, d, dv)


def _causal_offset(rng: Rng, s: Shape) -> int | tuple[int, ...]:
    """One offset, Sk − Sq every third time, or one for each batch; from before the first key to behind the last."""
    kind = rng.integers(3)
    if kind == 0:
        return s.sk - s.sq
    drawn = tuple(int(n) for n in rng.integers(-s.sq - 1, s.sk + 2, s.b))
    return drawn[0] if kind == 1 else drawn


def _lengths(rng: Rng, s: Shape) -> tuple[int, ...]:
    """Numbers of keys for each batch: none, all, or any number."""
    return tuple(int(rng.choice([0, s.sk, *rng.integers(s.sk + 1, size=2)])) for _ in range(s.b))


def _side(rng: Rng, s: Shape) -> int | None:
    """A side of a window: open, or from 0 to all keys."""
    return None if rng.random() < 0.3 else log_integer(rng, s.sk + 1) - 1


def scaled(rng: Rng, width: int) -> float:
    """A scale: 0 every eighth time, else a multiple of the default, of either sign."""
    if rng.random() < 1 / 8:
        return 0.0
    return signed(rng, log_uniform(rng, *SCALE)) / math.sqrt(width)


def axes(rng: Rng) -> Axes:
    """Axes of a mask or bias that are full, and how many it has."""
    rank = int(rng.integers(1, 5)) if happens(rng, "lower rank") else 4
    return tuple(1 if happens(rng, "broadcast") else None for _ in range(rank))


def happens(rng: Rng, name: str, of_hundred: Mapping[str, int] = CHANCE) -> bool:
    """Whether a problem has this option."""
    return bool(rng.random() < of_hundred[name] / 100)


def signed(rng: Rng, size: float) -> float:
    """The number with either sign."""
    return size if rng.random() < 0.5 else -size


def log_uniform(rng: Rng, low: float, high: float) -> float:
    """A log-uniform number, rounded to three digits so that it can be read."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def log_integer(rng: Rng, most: int) -> int:
    """1 to ``most``; each number n with probability log((n + 1) / n)."""
    return int(math.exp(rng.uniform(0.0, math.log(most + 1))))
