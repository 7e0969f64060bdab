"""(MHA-…, SUB-…) Multi-head attention and its sub-layer in float64 NumPy, over the reference of ``sdpa``.

Written to be read next to SPEC.md (MHA-…, SUB-…), one function per group of clauses.  Every intermediate result that an
error analysis needs is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.sdpa import Expected, InvalidInput, broadcasts

Array = np.ndarray


@dataclass(frozen=True)
class Form:
    """Form of a call's inputs and results; everything else here is (B, S, …)."""

    unbatched: bool = False
    sequence_first: bool = False
    averaged: bool = False

    def batch_first(self, x: Array) -> Array:
        """An input (S, E), (B, S, E) or (S, B, E) as (B, S, E) in float64."""
        x = x.astype(np.float64)
        if self.unbatched:
            return x[None]
        return np.swapaxes(x, 0, 1) if self.sequence_first else x

    def output(self, y: Array) -> Array:
        """(B, Sq, Eo) as the call returns it: MHA-16, MHA-17."""
        if self.unbatched:
            return y[0]
        return np.swapaxes(y, 0, 1) if self.sequence_first else y

    def weights(self, p: Array) -> Array:
        """(B, H, Sq, Sk) or, averaged, (B, Sq, Sk) as the call returns it; a sequence-first call changes nothing."""
        return p[0] if self.unbatched else p


@dataclass(frozen=True)
class Projection:
    """x @ w + b with its operands: x (B, S, E), w (E, F), b (F,) or None; ``product`` and ``result`` are (B, S, F)."""

    x: Array
    w: Array
    b: Array | None
    product: Array
    result: Array

    @property
    def size(self) -> Array:
        """Σ |x| |w| + |b|, against which rounding errors are measured, (B, S, F)."""
        size = np.abs(self.x) @ np.abs(self.w)
        return size if self.b is None else size + np.abs(self.b)


@dataclass(frozen=True)
class LayerExpected:
    """Expected results of one call of ``mha``; all arrays float64.

    ``output`` and ``weights`` (per head or averaged, whether requested or not) are in the shapes that the call returns.
    The rest is batch-first: ``q`` (B, Sq, H·D), ``k`` (B, Sk, H·D), ``v`` (B, Sk, H·Dv) and ``out`` (B, Sq, Eo) with
    their operands; ``heads``, the reference of ``sdpa`` with the projections of each head and its weights; ``combined``
    (B, Sq, H·Dv).  ``out`` is None without ``w_o``.
    """

    output: Array
    weights: Array
    q: Projection
    k: Projection
    v: Projection
    heads: Expected
    combined: Array
    out: Projection | None
    form: Form
    #: Keys and values are projections of ``x_q`` (MHA-3).
    self_attention: bool


@dataclass(frozen=True)
class Norm:
    """LayerNorm of z (B, S, E): mean and var (B, S, 1), ``normalised`` before gamma and beta, and ``result``."""

    z: Array
    mean: Array
    var: Array
    normalised: Array
    result: Array
    gamma: Array
    beta: Array
    epsilon: float


@dataclass(frozen=True)
class SublayerExpected:
    """Expected results of one call of ``sublayer``.

    ``output`` is in the shape that the call returns.  ``layer`` is the layer inside, ``norm`` the normalisation of the
    residual sum (post-norm) or of x (pre-norm); ``residual`` (B, Sq, E) is x plus the result of the layer in both.
    """

    output: Array
    layer: LayerExpected
    norm: Norm
    residual: Array
    pre_norm: bool


