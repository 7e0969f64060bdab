"""The random problems of the evidence: every option of the spec, drawn independently, the same for the same index.

Shapes are log-uniform, so that short and long, narrow and wide are equally frequent.  What is limited is the work of
one problem, and then by fewer rows, heads and batches: the lengths of the two sums, D and Sk, are what the bound is
about, and are never cut.
"""

from __future__ import annotations

import math

import numpy as np

from conformance.cases.data import Rng, Shape
from conformance.problem import Axes, Problem, RandomBias, RandomMask

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


def random_problem(index: int) -> Problem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index))
    shape = _shape(rng)
    is_causal = _happens(rng, "is_causal")
    window = (_side(rng, shape), _side(rng, shape)) if _happens(rng, "window") else None
    shifted = (is_causal or window is not None) and _happens(rng, "causal_offset")
    return Problem(
        name=f"evidence-{index}",
        shape=shape,
        spread=_log_uniform(rng, *SPREAD),
        offset=_signed(rng, _log_uniform(rng, *OFFSET)) if _happens(rng, "offset") else 0.0,
        outlier=_log_uniform(rng, *OUTLIER) if _happens(rng, "outlier") else 1.0,
        values=_log_uniform(rng, *VALUES) if _happens(rng, "values") else 1.0,
        mask=RandomMask(round(float(rng.uniform(0.05, 0.95)), 2), _axes(rng)) if _happens(rng, "mask") else None,
        bias=RandomBias(_log_uniform(rng, *BIAS), _axes(rng)) if _happens(rng, "bias") else None,
        is_causal=is_causal,
        causal_offset=_causal_offset(rng, shape) if shifted else None,
        window=window,
        kv_lengths=_lengths(rng, shape) if _happens(rng, "kv_lengths") else None,
        scale=_scale(rng, shape.d) if _happens(rng, "scale") else None,
        softcap=_log_uniform(rng, *SOFTCAP) if _happens(rng, "softcap") else None,
        return_weights=_happens(rng, "return_weights"),
        return_lse=_happens(rng, "return_lse"),
    )


def dtype_of(index: int) -> str:
    """The dtype that the problem of an index is judged in."""
    of_hundred = np.array(list(DTYPES.values()))
    return list(DTYPES)[int(np.random.default_rng((SEED, index, 1)).choice(len(DTYPES), p=of_hundred / 100))]


def _shape(rng: Rng) -> Shape:
    d, dv, keys = (_log_integer(rng, most) for most in (WIDTH, WIDTH, KEYS))
    dv = d if _happens(rng, "same width") else dv
    rows, batches, heads, group = (int(rng.integers(1, most + 1)) for most in (ROWS, BATCHES, HEADS, GROUP))
    if _happens(rng, "as many rows as keys"):
        rows = keys = min(keys, ROWS)

    def work() -> int:
        return batches * heads * group * rows * keys * (d + dv)

    while work() > WORK and rows > 1:
        rows -= 1
    if work() > WORK:
        group = 1
    if work() > WORK:
        heads = 1
    if work() > WORK:
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
    return None if rng.random() < 0.3 else _log_integer(rng, s.sk + 1) - 1


def _scale(rng: Rng, width: int) -> float:
    """0 every eighth time, else a multiple of the default of either sign."""
    if rng.random() < 1 / 8:
        return 0.0
    return _signed(rng, _log_uniform(rng, *SCALE)) / math.sqrt(width)


def _axes(rng: Rng) -> Axes:
    """Which axes of a mask or bias are full, and how many it has."""
    rank = int(rng.integers(1, 5)) if _happens(rng, "lower rank") else 4
    return tuple(1 if _happens(rng, "broadcast") else None for _ in range(rank))


def _happens(rng: Rng, name: str) -> bool:
    return bool(rng.random() < CHANCE[name] / 100)


def _signed(rng: Rng, size: float) -> float:
    return size if rng.random() < 0.5 else -size


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    """Three digits are enough, and can be read."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def _log_integer(rng: Rng, most: int) -> int:
    """1 to ``most``; each number n with probability log((n + 1) / n)."""
    return int(math.exp(rng.uniform(0.0, math.log(most + 1))))
