"""Honest backward passes: correct gradients that use up what a profile allows (as conformance.evidence.variants).

Each takes a call and returns its gradients by name, in the call's dtype; the end of the module has them as functions of
sdpa_grad that can be plugged in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from attention_conformance.conformance.evidence.variants import HALVES, eleven_bits
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.gradients import over_groups, sum_to
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.numpy.parts import split_scale, working_dtype

#: A call of sdpa_grad: its arrays q, k, v and grad_output, and its keywords as ``options``.
Call = Any

SINGLE = ("float32", "float64")


@dataclass(frozen=True)
class Forward:
    """Intermediates of the forward pass, in the working dtype; ``cap`` is the tanh of softcap."""

    q: Array
    k: Array
    v: Array
    g: Array
    scores: Array
    cap: Array | None
    allowed: Array
    factors: tuple[float, float]


def exact(array: Array) -> Array:
    """No rounding."""
    return array


def product(a: Array, b: Array) -> Array:
    """A matrix product as NumPy adds it up."""
    return np.matmul(a, b)


def one_by_one(a: Array, b: Array) -> Array:
    """A matrix product whose terms are added one after the other: the most roundings that it can have."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for n in range(a.shape[-1]):
        total += a[..., n, None] * b[..., n, None, :]
    return total


Matmul = Callable[[Array, Array], Array]
Kept = Callable[[Array], Array]


