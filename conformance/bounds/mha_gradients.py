r"""(GRAD-26) Error bounds of the gradients of a layer: its operators' bounds, each fed with the previous one's error.

As in ``bounds/mha.py``, in every profile what one operator hands to the next is stored in the storage dtype, here in
the forward pass (q, k, v and the combined heads C) and in the backward pass (dC, dQ, dK, dV, and the parts of the
gradient of an input).  Notation as there: u and w are the unit roundoffs of storage dtype and accumulator, g(n) the
error of a sum of n terms, η what underflow takes, *stored* is u in ``storage`` and 0 in the other profiles; |δx| is the
error that x arrives with and |x| + |δx| its size.

1. *Forward pass*: |δq|, |δk|, |δv| and |δC| are steps 1 and 2 of ``bounds/mha.py``.
2. *dC* = dY w_oᵀ, of exact dY and w_o, is a projection without a bias: step 1 there.  Without w_o it is dY, exact.
3. *Heads*: ``bounds/gradients.py`` with |δq|, |δk|, |δv| and |δdC| as the errors of operands (its step 8)
   gives |δdQ|, |δdK|, |δdV| and the bound of the gradient of bias.
4. *Weights*: the gradient Σ_r x_r y_r over the n = B · S rows of all samples, of a column x of X and y of dQ, dK, dV or
   dY.  With c = Σ |δx||y| + (|x| + |δx|)|δy|,

       error ≤ c + (g(n) + 2 operand)(Σ |x||y| + c) + n w (|Σ x y| + c) + stored Σ_b (|Σ_r∈b x y| + c_b) + u (…) + η.

   n w is for terms of one sign, which may all be rounded one way (BOUNDS.md, step 3).  ``storage`` may store the
   product of each sample before it adds them.
5. *Biases*: the same with x = 1.  The gradient of b_k is 0 whatever the error of dK, but a program sums its own dK, so
   its bound is not 0.
6. *Inputs*: dX = Σ dZ wᵀ over the projections Z that X enters, one, two or three of them.  They may be one sum over n
   columns in all (weights side by side), or one each, stored and then added:

       error ≤ Σ_z c_z + (g(n) + 2 operand) Σ_z size_z + [several] m u Σ_z (|dZ wᵀ| + c_z) + u (…) + η,

   with c_z = |δdZ||wᵀ|, size_z = |dZ||wᵀ| + c_z, and m the number of projections.
7. *Zeros*: where every term of a sum is zero and cannot be off, so is the sum: rows of padded keys (GRAD-23) and rows
   without a key (GRAD-24), whose combined heads are 0, have the bound 0.

BOUNDS.md, "Gradients", has the long version.

The reference, computed in float64, has an error of its own: the same bound with float64's roundoff, which is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_conformance.conformance.bounds import gradients as of_heads
from attention_conformance.conformance.bounds import sdpa as of_sdpa
from attention_conformance.conformance.bounds.gradients import GradOperandErrors, both
from attention_conformance.conformance.bounds.mha import projection_error
from attention_conformance.conformance.bounds.sdpa import OperandErrors, Options, Rounding, growth
from attention_conformance.conformance.spec.mha import combine, split
from attention_conformance.conformance.spec.mha_gradients import LayerGradExpected
from attention_conformance.impls.contract import Profile

Array = np.ndarray

#: An array and the error that it arrives with.
Off = tuple[Array, Array]


def bound(expected: LayerGradExpected, options: Options, dtype: str, profile: Profile) -> dict[str, Array]:
    """Bounds on |result − reference| by the name of the gradient, each in its shape.

    ``options`` are the scale and the bias of the call.  Elements whose reference is not finite are compared by class.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale and bias of the call.
    dtype
        Storage dtype of the gradients.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    dict[str, Array]
        |error|, absolute, by the name of the gradient.
    """
    return both(lambda r: bound_under(expected, options, r), dtype, profile)


def bound_under(expected: LayerGradExpected, options: Options, r: Rounding) -> dict[str, Array]:
    """The bound of a program with the given roundoffs; the reference's own error is not added.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale and bias of the call.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    dict[str, Array]
        |error|, absolute, by the name of the gradient, each in its shape.
    """
    x, layer, heads = expected, expected.layer, expected.heads.forward.q.shape[1]
    operands, combined = _operands(x, options, r, heads)
    found = of_heads.bound_under(x.heads, options, r, operands)
    q, k, v = (
        (gradient, combine(found[name])) for gradient, name in ((x.d_q, "grad_q"), (x.d_k, "grad_k"), (x.d_v, "grad_v"))
    )
    y = _exact(x.grad_output)
    by_queries, by_keys = [(q, layer.q.w)], [(k, layer.k.w), (v, layer.v.w)]
    of_x_q = of_input([*by_queries, *by_keys] if layer.self_attention else by_queries, r)
    bounds = {
        "grad_x_q": x.form.output(of_x_q),
        "grad_w_q": of_weight(_exact(layer.q.x), q, r),
        "grad_w_k": of_weight(_exact(layer.k.x), k, r),
        "grad_w_v": of_weight(_exact(layer.v.x), v, r),
        "grad_x_kv": x.form.output(of_input(by_keys, r)),
        "grad_b_q": of_bias(q, r),
        "grad_b_k": of_bias(k, r),
        "grad_b_v": of_bias(v, r),
        "grad_b_o": of_bias(y, r),
    }
    if layer.out is not None:
        bounds["grad_w_o"] = of_weight((layer.out.x, combined), y, r)
    if "grad_bias" in found:
        bounds["grad_bias"] = found["grad_bias"]
    return {name: _number(bounds[name]) for name in x.gradients}


def _operands(x: LayerGradExpected, options: Options, r: Rounding, heads: int) -> tuple[GradOperandErrors, Array]:
    """Steps 1 and 2: the errors of the inputs of the heads' backward pass, and the error of the combined heads."""
    q, k, v = (split(projection_error(p, None, r), heads) for p in (x.layer.q, x.layer.k, x.layer.v))
    attended = of_sdpa.bound_under(x.heads.forward, options, r, OperandErrors(q, k, v))
    exact = np.zeros_like(x.grad_output)
    g = exact if x.d_combined is None else projection_error(x.d_combined, None, r)
    output = np.where(x.heads.forward.allowed.any(axis=3, keepdims=True), attended.output, 0.0)
    return GradOperandErrors(q, k, v, split(g, heads)), combine(output)


