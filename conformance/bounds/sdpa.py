r"""(SDPA-25) Error bounds of sdpa: how far a result may be from the reference, element by element.

The bound follows the computation of one query row, with the unit roundoffs of the places where a correct
program of the declared profile rounds (SDPA-25).  Write s_j for the exact score of key j, p_j for its weight,
o = Σ p_j v_j for the output.

1. *Score.*  A dot product of D terms has an error of at most g(D) Σ|q_d k_d|, with g(n) = min(n, λ√n) w, where w is the
   unit roundoff of the accumulator.  n w holds always (Higham, Accuracy and Stability of Numerical Algorithms,
   2002, §3.1, first order); λ√n w holds with probability at least 1 − 2 exp(−λ²/2) if rounding errors are
   mean-independent (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019, Theorem 2.4).  Scaling, softcap and bias add
   one rounding each; the slope of softcap, 1 − tanh², shrinks what came before.  This gives ε_j ≥ |δs_j|.  A scale per
   head is one more factor (SDPA-43); ALiBi is a product with a distance, which is exact, and a sum (SDPA-42); rotated q
   and k (SDPA-44) arrive as in step 5, off by two products and a sum each, and stored.
2. *Softmax.*  With perturbed scores the output is Σ p_j r_j v_j / Σ p_m r_m with r_j = exp(δs_j).  As Σ p_j (v_j − o)
   is 0, exactly and not only to first order,

       |δo| ≤ Σ_j p_j (exp(ε_j) − 1) |v_j − o| / Σ_m p_m exp(−ε_m),

   and, weights being positive and adding up to 1, never more than max_j |v_j − o|.  A weight lies between
   p_j exp(−ε_j) / Σ p_m exp(ε_m) and p_j exp(ε_j) / Σ p_m exp(−ε_m), and lse moves by log Σ p_m exp(±ε_m).
   The errors of exp and of its argument are errors of the score (Blanchard, Higham & Higham, IMA J. Numer. Anal.
   41(4), 2021, §4).
   Where a score may move far, p_j exp(±ε_j) is exp(s_j − lse ± ε_j): p_j alone may have underflowed in float64.
3. *Weighted sum.*  g(Sk) Σ p_j |v_j| for the sum above the fraction, and one rounding of every weight where the profile
   rounds weights; Sk counts the keys that the row may attend to, as adding 0 is exact.  Sk w |o| for the sum of powers
   below it: they are positive and may be nearly equal, and where such numbers are added one by one their roundings go
   the same way, and are not mean-independent.
   A power exp(s_j − max s) that underflows loses at most η, which depends on the dtype that it is in.  The sum of the
   powers is at least 1, as the largest is exp(0), so the weight loses at most η, the output η Σ|v_j| and the sum η Sk.
   The same once more for a weight that is stored.
   With sinks (SDPA-38) all of this holds with one more key, whose score is the sink, without an error of its own, and
   whose value is 0.
4. *Storing.*  One rounding of the result to its dtype, and the dtype's smallest number where it underflows.
5. *Operands that are results.*  In a layer q, k and v are results themselves, off by δq, δk and δv.  A score then moves
   by at most |scale| Σ_d (|δq_d||k_d| + |q_d||δk_d| + |δq_d||δk_d|), which joins ε_j, and the output by Σ p̂_j |δv_j|
   for the perturbed weights p̂; roundings are relative to |q| + |δq|, |k| + |δk| and |v| + |δv|.

The reference, computed in float64, has an error of its own: the same bound with float64's roundoff, which is added.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import PROFILES, Profile

#: λ of the probabilistic bound: a sum leaves it with probability below 2 exp(−18) = 3e-8.
LAMBDA = 6.0

#: Relative error of exp, in units of the accumulator's roundoff.  Library functions stay within 4; kernels that
#: use polynomial approximations of 20 bits (2^-20 = 16 · 2^-24) are correct float32 programs too.
EXP_ERROR = 16.0

#: The same for tanh and log.
FUNCTION_ERROR = 6.0

#: Elements of the largest temporary array; rows are processed in blocks to stay below it, and within a core's cache:
#: with 4,000,000 a call of 8 × 128 × 128 × 64 took three times as long.
BLOCK_ELEMENTS = 250_000
#: Below this many keys a matrix product for each row costs more than it saves.
FEW_KEYS = 16

#: Half the distance between 1 and the next number: 2^-p for a significand of p bits.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

#: What underflow may lose: half the subnormal spacing of float16, whose subnormals every device keeps; for the others,
#: whose subnormals many devices flush to zero, the smallest normal number.
UNDERFLOW = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}

#: Largest finite number, beyond which a result may be infinite.
LARGEST = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
}


@dataclass(frozen=True)
class Rounding:
    """Unit roundoffs of the places where a program rounds; 0 where it does not."""

    accumulator: float
    #: q, k and v as they enter a matrix product.
    operand: float
    #: Each stored stage of a score, its exponential and their sum.
    score: float
    #: Weights before they meet v.
    weight: float
    #: Results, as they are returned.
    store: float
    #: What underflow may lose of a number in the storage dtype, and in the dtype that is computed in.
    underflow: float
    flushed: float


def rounding(dtype: str, profile: Profile) -> Rounding:
    """The roundings of a profile with this storage dtype.

    float16 and bfloat16 accumulate in float32 in every profile: a sum of hundreds of terms in 8 or 11 bits is
    wrong, not imprecise.

    Parameters
    ----------
    dtype
        Storage dtype: float64, float32, float16 or bfloat16.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    Rounding
        Roundoffs, relative (half a unit in the last place), and the least subnormal numbers, absolute.
    """
    store = UNIT_ROUNDOFF[dtype]
    accumulator = min(store, UNIT_ROUNDOFF["float32"])
    tf32 = 2.0**-11 if profile is Profile.TF32 else 0.0
    score = store if profile is Profile.STORAGE else 0.0
    weight = store if profile in (Profile.STORAGE, Profile.FUSED) else tf32
    flushed = UNDERFLOW["float64" if dtype == "float64" else "float32"]
    return Rounding(accumulator, tf32, score, weight, store, UNDERFLOW[dtype], flushed)


def profiles(dtype: str) -> tuple[Profile, ...]:
    """The profiles that differ for a dtype, from strict to loose.

    Parameters
    ----------
    dtype
        Storage dtype: float64, float32, float16 or bfloat16.

    Returns
    -------
    tuple[Profile, ...]
        The profiles; one where all are the same, as in float64.
    """
    return PROFILES[dtype]


@dataclass(frozen=True)
class Bound:
    """Bounds on |result − reference|, in the shapes of the results."""

    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray
    #: Zeros: past and new keys and values are copied, not computed (DEC-3).
    present_key: np.ndarray | None = None
    present_value: np.ndarray | None = None


@dataclass(frozen=True)
class Options:
    """The options of a call that affect roundings (SDPA-3 to SDPA-6)."""

    scale: float | None = None
    softcap: float | None = None
    bias: np.ndarray | None = None
    head_scale: np.ndarray | None = None

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Options:
        """The options among the keywords of a call."""
        return cls(**{name: keywords[name] for name in ("scale", "softcap", "bias", "head_scale") if name in keywords})


@dataclass(frozen=True)
class OperandErrors:
    """|δq| (B, Hq, Sq, D), |δk| (B, Hq, Sk, D) and |δv| (B, Hq, Sk, Dv) of step 5, one key head per query head."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def bound(
    expected: Expected, options: Options, dtype: str, profile: Profile, operands: OperandErrors | None = None
) -> Bound:
    """The bound for one input; rows whose reference is not finite are compared by class.

    Parameters
    ----------
    expected
        The reference of the input.
    options
        Options of the call.
    dtype
        Dtype of the inputs and of the results: float64, float32, float16 or bfloat16.
    profile
        Precision profile: where the program rounds.
    operands
        Errors of q, k and v, in a program that computes them; None: they are exact.

    Returns
    -------
    Bound
        Largest allowed error of each element, in the shapes of the results.
    """
    with np.errstate(all="ignore"):
        whole, ours = _own(expected, options)
        if operands is not None and whole is not expected:  # a sink is exact
            empty = ((0, 0), (0, 0), (0, 1), (0, 0))
            operands = OperandErrors(operands.q, np.pad(operands.k, empty), np.pad(operands.v, empty))
        r = rounding(dtype, profile)
        exact = operands is None and r == rounding("float64", Profile.WIDE)
        theirs = ours if exact else bound_under(whole, options, r, operands)
    weights = (theirs.weights + ours.weights)[..., : expected.weights.shape[3]]
    present = (None if a is None else np.zeros(a.shape) for a in (expected.present_key, expected.present_value))
    return Bound(theirs.output + ours.output, weights, theirs.lse + ours.lse, *present)