def forward(p: Call, kept: Kept = exact, matmul: Matmul = product) -> Forward:
    """The forward pass up to the softmax; ``kept`` rounds every array that is stored."""
    work = working_dtype(p.q.dtype)
    q, k, v, g = (array.astype(work) for array in (p.q, p.k, p.v, p.grad_output))
    k, v = (np.repeat(array, q.shape[1] // k.shape[1], axis=1) for array in (k, v))
    before, after = split_scale(p.options.get("scale"), q.shape[3])
    q = kept(q * work(before))
    s = kept(kept(matmul(q, k.swapaxes(2, 3))) * work(after))
    cap = None
    if "softcap" in p.options:
        c = work(p.options["softcap"])
        cap = kept(np.tanh(kept(s / c)))
        s = kept(c * cap)
    if "bias" in p.options:
        s = kept(s + p.options["bias"].astype(work))
    allowed = reference.sdpa(p.q, p.k, p.v, **p.options).allowed
    return Forward(q, k, v, g, np.where(allowed, s, work(-np.inf)), cap, allowed, (before, after))


def shifted(f: Forward) -> tuple[Array, Array]:
    """The largest score of each row, 0 where there is none, and the scores without it."""
    top = f.scores.max(axis=3, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), f.scores.dtype.type(0), top)
    return top, f.scores - top


def recomputed(p: Call, kept: Kept = exact, matmul: Matmul = product, operand: Kept = exact) -> dict[str, Array]:
    """Gradients as flash kernels compute them: weights from the log-sum-exp, and δ from the stored output.

    ``kept`` rounds the weights, dS, the output, and the gradients of each query head before they are summed.
    """
    f = forward(p, matmul=lambda a, b: matmul(operand(a), operand(b)))
    top, s = shifted(f)
    powers = np.exp(s)
    total = powers.sum(axis=3, keepdims=True)
    some = np.where(total == 0, total.dtype.type(1), total)
    output = kept(matmul(operand(kept(powers)), operand(f.v)) / some)
    lse = top + np.log(some)
    weights = np.where(f.allowed, np.exp(f.scores - lse), lse.dtype.type(0))
    delta = np.sum(f.g * output, axis=3, keepdims=True)
    d_scores = weights * (matmul(operand(f.g), operand(f.v.swapaxes(2, 3))) - delta)
    d_raw = kept(d_scores if f.cap is None else d_scores * (1 - f.cap**2))
    grads = (
        kept(matmul(operand(d_raw), operand(f.k)) * f.factors[1]) * f.factors[0],
        kept(matmul(operand(d_raw.swapaxes(2, 3)), operand(f.q)) * f.factors[1]),
        kept(matmul(operand(kept(weights).swapaxes(2, 3)), operand(f.g))),
    )
    return _gradients_by_name(p, grads, d_scores)


def literal(p: Call, kept: Kept = exact, matmul: Matmul = product) -> dict[str, Array]:
    """Every operation of exp(s − max s) / Σ exp(s − max s) differentiated literally; ``kept`` rounds every array."""
    f = forward(p, kept, matmul)
    powers = kept(np.exp(kept(shifted(f)[1])))
    total = kept(powers.sum(axis=3, keepdims=True))
    some = np.where(total == 0, total.dtype.type(1), total)
    weights = kept(powers / some)
    d_weights = kept(matmul(f.g, f.v.swapaxes(2, 3)))
    d_total = kept(-np.sum(kept(kept(d_weights * weights) / some), axis=3, keepdims=True))
    d_scores = kept(kept(kept(d_weights / some) + d_total) * powers)
    largest = f.allowed & (f.scores == f.scores.max(axis=3, keepdims=True, initial=-np.inf))
    d_top = kept(-d_scores.sum(axis=3, keepdims=True)) / np.maximum(largest.sum(axis=3, keepdims=True), 1)
    d_scores = np.where(largest, kept(d_scores + kept(d_top.astype(d_scores.dtype))), d_scores)
    d_raw = d_scores
    if f.cap is not None:
        c = d_scores.dtype.type(p.options["softcap"])
        d_raw = kept(kept(kept(d_scores * c) * kept(1 - kept(f.cap**2))) / c)
    d_raw = kept(d_raw * f.factors[1])
    grads = (
        kept(kept(matmul(d_raw, f.k)) * f.factors[0]),
        kept(matmul(d_raw.swapaxes(2, 3), f.q)),
        kept(matmul(weights.swapaxes(2, 3), f.g)),
    )
    return _gradients_by_name(p, grads, d_scores)


def _gradients_by_name(p: Call, grads: tuple[Array, Array, Array], d_scores: Array) -> dict[str, Array]:
    heads = p.k.shape[1]
    found = {"grad_q": grads[0], "grad_k": over_groups(grads[1], heads), "grad_v": over_groups(grads[2], heads)}
    if "bias" in p.options:
        found["grad_bias"] = sum_to(d_scores, p.options["bias"].shape)
    return {name: array.astype(p.q.dtype) for name, array in found.items()}


def stored(p: Call) -> Kept:
    """Rounding to the dtype of the call, and back to the working dtype."""
    return lambda array: array.astype(p.q.dtype).astype(array.dtype)


class Variant:
    """An honest backward pass as a function of sdpa_grad, with the profile that it uses up."""

    operator = "sdpa_grad"

    def __init__(self, compute: Callable[[Call], dict[str, Array]], profile: str, dtypes: tuple[str, ...]) -> None:
        self.compute, self.dtypes, self.profiles = compute, dtypes, dict.fromkeys(dtypes, profile)

    def __call__(self, q: Array, k: Array, v: Array, grad_output: Array, **options: Any) -> tuple[Array, ...]:
        """The gradients in the order of GRAD-1.  Raises ValueError for a gradient that does not fit."""
        if grad_output.shape != (*q.shape[:3], v.shape[3]) or grad_output.dtype != q.dtype:
            raise ValueError(f"grad_output of shape {grad_output.shape} and dtype {grad_output.dtype} does not fit")
        given = {name: value for name, value in options.items() if value is not None}
        with np.errstate(all="ignore"):
            found = self.compute(SimpleNamespace(q=q, k=k, v=v, grad_output=grad_output, options=given))
        return tuple(found.values())


flash = Variant(lambda p: recomputed(p, stored(p)), "fused", HALVES)
flash_one_by_one = Variant(lambda p: recomputed(p, matmul=one_by_one), "wide", SINGLE)
kept_weights = Variant(literal, "wide", DTYPES)
kept_weights_one_by_one = Variant(lambda p: literal(p, matmul=one_by_one), "wide", SINGLE)
every_array = Variant(lambda p: literal(p, stored(p)), "storage", HALVES)
tf32 = Variant(lambda p: recomputed(p, operand=eleven_bits), "tf32", ("float32",))