def mha(
    x_q: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    *,
    heads: int,
    x_kv: Array | None = None,
    w_o: Array | None = None,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    kv_lengths: Array | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
    average_weights: bool = False,
) -> LayerExpected:
    """Multi-head attention as SPEC.md defines it (Vaswani et al., 2017, §3.2.2, with biases).

    Shapes as in MHA-1, MHA-16 and MHA-17: x_q (B, Sq, E), x_kv (B, Sk, Ekv), w_q (E, H·D), w_k (Ekv, H·D), w_v (Ekv,
    H·Dv), w_o (H·Dv, Eo), biases (columns,).

    Parameters
    ----------
    x_q
        (B, Sq, E), or (Sq, E) unbatched.
    w_q
        (E, H·D).
    w_k
        (Ekv, H·D).
    w_v
        (Ekv, H·Dv).
    heads
        Number of heads, H.
    x_kv
        (B, Sk, Ekv); None for x_q.
    w_o
        (H·Dv, Eo); None for no output projection.
    b_q
        (H·D,).
    b_k
        (H·D,).
    b_v
        (H·Dv,).
    b_o
        (Eo,).
    mask
        Bool, broadcast to (B, H, Sq, Sk); True may be attended to.
    bias
        Added to the scores, broadcast to (B, H, Sq, Sk).
    is_causal
        Whether row i attends to keys up to i.
    kv_lengths
        Number of keys of each sample, (B,).
    scale
        Factor of the scores; None for 1/√D.
    sequence_first
        Whether inputs and output are (S, B, E).
    average_weights
        Whether weights are averaged over heads, (B, Sq, Sk).

    Returns
    -------
    LayerExpected
        Output (B, Sq, Eo) and weights (B, H, Sq, Sk), float64, with the intermediate results.

    Raises
    ------
    InvalidInput
        Where MHA-19 to MHA-22 require an exception.
    """
    inputs = x_q if x_kv is None else x_kv
    check_ranks(x_q, inputs)
    form = Form(x_q.ndim == 2, sequence_first, average_weights)
    queries, keys = form.batch_first(x_q), form.batch_first(inputs)
    check_heads(heads, w_q=w_q, w_k=w_k, w_v=w_v)
    check_widths(queries, keys, w_q, w_k, w_v)
    check_scores(form, (queries.shape[0], heads, queries.shape[1], keys.shape[1]), mask, bias)
    with np.errstate(all="ignore"):
        q = project("b_q", queries, w_q, b_q)
        k = project("b_k", keys, w_k, b_k)
        v = project("b_v", keys, w_v, b_v)
        attended = reference.sdpa(
            *(split(p.result, heads) for p in (q, k, v)),
            mask=mask,
            bias=bias,
            is_causal=is_causal,
            kv_lengths=kv_lengths,
            scale=scale,
        )
        combined = combine(attended.output)
        out = output_projection(combined, w_o, b_o)
        weights = attended.weights.mean(axis=1) if average_weights else attended.weights
    output = combined if out is None else out.result
    return LayerExpected(
        form.output(output), form.weights(weights), q, k, v, attended, combined, out, form, self_attention=x_kv is None
    )


def sublayer(
    x_q: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    *,
    heads: int,
    gamma: Array,
    beta: Array,
    epsilon: float,
    pre_norm: bool = False,
    **options: Array | bool | float | None,
) -> SublayerExpected:
    """Residual connection and layer normalisation around ``mha``: SUB-1 and SUB-2.

    ``gamma`` and ``beta`` are (E,); ``options`` are the other keywords of ``mha``.

    Parameters
    ----------
    x_q
        (B, Sq, E), or (Sq, E) unbatched.
    w_q
        (E, H·D).
    w_k
        (Ekv, H·D).
    w_v
        (Ekv, H·Dv).
    heads
        Number of heads, H.
    gamma
        (E,).
    beta
        (E,).
    epsilon
        Added to the variance.
    pre_norm
        Normalise before attention, not after the residual connection.
    options
        The other keywords of ``mha``.

    Returns
    -------
    SublayerExpected
        Output (B, Sq, E), float64, with the intermediate results.

    Raises
    ------
    InvalidInput
        Where SUB-10 and the clauses of ``mha`` require an exception.
    """
    check_ranks(x_q, x_q)
    form = Form(x_q.ndim == 2, bool(options.get("sequence_first")))
    x = form.batch_first(x_q)
    check_affine(x.shape[2], gamma, beta)
    if pre_norm:
        norm = layer_norm(x, gamma, beta, epsilon)
        layer = mha(form.output(norm.result), w_q, w_k, w_v, heads=heads, **options)  # type: ignore[arg-type]
    else:
        layer = mha(x_q, w_q, w_k, w_v, heads=heads, **options)  # type: ignore[arg-type]
    added = form.batch_first(layer.output)
    if added.shape[2] != x.shape[2]:
        raise InvalidInput("SUB-10", f"x_q has width {x.shape[2]}, the layer returns {added.shape[2]}")
    residual = x + added
    if not pre_norm:
        norm = layer_norm(residual, gamma, beta, epsilon)
    return SublayerExpected(form.output(residual if pre_norm else norm.result), layer, norm, residual, pre_norm)


