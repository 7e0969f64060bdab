r"""How far a gradient may be from the reference, element by element (GRAD-9); continues the derivation of BOUNDS.md.

Notation as there, for one query row: p_j the weights, ε_j ≥ |δs_j| the error of a score, w and u the unit roundoffs
of the accumulator and of the storage dtype, g(n) the error of a sum of n terms, η what underflow takes; further g the
row of ``grad_output``, a_j = dP_j = Σ_d g_d v_jd, δ = Σ_m p_m a_m = Σ_d g_d o_d, and dS_j = p_j (a_j − δ). p̂ is a
perturbed weight.

1. *Weights.* A backward pass keeps the weights, or recomputes them as exp(s_j − L) from the stored log-sum-exp L.
   Then a score is computed twice and L has an error of its own, so that with ε'_j = ε_j + 6 w (1 + |L| + max |s|)

       p_j exp(−ε'_j) / Σ p_m exp(ε_m) ≤ p̂_j ≤ p_j exp(ε'_j) / Σ p_m exp(−ε_m);

   with n w for the sum of powers, and what underflow takes, this gives π_j ≥ |δp_j|.  Recomputed weights need not add
   up to 1 and may exceed it, so π_j ≤ max(p_j, 1 − p_j) in ``storage`` only, where weights are kept.
2. *dP.* A product of Dv terms: |δa_j| ≤ (g(Dv) + 2 · operand) Σ_d |g_d v_jd|, and one rounding where it is stored.
3. *δ.* Perturbed scores move both of its forms, as Σ p_m (a_m − δ) = 0, by at most Σ p_m (exp(ε_m) − 1) |a_m − δ| /
   Σ p_m exp(−ε_m), and never by more than max |a_m − δ|.  To this comes the larger of two errors:
   As Σ p̂_m â_m: Σ p̂_m |δa_m|, the sum, g(n) Σ p̂_m |a_m|, and where weights do not add up to 1, (n w + …) |δ|.
   As Σ g_d ô_d, as flash kernels compute it, with the output *as it was stored*: Σ_d |g_d| times the error of o_d by
   step 3 of BOUNDS.md, with one rounding to storage in ``fused`` and ``storage`` (w in ``wide``), and g(Dv) Σ_d |g_d
   o_d|.  Rounded weights enter every o_d alike, so that they give u Σ_m p̂_m |a_m| and not u Σ_d |g_d| Σ_m p̂_m
   |v_md|.
4. *dS.* |δdS_j| ≤ π_j |a_j − δ| + p̂_j (|δa_j| + |δδ|) + 6 w p̂_j (|a_j| + |δ|): p (a − δ) and p a − p δ are both in
   use.  ``fused`` rounds it before the products; ``storage`` rounds every array, 4 u instead of 6 w.  A program that
   differentiates exp(s − max s) as it stands adds the derivative of the shift, −Σ_j dS_j, at the largest score.  It is
   0 but for roundings, those of all elements of the row, of δ, and g(n) Σ_j |dS_j| of its own sum.
5. *Softcap.* The slope t = 1 − tanh² falls as |raw| grows, so its error is the larger of its changes to |raw| ± e;
   computed from tanh it has an absolute error of 2 tanh² times the relative one of tanh, and one rounding.
6. *Sums.* dQ = scale Σ_j dS_j k_j with errors E_j of dS_j: scale Σ_j E_j |k_j|, (g(n) + 3 w + 2 · operand) Σ |terms|,
   and n w |dQ|, since terms of one sign may all be rounded one way (BOUNDS.md, step 3). dK, dV and dbias likewise; n
   is the number of pairs that are summed, of key, row and query head.  What is summed over a group may have been
   stored for each query head: u Σ_h |dK_h|.  Where n = 0 the gradient is exactly zero, and so is its bound (GRAD-7,
   GRAD-8).
7. *Storing.* One rounding, and η; in ``storage`` also of the product before and after it is scaled.
8. *Operands that are results*, as q, k, v and ``grad_output`` are in a layer, with errors |δq|, |δk|, |δv| and |δg|.
   Scores take those of q and k into ε (BOUNDS.md, step 5). dP moves by
   μ_j = Σ_d |δg_d||v_jd| + (|g_d| + |δg_d|)|δv_jd|, and δ, in both of its forms, by Σ p̂_m μ_m, for
   Σ_d ĝ_d Σ_m p̂_m v̂_md and Σ_m p̂_m Σ_d ĝ_d v̂_md are one sum. The derivative of the shift does not see this: Σ_j dS_j
   is 0 for any operands. In the sums of step 6 each term is the product of dS_j + E_j with k_j + δk_j, off by
   E_j |k_j| + (|dS_j| + E_j) |δk_j|; with q and g likewise. These errors need not be small against what they are
   errors of, so every rounding is relative to the sum of both.

Profiles: ``wide`` rounds nothing but results; ``fused`` the output before δ, the weights before Pᵀ dO, and dS before
its products; ``storage``, a backward pass in the storage precision, every array between two operations.  The
reference's own error, the same bound with float64's roundoff, is added.  In longer words: BOUNDS.md, "Gradients".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from conformance.bounds import Options, Rounding, growth, rounding
from conformance.gradients.errors import Errors, GradOperandErrors, intermediates
from conformance.gradients.reference import GradExpected, over_groups, sum_to
from impls.contract import Profile

Array = np.ndarray


def bound(expected: GradExpected, options: Options, dtype: str, profile: Profile) -> dict[str, Array]:
    """Bounds on |result − reference| by the name of the gradient, each in its shape.

    ``options`` are those of conformance.bounds.  An element whose reference is not finite is compared by class.
    """
    with np.errstate(all="ignore"):
        theirs = bound_under(expected, options, rounding(dtype, profile))
        ours = bound_under(expected, options, rounding("float64", Profile.WIDE))
    return {name: theirs[name] + ours[name] for name in theirs}


class HasGradients(Protocol):
    """A reference of gradients: of sdpa, or of a layer."""

    @property
    def gradients(self) -> dict[str, Array]:
        """By name."""


def telling(expected: HasGradients, bound: Mapping[str, Array]) -> tuple[str, ...]:
    """Names of the gradients that can fail: an element exceeds its bound, or the bound is 0 everywhere.

    The second is a gradient that is exactly zero by GRAD-7 or GRAD-8.  One without elements cannot fail by value.
    """
    return tuple(
        name
        for name, gradient in expected.gradients.items()
        if gradient.size and ((np.abs(gradient) > bound[name]).any() or not bound[name].any())
    )


def check_telling(expected: HasGradients, bound: Mapping[str, Array], names: Collection[str] = ()) -> None:
    """Refuse an input whose reference gradient is below its own bound everywhere, as zeros would pass.

    ``names`` are the gradients that have to tell; without them any one has to, unless all are without elements, so
    that their shapes are what is tested.  Raises ValueError with a sentence that gives the sizes.
    """
    told = telling(expected, bound)
    present = tuple(name for name, gradient in expected.gradients.items() if gradient.size)
    silent = [name for name in names if name not in told] if names else [*present] * (not told)
    if silent:
        raise ValueError("zeros would pass as gradients: " + "; ".join(_sizes(expected, bound, n) for n in silent))


def _sizes(expected: HasGradients, bound: Mapping[str, Array], name: str) -> str:
    """How far a gradient is below its bound, in words."""
    gradient = np.abs(expected.gradients.get(name, np.zeros(0)))
    if not gradient.size:
        return f"{name} has no elements"
    share = np.max(gradient / np.where(bound[name] > 0, bound[name], np.inf))
    return f"{name} is nowhere larger than {share:.2g} times its bound, and at most {gradient.max():.2g}"


def bound_under(
    x: GradExpected, options: Options, r: Rounding, operands: GradOperandErrors | None = None
) -> dict[str, Array]:
    """Steps 1 to 8 with the given roundoffs, of a program alone: the reference's own error is not added.

    With ``operands`` the program works with q, k, v and grad_output that are off by as much; without, with exact ones.
    """
    errors, f, heads = intermediates(x, options, r, operands), x.forward, x.grad_k.shape[1]
    scale, by_key = abs(x.scale), np.swapaxes(f.allowed, 2, 3)
    # dS is stored before the products, in ``storage`` once more when it is scaled, or else an element of q or k is.
    scaled = r.weight + 2 * r.score
    lost = max(1.0, scale) * (r.flushed + (r.underflow if r.weight else 0.0))

    off = (None, None, None) if operands is None else (operands.q, operands.k, operands.grad_output)
    q, k, g = (_Operand(_finite(a), e) for a, e in zip((f.q, f.k, x.grad_output), off, strict=True))
    grad_q = scale * _summed(x.d_raw, errors.d_raw, k, f.allowed, f.q.shape[1], scaled, r)
    grad_q += lost * _sums(f.allowed, k.size, f.q.shape[1])
    d_raw, d_raw_error = np.swapaxes(x.d_raw, 2, 3), np.swapaxes(errors.d_raw, 2, 3)
    grad_k = scale * _summed(d_raw, d_raw_error, q, by_key, heads, scaled, r)
    grad_k += lost * _sums(by_key, q.size, heads)
    if r.score:
        grad_k += lost * _sums(np.abs(d_raw) + (0.0 if operands is None else d_raw_error), np.ones_like(q.x), heads)
    weights, weights_error = np.swapaxes(np.where(f.allowed, f.weights, 0.0), 2, 3), np.swapaxes(errors.weights, 2, 3)
    grad_v = _summed(weights, weights_error, g, by_key, heads, r.weight, r)
    grad_v += (r.flushed + (r.underflow if r.weight else 0.0)) * _sums(by_key, g.size, heads)

    some = over_groups(by_key.sum(axis=3), heads) > 0
    found = {"grad_q": (grad_q, f.allowed.sum(axis=3) > 0), "grad_k": (grad_k, some), "grad_v": (grad_v, some)}
    # Each head's own gradient, where it is stored, may underflow, and so may the sum; in ``storage`` unscaled, too.
    least = r.underflow * (1 + max(1.0, scale) * (r.score > 0)) + lost * (f.q.shape[1] // heads if heads else 1)
    results = {name: _where(where[..., None], array + least) for name, (array, where) in found.items()}
    if x.grad_bias is not None:
        results["grad_bias"] = _of_bias(x, errors, x.grad_bias.shape, r, exact=operands is None)
    return results


@dataclass(frozen=True)
class _Operand:
    """What a term is multiplied by, and how far it is off: None for not at all."""

    x: Array
    error: Array | None

    @property
    def size(self) -> Array:
        """How large it may be."""
        return np.abs(self.x) if self.error is None else np.abs(self.x) + self.error


def _summed(
    terms: Array, error: Array, other: _Operand, allowed: Array, heads: int, rounded: float, r: Rounding
) -> Array:
    """Steps 6 and 8: Σ_c terms[…, a, c] · other[…, c, :] over the allowed pairs, summed over groups: (B, heads, A, X).

    ``rounded`` is what each term is rounded by before the product.
    """
    product, moved = terms @ other.x, error @ np.abs(other.x)
    if other.error is not None:
        moved = moved + (np.abs(terms) + error) @ other.error
    size = np.abs(terms) @ np.abs(other.x) + moved
    grouped = heads != terms.shape[1]
    stored = over_groups(np.abs(product) + moved, heads) if grouped else 0.0
    n = over_groups(allowed.sum(axis=3), heads)[..., None]
    relative = growth(n, r) + 3 * r.accumulator + 2 * r.operand + rounded
    total = np.abs(over_groups(product, heads)) + (0.0 if other.error is None else over_groups(moved, heads))
    result = over_groups(moved, heads) + relative * over_groups(size, heads) + r.weight * stored
    return result + (n * r.accumulator + r.store + 2 * r.score) * total


def _of_bias(x: GradExpected, errors: Errors, shape: tuple[int, ...], r: Rounding, exact: bool) -> Array:
    """Steps 6 and 7 for dS summed over the axes along which bias is broadcast; ``exact`` operands, or step 8."""
    n = sum_to(x.forward.allowed.astype(float), shape)
    size = sum_to(np.abs(x.d_scores) + errors.d_scores, shape)
    total = np.abs(sum_to(x.d_scores, shape)) + (0.0 if exact else sum_to(errors.d_scores, shape))
    result = sum_to(errors.d_scores, shape) + (growth(n, r) + r.weight) * size
    result += (n * r.accumulator + r.store + r.score) * total
    result += n * (r.flushed + (r.underflow if r.weight else 0.0)) + r.underflow
    return _where(n > 0, result)


def _sums(terms: Array, other: Array, heads: int) -> Array:
    """Σ |terms| |other| over the groups, (B, heads, A, X)."""
    return over_groups(np.abs(terms.astype(float)) @ np.abs(other), heads)


def _where(some: Array, array: Array) -> Array:
    """The bound, infinite where it is no number, and exactly 0 where nothing is summed."""
    return np.where(some, np.nan_to_num(array, nan=np.inf, posinf=np.inf), 0.0)


def _finite(array: Array) -> Array:
    """The array with 0 for NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
