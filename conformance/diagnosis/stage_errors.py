"""Stage errors: masks, scores, softmax or weighted sum, whichever spent the bound, read off returned weights and lse.

Each stage must keep its own part of the error analysis in bounds/sdpa.py.  Weights w show the masks (a weight that must
be zero, or must not be), the scores up to a common shift (log w_j − log w_m = s_j − s_m) and the softmax (Σ w = 1);
the output compared with Σ w v shows the weighted sum.  lse by itself separates the scores from the later stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds.sdpa import Bound, Options, Rounding, growth, rounding, score_error
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.judge import dtypes_of
from attention_conformance.conformance.judging.message import place
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile

#: Weights below this, relative to the largest of their row, are not read: in float16 they have only a few bits left.
READ = 2.0**-10

#: The axes of the weights that softmax is not over.
OTHER_AXES = {2: "query rows", 1: "heads", 0: "batches"}

#: What lse by itself says, by its name, scores or lse where the output is right, and whether it is right.
ALONE = {
    ("scores", False): ": the scores or masks are wrong",
    ("scores", True): ": what comes after them is wrong",
    ("lse", False): ": the output is right, so only lse itself is wrong",
    ("lse", True): ": it keeps its bound, and so does the output",
}


@dataclass(frozen=True)
class Stage:
    """A stage and its worst error, as a share of its part of the bound."""

    name: str
    share: float
    #: Further words on it.
    note: str = ""


def stage_errors(
    results: Mapping[str, np.ndarray],
    expected: Expected,
    bound: Bound,
    options: Options,
    dtype: str,
    profile: Profile,
) -> tuple[Stage, ...]:
    """Errors of the stages that returned results show, in the order of the computation.

    Parameters
    ----------
    results
        Results as returned: the output (B, Hq, Sq, Dv), and weights (B, Hq, Sq, Sk) or lse (B, Hq, Sq).
    expected, bound
        The reference's results and their bounds, of the same shapes.
    options
        Scale, softcap and bias of the call.
    dtype, profile
        The storage dtype, and what is stored in it between stages.

    Returns
    -------
    tuple of Stage
        Masks, scores, softmax and weighted sum from weights; from lse only the scores, or lse itself where the output
        is right; and none without either.  Where the reference is not finite, lse must be of the same class.
    """
    got = {name: array.astype(np.float64) for name, array in results.items()}
    with np.errstate(all="ignore"):
        if "weights" in got:
            return _by_weights(got["output"], got["weights"], expected, options, rounding(dtype, profile))
        if "lse" in got:
            right = (shares(got["output"], expected.output, bound.output, dtype) <= 1).all()
            share = shares(got["lse"], expected.lse, bound.lse, dtypes_of("lse", dtype)[0]).max(initial=0.0)
            return (Stage("lse" if right else "scores", float(share)),)
    return ()


def _by_weights(
    output: np.ndarray, w: np.ndarray, expected: Expected, options: Options, r: Rounding
) -> tuple[Stage, ...]:
    p, allowed = expected.weights, expected.allowed
    kept = r.store + r.weight + 2 * r.score + growth(p.shape[3], r) + 4 * r.accumulator
    misplaced = np.any((np.abs(w) > 0) & ~allowed) or np.any((w == 0) & (p > READ))
    error = np.minimum(score_error(expected, options, r), 1e3)  # past this everything is allowed, and exp overflows
    largest = p.argmax(axis=3)[..., None] if p.shape[3] else np.zeros((*p.shape[:3], 0), int)
    read = (w > 0) & (p > READ * p.max(axis=3, keepdims=True, initial=0))
    ratio = np.where(read, np.log(np.where(read, w / np.where(p > 0, p, 1), 1.0)), 0.0)
    shift = np.take_along_axis(ratio, largest, 3)
    limit = error + np.take_along_axis(error, largest, 3) + 2 * kept
    scores = _worst(ratio - shift, limit, read & np.take_along_axis(read, largest, 3))
    rows = allowed.any(axis=3)
    lost = r.store + r.underflow * p.shape[3]
    total = np.where(rows, p.sum(axis=3), 0.0)  # 1, or less with sinks
    softmax = _worst(
        w.sum(axis=3) - total, np.full(rows.shape, kept + lost), ~np.isnan(total) | ~np.isnan(w.sum(axis=3))
    )
    others = [name for axis, name in OTHER_AXES.items() if w.size and np.all(np.abs(w.sum(axis) - 1) <= kept + lost)]
    v = np.where(np.isfinite(expected.v), expected.v, 0.0)
    size, summed = w @ np.abs(v), w @ v
    limit = (kept + r.operand) * size + r.store * np.abs(summed) + r.underflow * (1 + allowed.astype(float) @ np.abs(v))
    weighted = _worst(output - summed, limit, np.isfinite(expected.output) & np.isfinite(summed))
    return (
        Stage("masks", np.inf if misplaced else 0.0),
        Stage("scores", scores),
        Stage("softmax", softmax, f", those over the {others[0]} are" if others else ""),
        Stage("weighted sum", weighted),
    )


def _worst(error: np.ndarray, limit: np.ndarray, where: np.ndarray) -> float:
    """The largest |error| / limit where it counts; NaN there is beyond any bound."""
    share = np.where(error == 0, 0.0, np.abs(error) / limit)
    share = np.where(np.isnan(share), np.inf, share)
    return float(share[where].max(initial=0.0))


def stage_lines(found: Sequence[Stage], results: Mapping[str, np.ndarray], expected: Expected, note: str) -> list[str]:
    """The stages in words, and where weights are misplaced; ``note`` says where the results come from."""
    if not found:
        return []
    texts = [f"{s.name} {'right' if s.share <= 1 else _times(s.share)}" for s in found]
    first = next((s for s in found if s.share > 1), None)
    verdict = f": the {first.name} went wrong first" if first else ": each keeps its part of the bound"
    softmax = next((s for s in found if s.name == "softmax" and s.share > 1), None)
    if softmax:
        verdict = f": the sums of the weights over the keys are not 1{softmax.note}"
    if len(found) == 1:
        verdict = ALONE[found[0].name, first is None]
    return [f"Stages:   {', '.join(texts)}{verdict}{note}", *_misplaced_lines(results, expected)]


def _times(share: float) -> str:
    return "wrong" if np.isinf(share) else f"{share:.3g} times their bound"


def _misplaced_lines(results: Mapping[str, np.ndarray], expected: Expected) -> list[str]:
    """Rows and keys that have a weight and must not, or the other way round."""
    if "weights" not in results:
        return []
    w = results["weights"].astype(np.float64)
    lines = []
    for text, where in (
        ("weight at keys that are not allowed", (np.abs(w) > 0) & ~expected.allowed),
        ("no weight at allowed keys", (w == 0) & (expected.weights > READ)),
    ):
        if where.any():
            batch, head, row = next(zip(*np.nonzero(where.any(axis=3)), strict=True))
            keys = np.flatnonzero(where[batch, head, row]).tolist()
            rows = np.flatnonzero(where.any(axis=(0, 1, 3))).tolist()
            one = f"batch {batch}, head {head}, row {row}: {place('key', keys, w.shape[3])}"
            lines.append(f"Keys:     {text}: {place('row', rows, w.shape[2])}; in {one}")
    return lines