#: The last reference of each thread, with its options: its own error is the same under every profile of a dtype.
_LAST = threading.local()


def _own(expected: Expected, options: Options) -> tuple[Expected, Bound]:
    """A reference with its sinks as keys, and the bound on its own error, from its computation in float64."""
    last: tuple[Expected, Options, tuple[Expected, Bound]] | None = getattr(_LAST, "of", None)
    if last is not None and last[0] is expected and _same(last[1], options):
        return last[2]
    whole = with_sinks(expected)
    found = whole, bound_under(whole, options, rounding("float64", Profile.WIDE))
    _LAST.of = expected, options, found
    return found


def _same(one: Options, other: Options) -> bool:
    return (
        (one.scale, one.softcap) == (other.scale, other.softcap)
        and one.bias is other.bias
        and (one.head_scale is other.head_scale)
    )


def with_sinks(expected: Expected) -> Expected:
    """(SDPA-38) A sink is one more key, whose score is given and whose value is 0.

    Parameters
    ----------
    expected
        The reference, float64.

    Returns
    -------
    Expected
        The same with scores and weights (B, Hq, Sq, Sk + 1), and v (B, Hkv, Sk + 1, Dv).
    """
    if expected.sinks is None:
        return expected

    def behind(array: np.ndarray, column: np.ndarray | float, axis: int) -> np.ndarray:
        shape = tuple(1 if at == axis else n for at, n in enumerate(array.shape))
        return np.concatenate([array, np.broadcast_to(np.asarray(column, array.dtype), shape)], axis)

    score = expected.sinks[:, None, None]
    p = np.exp(score - np.where(np.isneginf(score), 0.0, expected.lse[..., None]))
    return replace(
        expected,
        weights=behind(expected.weights, p, 3),
        scores=behind(expected.scores, score, 3),
        raw=behind(expected.raw, 0.0, 3),
        alibi=None if expected.alibi is None else behind(expected.alibi, 0.0, 3),
        rotary=None if expected.rotary is None else (expected.rotary[0], behind(expected.rotary[1], 0.0, 2)),
        allowed=behind(expected.allowed, score > -np.inf, 3),
        k=behind(expected.k, 0.0, 2),
        v=behind(expected.v, 0.0, 2),
        sinks=None,
    )


