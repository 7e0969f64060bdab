"""Random problems of the evidence: every option of the spec, drawn independently, the same for the same index.

Shapes are log-uniform, so that short and long, narrow and wide are equally frequent.  What is limited is the work of
one problem, and then by fewer rows, heads and batches: the lengths of the two sums, D and Sk, are what the bound is
about, and are never cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.data import Rng, Shape
from attention_conformance.conformance.cases.store import RANDOM
from attention_conformance.conformance.properties.problem import Axes, Problem, RandomBias, RandomMask

#: Seeds everything; the evidence of another seed is other problems.
SEED = 25

#: Largest width of a head, keys, query rows, batches, key heads, and query heads per key head.
WIDTH, KEYS, ROWS, BATCHES, HEADS, GROUP = 256, 4096, 8, 2, 2, 3

#: B · Hq · Sq · Sk · (D + Dv) of one problem, at most: one row of the largest lengths and widths.
WORK = 2**21

#: Dtypes and how many of a hundred problems have each.
DTYPES = {"float32": 40, "bfloat16": 25, "float16": 25, "float64": 10}

#: How many of a hundred problems have each option.
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
}

#: Ranges of the log-uniform sizes: of q and k, of values, of the offset of all scores, of one key over the others.
SPREAD, VALUES, OFFSET, OUTLIER = (0.01, 30.0), (0.01, 100.0), (1.0, 1e4), (1.0, 50.0)
#: The same for a given scale, as a multiple of 1/√D, for softcap, and for the spread of a bias.
SCALE, SOFTCAP, BIAS = (0.01, 10.0), (0.5, 100.0), (0.01, 30.0)


@dataclass(frozen=True)
class Limits:
    """The largest problem: keys, query rows, and B · Hq · Sq · Sk · (D + Dv)."""

    keys: int = KEYS
    rows: int = ROWS
    work: int = WORK


def random_problem(index: int) -> Problem:
    """The problem of an index, always the same one."""
    return drawn_problem(np.random.default_rng((SEED, index)), f"evidence-{index}", Limits())


def drawn_problem(rng: Rng, name: str, limits: Limits) -> Problem:
    """A problem of this name, every option of it drawn."""
    shape = _shape(rng, limits)
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
    """None of the keys, all of them, or any number, for each batch."""
    return tuple(int(rng.choice([0, s.sk, *rng.integers(s.sk + 1, size=2)])) for _ in range(s.b))


def _side(rng: Rng, s: Shape) -> int | None:
    """A side of a window: open, or from 0 to all keys."""
    return None if rng.random() < 0.3 else log_integer(rng, s.sk + 1) - 1


def scaled(rng: Rng, width: int) -> float:
    """0 every eighth time, else a multiple of the default of either sign."""
    if rng.random() < 1 / 8:
        return 0.0
    return signed(rng, log_uniform(rng, *SCALE)) / math.sqrt(width)


def axes(rng: Rng) -> Axes:
    """Which axes of a mask or bias are full, and how many it has."""
    rank = int(rng.integers(1, 5)) if happens(rng, "lower rank") else 4
    return tuple(1 if happens(rng, "broadcast") else None for _ in range(rank))


def happens(rng: Rng, name: str, of_hundred: Mapping[str, int] = CHANCE) -> bool:
    """Whether a problem has this option."""
    return bool(rng.random() < of_hundred[name] / 100)


def signed(rng: Rng, size: float) -> float:
    """Of either sign."""
    return size if rng.random() < 0.5 else -size


def log_uniform(rng: Rng, low: float, high: float) -> float:
    """Three digits are enough, and can be read."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def log_integer(rng: Rng, most: int) -> int:
    """1 to ``most``; each number n with probability log((n + 1) / n)."""
    return int(math.exp(rng.uniform(0.0, math.log(most + 1))))
