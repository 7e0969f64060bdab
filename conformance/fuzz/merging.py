r"""Two parts of the keys merged by their log-sum-exp, as split-key kernels and ring attention do, with the error.

From the outputs o₁, o₂ and lse l₁, l₂ of two disjoint parts of the keys (SDPA-14, SDPA-16, SDPA-19)

    lse = log(exp l₁ + exp l₂),   o = w o₁ + (1 − w) o₂,   w = exp(l₁ − lse) = 1 / (1 + exp(l₂ − l₁)).

A part without a key has lse −inf and output 0, so that w is 0 or 1 and nothing else has to be said (SDPA-15).

*Error.*  Write b for the bounds of the o and e = e₁ + e₂ for those of the l.  The argument of w moves by at most e, so
w moves by at most δ = max |w(x ± e) − w(x)|, and with the measured w

    |δo| ≤ w b₁ + (1 − w) b₂ + δ |o₁ − o₂|,   |δlse| ≤ max(e₁, e₂),

the o on the right being the exact ones, and lse a weighted mean of the l to first order along every path.  The
arithmetic here is in float64: ROUNDINGS of its unit roundoff cover its few operations.
"""

from __future__ import annotations

import numpy as np

from conformance.bounds import UNIT_ROUNDOFF
from conformance.fuzz.measured import Measured

#: Roundings of a merged element: one subtraction, exp, addition, division; two products and a sum; each below 1 ulp,
#: which is two unit roundoffs.
ROUNDINGS = 16 * UNIT_ROUNDOFF["float64"]


def merged(o1: Measured, l1: Measured, o2: Measured, l2: Measured) -> tuple[Measured, Measured]:
    """Output (B, Hq, Sq, Dv) and lse (B, Hq, Sq) over both parts."""
    with np.errstate(all="ignore"):  # −inf − (−inf) in rows without a key
        lse = Measured(
            np.logaddexp(l1.value, l2.value),
            np.logaddexp(l1.exact, l2.exact),
            np.maximum(l1.bound, l2.bound) + ROUNDINGS * (1 + size(l1) + size(l2)),
            l1.excused | l2.excused,
        )
        error = l1.bound + l2.bound + ROUNDINGS * (size(l1) + size(l2))
        w, exact = share(l1.value, l2.value, 0.0), share(l1.exact, l2.exact, 0.0)
        moved = np.maximum(
            np.abs(share(l1.exact, l2.exact, error) - exact), np.abs(share(l1.exact, l2.exact, -error) - exact)
        )
        w, exact, moved = w[..., None], exact[..., None], moved[..., None]
        # What the measured weights may be larger than the exact ones is what they moved.
        bound = (exact + moved) * o1.bound + (1 - exact + moved) * o2.bound + moved * np.abs(o1.exact - o2.exact)
        bound += ROUNDINGS * (np.abs(o1.exact) + np.abs(o2.exact))
    excused = o1.excused | o2.excused | lse.excused[..., None]
    return Measured(mixed(w, o1.value, o2.value), mixed(exact, o1.exact, o2.exact), bound, excused), lse


def share(l1: np.ndarray, l2: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """The weight of the first part, its lse shifted; 0 where neither part has a key (both outputs are 0)."""
    return np.where(np.isneginf(l1), 0.0, 1 / (1 + np.exp(l2 - l1 - shift)))


def mixed(w: np.ndarray, o1: np.ndarray, o2: np.ndarray) -> np.ndarray:
    """The mean of two outputs with weight w of the first."""
    return w * o1 + (1 - w) * o2


def size(lse: Measured) -> np.ndarray:
    """|lse|, 0 where it is −inf."""
    return np.where(np.isfinite(lse.exact), np.abs(lse.exact), 0.0)