def growth(n: int | np.ndarray, r: Rounding) -> np.ndarray:
    """g(n): relative error of a sum of n terms, against the sum of their absolute values.

    Parameters
    ----------
    n
        Numbers of terms, of any shape.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    np.ndarray
        Relative, in the shape of ``n``.
    """
    return np.minimum(n, LAMBDA * np.sqrt(n)) * r.accumulator


def bound_under(expected: Expected, options: Options, r: Rounding, operands: OperandErrors | None = None) -> Bound:
    """Steps 1 to 5 for a program with the given roundoffs; the reference's own error is not added.

    ``operands`` are the errors of the program's q, k and v, which are exact without it.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale, softcap and bias of the call.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.
    operands
        |error| of q, k and v, one key head per query head; None: they are exact.

    Returns
    -------
    Bound
        |error|, absolute: output (B, Hq, Sq, Dv) and lse (B, Hq, Sq).
    """
    if expected.rotary is not None:
        operands = rotary_errors(expected, r)
    epsilon = score_error(expected, options, r, operands)
    keys = expected.allowed.sum(axis=3, keepdims=True)
    p = expected.weights
    raised, lowered = _weights_moved(expected, epsilon), _weights_moved(expected, -epsilon)
    low, high = np.sum(lowered, axis=3, keepdims=True), np.sum(raised, axis=3, keepdims=True)
    low, high = np.where(keys > 0, low, 1.0), np.where(keys > 0, high, 1.0)
    off = None if operands is None else np.where(np.isfinite(operands.v), operands.v, 0.0)
    moved, magnitude = _perturbed(expected, epsilon, raised, low, off)

    values = growth(keys, r) + 3 * r.accumulator
    # Powers that underflow where they are stored, against their sum, which is at least 1: the largest is exp(0).
    powers = (keys + 3) * r.accumulator + (r.underflow * keys if r.score else 0.0)
    size = np.abs(expected.output) + (0.0 if off is None else moved)
    output = moved + (values + r.weight + 2 * r.operand) * magnitude + (powers + r.score) * size
    output += _underflow_of_weights(expected, r, off) + r.store * size + r.underflow

    farther = np.nan_to_num(np.maximum(raised / low - p, p - lowered / high), nan=np.inf)
    weights = np.minimum(farther + p * (powers + 2 * r.score), np.maximum(p, 1 - p))
    weights += r.store * p + (2 if r.score else 1) * r.underflow  # underflow of the power and of the weight
    weights = np.where(expected.allowed, weights, 0.0)  # SDPA-7: exactly zero

    # No mean of exp(±ε) is farther from 1 than the largest.
    spread = np.fmin(np.fmax(np.log(high), -np.log(low)), epsilon.max(3, keepdims=True, initial=0.0))[..., 0]
    size = np.where(np.isfinite(expected.lse), np.abs(expected.lse), 0.0)
    top = np.max(np.where(expected.allowed, np.abs(expected.scores), 0.0), axis=3, initial=0.0)
    logarithm = np.where(np.isfinite(expected.lse), expected.lse - expected.scores.max(3, initial=-np.inf), 0.0)
    # SDPA-19: lse is stored in float32 or wider, whatever the dtype of the output; with stored scores the sum of the
    # powers, its logarithm and that plus the largest score are rounded before.
    lse = spread + powers[..., 0] + FUNCTION_ERROR * r.accumulator * (1 + size + top) + r.score * (1 + logarithm + size)
    return Bound(output, weights, lse)