def project(name: str, x: Array, w: Array, b: Array | None) -> Projection:
    """(MHA-2) x @ w + b; ``name`` is the bias's name in the exception's text.

    Parameters
    ----------
    name
        Name of the bias, for the exception's text.
    x
        (B, S, E).
    w
        (E, F).
    b
        (F,), or None.

    Returns
    -------
    Projection
        The projection, with its result (B, S, F).

    Raises
    ------
    InvalidInput
        For a bias of the wrong shape.
    """
    if b is not None and b.shape != w.shape[1:]:
        raise InvalidInput("MHA-20", f"{name} {b.shape} does not fit the {w.shape[1]} columns of its weight")
    w, b = w.astype(np.float64), None if b is None else b.astype(np.float64)
    product = x @ w
    return Projection(x, w, b, product, product if b is None else product + b)


def split(x: Array, heads: int) -> Array:
    """(MHA-5) (B, S, H·D) to (B, H, S, D), head h from columns h·D … (h + 1)·D − 1.

    Parameters
    ----------
    x
        (B, S, H·D).
    heads
        Number of heads, H.

    Returns
    -------
    Array
        (B, H, S, D).
    """
    batch, length, width = x.shape
    return np.swapaxes(x.reshape(batch, length, heads, width // heads), 1, 2)


def combine(x: Array) -> Array:
    """(MHA-11) (B, H, S, Dv) to (B, S, H·Dv), head h to columns h·Dv … (h + 1)·Dv − 1 of its row.

    Parameters
    ----------
    x
        (B, H, S, Dv).

    Returns
    -------
    Array
        (B, S, H·Dv).
    """
    batch, heads, length, width = x.shape
    return np.swapaxes(x, 1, 2).reshape(batch, length, heads * width)


def output_projection(combined: Array, w_o: Array | None, b_o: Array | None) -> Projection | None:
    """(MHA-12) combined @ w_o + b_o, or nothing without ``w_o``.

    Parameters
    ----------
    combined
        (B, Sq, H·Dv).
    w_o
        (H·Dv, Eo); None for no output projection.
    b_o
        (Eo,).

    Returns
    -------
    Projection | None
        The projection, with its result (B, Sq, Eo).

    Raises
    ------
    InvalidInput
        Where widths do not fit (MHA-20).
    """
    if w_o is None:
        if b_o is not None:
            raise InvalidInput("MHA-20", "b_o is given without w_o")
        return None
    if w_o.ndim != 2 or w_o.shape[0] != combined.shape[2]:
        raise InvalidInput("MHA-20", f"w_o {w_o.shape} does not fit combined heads of width {combined.shape[2]}")
    return project("b_o", combined, w_o, b_o)


def layer_norm(z: Array, gamma: Array, beta: Array, epsilon: float) -> Norm:
    """(SUB-3 to SUB-6) (z − mean) / √(var + epsilon) · gamma + beta over the last axis; var divides by E.

    Parameters
    ----------
    z
        (B, S, E).
    gamma
        (E,).
    beta
        (E,).
    epsilon
        Added to the variance.

    Returns
    -------
    Norm
        The normalisation, with its result (B, S, E).
    """
    gamma, beta = gamma.astype(np.float64), beta.astype(np.float64)
    mean = z.mean(axis=2, keepdims=True)
    centred = z - mean
    var = (centred**2).mean(axis=2, keepdims=True)
    normalised = centred / np.sqrt(var + epsilon)
    return Norm(z, mean, var, normalised, normalised * gamma + beta, gamma, beta, epsilon)


def check_heads(heads: int, **weights: Array) -> None:
    """(MHA-19) The number of heads divides the columns of w_q, w_k and w_v.

    Parameters
    ----------
    heads
        Number of heads, H.
    weights
        W_q, w_k and w_v.

    Raises
    ------
    InvalidInput
        If it does not.
    """
    for name, w in weights.items():
        if w.ndim != 2:
            raise InvalidInput("MHA-20", f"{name} has rank {w.ndim}")
        if heads < 1 or w.shape[1] % heads:
            raise InvalidInput("MHA-19", f"{heads} heads do not divide the {w.shape[1]} columns of {name}")


def check_widths(x_q: Array, x_kv: Array, w_q: Array, w_k: Array, w_v: Array) -> None:
    """(MHA-20 and MHA-21) Widths of inputs and weights, and batches, fit together.

    Parameters
    ----------
    x_q
        (B, Sq, E), or (Sq, E) unbatched.
    x_kv
        (B, Sk, Ekv); None for x_q.
    w_q
        (E, H·D).
    w_k
        (Ekv, H·D).
    w_v
        (Ekv, H·Dv).

    Raises
    ------
    InvalidInput
        If they do not.
    """
    for name, x, w in (("w_q", x_q, w_q), ("w_k", x_kv, w_k), ("w_v", x_kv, w_v)):
        if x.shape[2] != w.shape[0]:
            raise InvalidInput("MHA-20", f"{name} has {w.shape[0]} rows, its input has width {x.shape[2]}")
    if w_q.shape[1] != w_k.shape[1]:
        raise InvalidInput("MHA-20", f"w_q has {w_q.shape[1]} columns, w_k has {w_k.shape[1]}")
    if x_q.shape[0] != x_kv.shape[0]:
        raise InvalidInput("MHA-21", f"x_q and x_kv have batches {x_q.shape[0]}, {x_kv.shape[0]}")


def check_ranks(x_q: Array, x_kv: Array) -> None:
    """(MHA-21) Both inputs are batched, or neither is.

    Parameters
    ----------
    x_q
        (B, Sq, E), or (Sq, E) unbatched.
    x_kv
        (B, Sk, Ekv); None for x_q.

    Raises
    ------
    InvalidInput
        If only one is, or a rank is neither 2 nor 3.
    """
    if not x_q.ndim == x_kv.ndim or x_q.ndim not in (2, 3):
        raise InvalidInput("MHA-21", f"x_q and x_kv have ranks {x_q.ndim}, {x_kv.ndim}")


def check_scores(form: Form, shape: tuple[int, ...], mask: Array | None, bias: Array | None) -> None:
    """(MHA-22) Mask and bias broadcast to (B, H, Sq, Sk), or to (H, Sq, Sk) in an unbatched call.

    Parameters
    ----------
    form
        Form of the call: how it is batched.
    shape
        (B, H, Sq, Sk).
    mask
        Bool, broadcast to (B, H, Sq, Sk); True may be attended to.
    bias
        Added to the scores, broadcast to (B, H, Sq, Sk).

    Raises
    ------
    InvalidInput
        If they do not.
    """
    target = shape[1:] if form.unbatched else shape
    for name, array in (("mask", mask), ("bias", bias)):
        if array is not None and not broadcasts(array.shape, target):
            raise InvalidInput("MHA-22", f"{name} {array.shape} does not broadcast to {target}")


def check_affine(width: int, gamma: Array, beta: Array) -> None:
    """(SUB-10) gamma and beta have one number per column of x_q.

    Parameters
    ----------
    width
        E.
    gamma
        (E,).
    beta
        (E,).

    Raises
    ------
    InvalidInput
        If they do not.
    """
    for name, array in (("gamma", gamma), ("beta", beta)):
        if array.shape != (width,):
            raise InvalidInput("SUB-10", f"{name} {array.shape} does not fit width {width}")