def _exact(array: Array) -> Off:
    """An array of the call's arguments, which has no error."""
    return array, np.zeros_like(array)


def of_weight(x: Off, y: Off, r: Rounding) -> Array:
    """Step 4: the error of Σ xᵀ y over the rows of all samples, (inputs, outputs).

    Parameters
    ----------
    x
        Values with their |error|, (B, S, inputs).
    y
        Values with their |error|, (B, S, outputs).
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error|, (inputs, outputs).
    """
    (a, da), (b, db) = x, y
    by_column = np.swapaxes(a, 1, 2), np.swapaxes(da, 1, 2)
    carried = by_column[1] @ np.abs(b) + (np.abs(by_column[0]) + by_column[1]) @ db
    return _of_rows(by_column[0] @ b, carried, np.abs(by_column[0]) @ np.abs(b) + carried, a.shape[0] * a.shape[1], r)


def of_bias(y: Off, r: Rounding) -> Array:
    """Step 5: the error of the sum of the rows of all samples, (outputs,).

    Parameters
    ----------
    y
        Values with their |error|, (B, S, outputs).
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error|, (outputs,).
    """
    b, db = y
    return _of_rows(b.sum(axis=1), db.sum(axis=1), (np.abs(b) + db).sum(axis=1), b.shape[0] * b.shape[1], r)


def _of_rows(parts: Array, carried: Array, size: Array, count: int, r: Rounding) -> Array:
    """Steps 4, 5 and 7, from the sum of each sample along the first axis, its error and its size; ``count`` is n."""
    stored = r.score * (np.abs(parts) + carried) + (r.underflow if r.score else 0.0)
    total, carried, size = np.abs(parts.sum(axis=0)), carried.sum(axis=0), size.sum(axis=0)
    error = carried + (growth(count, r) + 2 * r.operand) * size + count * r.accumulator * (total + carried)
    error += stored.sum(axis=0) + count * r.flushed
    return np.where(size == 0, 0.0, error + r.store * (total + error) + r.underflow)


def of_input(parts: Sequence[tuple[Off, Array]], r: Rounding) -> Array:
    """Step 6: the error of Σ dZ wᵀ, (B, S, E), from dZ (B, S, F) and w (E, F) of each projection.

    Parameters
    ----------
    parts
        dZ (B, S, F) with its |error|, and w (E, F), of each projection.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error|, (B, S, E).
    """
    columns = sum(w.shape[1] for _, w in parts)
    sums, carried, size = (np.zeros((*parts[0][0][0].shape[:2], len(parts[0][1]))) for _ in range(3))
    stored = np.zeros_like(sums)
    for (z, dz), w in parts:
        product, moved = z @ w.T, dz @ np.abs(w.T)
        sums, carried = sums + product, carried + moved
        size = size + np.abs(z) @ np.abs(w.T) + moved
        stored = stored + np.abs(product) + moved
    error = carried + (growth(columns, r) + 2 * r.operand) * size + columns * r.flushed
    if len(parts) > 1:
        error += len(parts) * (r.store * stored + r.underflow)
    return np.where(size == 0, 0.0, error + r.store * (np.abs(sums) + error) + r.underflow)


def _number(array: Array) -> Array:
    """The bound, infinite where it is NaN."""
    return np.nan_to_num(array, nan=np.inf, posinf=np.inf)