def rotary_errors(expected: Expected, r: Rounding) -> OperandErrors:
    """(SDPA-44) Errors that rotating q and k adds to step 5: two products and a sum, stored in the storage dtype."""
    q, k = (
        (3 * r.accumulator + 2 * r.score + r.store) * size + np.where(size > 0, r.underflow, 0.0)
        for size in expected.rotary or ()
    )
    return OperandErrors(q, k, np.zeros_like(expected.v))


def _weights_moved(expected: Expected, change: np.ndarray) -> np.ndarray:
    """The weights times exp(change), (B, Hq, Sq, Sk); from the scores if it is large, as p may have underflowed."""
    logarithm = np.where(expected.allowed, expected.scores - expected.lse[..., None], -np.inf)
    return np.where(np.abs(change) < 1, expected.weights * np.exp(change), np.exp(logarithm + change))


def score_error(expected: Expected, options: Options, r: Rounding, operands: OperandErrors | None = None) -> np.ndarray:
    """ε of step 1, with the error of exp counted as its argument's, (B, Hq, Sq, Sk); 0 at keys that are not allowed.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale, softcap and bias of the call.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.
    operands
        |error| of q, k and v, one key head per query head; None: they are exact.

    Returns
    -------
    np.ndarray
        |error|, absolute and in the unit of the scores.
    """
    width = expected.q.shape[3]
    scale: np.ndarray | float = options.scale if options.scale is not None else 1 / np.sqrt(width)
    if options.head_scale is not None:
        scale = scale * options.head_scale.astype(np.float64)[:, None, None]
    q, k = np.abs(expected.q), np.swapaxes(np.abs(expected.k), 2, 3)
    size = abs(scale) * (q @ k)
    raw = np.abs(expected.raw)
    off: np.ndarray | float = 0.0
    if operands is not None:
        dq, dk = operands.q, np.swapaxes(operands.k, 2, 3)
        off = abs(scale) * (dq @ k + (q + dq) @ dk)
        q, k, size = q + dq, k + dk, size + off
    # Elements of q and k scaled, or the product scaled; the scale itself is rounded once.
    error = (
        (growth(width, r) + 3 * r.accumulator + 2 * r.operand + 2 * r.score) * size + 4 * r.score * (raw + off) + off
    )
    if options.head_scale is not None:  # one more factor
        error += (r.accumulator + r.score) * size
    if r.score:  # underflow of an element that is scaled, or of the product before it is scaled
        error += np.maximum(1.0, np.abs(scale)) * r.underflow * (1 + q.sum(3)[..., None] + k.sum(2)[:, :, None, :])
    score = raw
    if options.softcap is not None:
        error += (2 * r.accumulator + r.score) * (raw + off)
        slope = 1 - np.tanh(np.maximum(raw - error, 0.0) / options.softcap) ** 2
        score = options.softcap * np.tanh(raw / options.softcap)
        error = slope * error + (FUNCTION_ERROR * r.accumulator + 3 * r.score) * score
    if options.bias is not None:
        error += (r.accumulator + r.score) * np.where(expected.allowed, np.abs(expected.scores), 0.0)
    if expected.alibi is not None:  # the product with a distance, and the sum
        size = np.where(expected.allowed, np.abs(expected.scores) + np.abs(expected.alibi), 0.0)
        error += (2 * r.accumulator + 2 * r.score) * size
    # exp(s − m): the subtraction, the argument (times log2 e for exp2), and exp itself.
    top = np.max(expected.scores, axis=3, keepdims=True, initial=-np.inf)
    distance = np.where(expected.allowed, top - expected.scores, 0.0)
    final = np.where(expected.allowed, np.abs(expected.scores), 0.0)
    error += (r.accumulator + r.score) * distance + 2 * r.accumulator * final + EXP_ERROR * r.accumulator + r.score
    return np.where(expected.allowed, error, 0.0)


def _perturbed(
    expected: Expected, epsilon: np.ndarray, raised: np.ndarray, low: np.ndarray, off: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on |δo| of steps 2 and 5, and on Σ p̂|v| under the perturbed weights; both (B, Hq, Sq, Dv).

    ``off`` is |δv|, or None where v is exact.
    """
    v = np.where(np.isfinite(expected.v), expected.v, 0.0)
    b, h, rows, keys = epsilon.shape
    moved = np.zeros((b, h, rows, v.shape[3]))
    p = expected.weights
    pull = np.where(epsilon < 1, p * np.expm1(epsilon), raised - p) / low
    # Where the pulls add up to less than 1, they move the output by less than the farthest value's distance: skip it.
    far = np.asarray(~(pull.sum(3) < 1).all((0, 1)))
    # For a row that sees every key of its head, the largest value is the head's.
    part_seen = np.asarray(~expected.allowed.all((0, 1, 3)))
    farthest = np.full_like(moved, np.inf)
    largest = np.repeat(np.abs(v).max(2, keepdims=True, initial=0.0), rows, axis=2)
    largest_off = (
        np.zeros_like(moved) if off is None else np.repeat(off.max(2, keepdims=True, initial=0.0), rows, axis=2)
    )
    block = max(1, BLOCK_ELEMENTS // max(1, b * h * keys * v.shape[3]))
    space = np.empty((b, h, min(block, rows), keys, v.shape[3]))  # new memory for each block is slower
    for start in range(0, rows, block):
        part = slice(start, start + block)
        distance = space[:, :, : min(block, rows - start)]
        np.subtract(v[:, :, None], expected.output[:, :, part, None], out=distance)
        np.abs(distance, out=distance)
        if keys < FEW_KEYS:
            moved[:, :, part] = np.einsum("bhij,bhijd->bhid", pull[:, :, part], distance)
        else:
            moved[:, :, part] = np.matmul(pull[:, :, part, None], distance)[:, :, :, 0]
        allowed = expected.allowed[:, :, part, :, None]
        if far[part].any():
            farthest[:, :, part] = np.where(allowed, distance, 0.0).max(3, initial=0.0)
        if part_seen[part].any():
            largest[:, :, part] = np.where(allowed, np.abs(v[:, :, None]), 0.0).max(3, initial=0.0)
            if off is not None and largest_off is not None:
                largest_off[:, :, part] = np.where(allowed, off[:, :, None], 0.0).max(3, initial=0.0)
    moved = np.where(np.isfinite(moved), np.minimum(moved, farthest), farthest)
    factor = np.exp(2 * epsilon.max(3, keepdims=True, initial=0.0))
    magnitude = np.minimum(np.nan_to_num(factor * (expected.weights @ np.abs(v)), nan=np.inf), largest)
    if off is None:
        return moved, magnitude
    values_moved = np.minimum(np.nan_to_num(factor * (expected.weights @ off), nan=np.inf), largest_off)
    return moved + values_moved, magnitude + values_moved


def _underflow_of_weights(expected: Expected, r: Rounding, off: np.ndarray | None) -> np.ndarray:
    """Σ|v| over the allowed keys times what a weight loses when it, and before it its power, underflows."""
    lost = r.flushed + ((r.weight > 0) + (r.score > 0)) * r.underflow
    v = np.abs(np.where(np.isfinite(expected.v), expected.v, 0.0)) + (0.0 if off is None else off)
    return lost * (expected.allowed.astype(float) @ v)
