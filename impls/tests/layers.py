"""The layers in float64, head by head, each number with a limit for its rounding error: an oracle for tests of layers.

It shares no code with the implementations or with the reference.  A number is a pair (value, error); error bounds
how far off a program may be that rounds every intermediate array with unit roundoff u, and adds n terms with at most
n roundings w of the accumulator (Higham 2002, §3.1), which is float32 or wider.  Products of two errors are kept
where they cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

#: Unit roundoff by dtype: half the distance from 1 to the next number.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The loss to underflow in a stored number: half float16's subnormal spacing, the smallest normal number elsewhere.
UNDERFLOW = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
#: Roundings of exp and the division after it: 16 for a coarse exp, as in BOUNDS.md, its argument, sum and quotient.
EXP = 20
#: Roundings of one LayerNorm in addition to its sums of E terms: centring, square, root, quotient, product, sum.
NORM = 8


class Unit(NamedTuple):
    """Unit roundoffs of stored numbers and of sums, and the loss to underflow in a stored number."""

    u: float
    w: float
    eta: float


class Near(NamedTuple):
    """Numbers, and how far off a program may be."""

    value: np.ndarray
    error: np.ndarray


def exact(array: Any) -> Near:
    """An input, which has no error."""
    value = np.asarray(array, np.float64)
    return Near(value, np.zeros_like(value))


def product(a: Near, b: Near, unit: Unit) -> Near:
    """The product of a (…, m, n) and b (…, n, p): a sum of n terms, stored."""
    sizes, n = np.abs(a.value) + a.error, a.value.shape[-1]
    propagated = a.error @ np.abs(b.value) + sizes @ b.error
    summed = propagated + n * unit.w * (np.abs(a.value) @ np.abs(b.value) + propagated)
    value = a.value @ b.value
    return Near(value, summed + unit.u * (np.abs(value) + summed) + unit.eta)


def plus(a: Near, b: Near, unit: Unit) -> Near:
    """The sum of a and b, broadcast, stored."""
    value, error = a.value + b.value, a.error + b.error
    return Near(value, error + unit.u * (np.abs(value) + error))


def softmax(s: Near, allowed: np.ndarray, unit: Unit) -> tuple[Near, np.ndarray]:
    """Weights of the rows of s (Sq, Sk), stored, and how far the argument of each power may be off.

    A fully masked row is zeros.  Score minus maximum and its power are each stored at most once.
    """
    value, off = np.zeros_like(s.value), np.zeros_like(s.value)
    for i, keys in enumerate(allowed):
        if keys.any():
            below = s.value[i, keys].max() - s.value[i, keys]
            value[i, keys] = np.exp(-below) / np.exp(-below).sum()
            off[i, keys] = s.error[i, keys] + unit.u * (below + 1) + (EXP + keys.sum()) * unit.w
    return Near(value, value * (np.expm1(off + off.max(-1, keepdims=True)) + unit.u) + unit.eta * (value > 0)), off


def weighted(p: Near, off: np.ndarray, v: Near, unit: Unit) -> Near:
    """The weights times v (Sk, Dv), stored.

    As weights add up to 1, arguments of powers that are off by at most ε move the output o by at most
    Σ p (exp(ε) − 1) |v − o| / Σ p exp(−ε): what all values have in common cancels.
    """
    output = product(Near(p.value, p.value * unit.u + unit.eta), v, unit)
    apart = np.abs(v.value - output.value[:, None])
    moved = np.einsum("ij,ijd->id", p.value * np.expm1(off), apart)
    moved /= np.maximum((p.value * np.exp(-off)).sum(-1, keepdims=True), 1e-300)
    return Near(output.value, output.error + moved + p.error @ v.error)


def normalise(z: Near, gamma: Near, beta: Near, epsilon: float, unit: Unit) -> Near:
    """LayerNorm over the last axis, stored.

    With y = c / r, c = z − mean z, r = √(mean c² + ε): an error δz moves c by at most δz + mean δz =: d, and r by at
    most max d (r is a norm of c divided by √E), so y by (d + |y| max d) / (r − max d).  The sums have E roundings, of
    size max |z|.
    """
    n = z.value.shape[-1]
    centred = z.value - z.value.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    rounding = (n + NORM) * unit.w * np.abs(z.value).max(-1, keepdims=True)
    d = z.error + z.error.mean(-1, keepdims=True) + rounding
    y, most = centred / root, d.max(-1, keepdims=True)
    error = (d + np.abs(y) * most) / np.maximum(root - most, 1e-300) + (n + NORM) * unit.w * np.abs(y)
    scaled = Near(y * gamma.value, np.abs(gamma.value) * (error + unit.w * np.abs(y)))
    return plus(scaled, beta, unit)


def layer(arrays: Mapping[str, Any], options: Mapping[str, Any], inner: str) -> dict[str, Near]:
    """The results of ``mha`` or, with gamma, of ``sublayer``, by name, for a program that computes in dtype ``inner``.

    ``arrays`` and ``options`` are the keywords of the contract, including the positional arguments, by name.
    """
    given = {name: np.asarray(a, np.float64) for name, a in arrays.items() if name not in ("mask", "kv_lengths")}
    stored = str(arrays["x_q"].dtype)
    unit = Unit(ROUNDOFF[inner], min(ROUNDOFF[inner], ROUNDOFF["float32"]), UNDERFLOW[inner])
    first, batched = options.get("sequence_first", False), given["x_q"].ndim == 3
    for name in ("x_q", "x_kv"):
        if name in given:
            given[name] = given[name].swapaxes(0, 1) if first else given[name] if batched else given[name][None]
    x = exact(given["x_q"])

    def norm(z: Near) -> Near:
        return normalise(z, exact(given["gamma"]), exact(given["beta"]), options["epsilon"], unit)

    residual, pre = "gamma" in given, options.get("pre_norm", False)
    before = norm(x) if residual and pre else x
    output, weights = _attend(before, given, arrays, options, unit)
    if residual:
        output = plus(x, output, unit) if pre else norm(plus(x, output, unit))
    if options.get("average_weights"):
        spread = weights.error.mean(1) + (weights.value.shape[1] + 1) * unit.w * weights.value.mean(1)
        weights = Near(weights.value.mean(1), spread)
    found = {"output": output} | ({"weights": weights} if options.get("return_weights") else {})
    rounded = {name: _stored(each, stored) for name, each in found.items()}
    if first:
        rounded["output"] = Near(*(a.swapaxes(0, 1) for a in rounded["output"]))
    return rounded if batched else {name: Near(*(a[0] for a in each)) for name, each in rounded.items()}


def _attend(
    x: Near, given: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any], unit: Unit
) -> tuple[Near, Near]:
    """The layer without norm and residual: output (B, Sq, Eo) and weights (B, H, Sq, Sk)."""
    heads, source = options["heads"], exact(given["x_kv"]) if "x_kv" in given else x
    q, k, v = (_linear(y, given, name, unit) for y, name in ((x, "q"), (source, "k"), (source, "v")))
    batch, shape = x.value.shape[0], (x.value.shape[0], heads, x.value.shape[1], source.value.shape[1])
    allowed, bias = np.broadcast_to(arrays.get("mask", True), shape), np.broadcast_to(given.get("bias", 0.0), shape)
    lengths = arrays.get("kv_lengths", [shape[3]] * batch)
    width, value_width = q.value.shape[2] // heads, v.value.shape[2] // heads
    outputs, all_weights = [], []
    for b in range(batch):
        columns = []
        for h in range(heads):
            one, two = slice(h * width, (h + 1) * width), slice(h * value_width, (h + 1) * value_width)
            left, right = Near(q.value[b, :, one], q.error[b, :, one]), Near(k.value[b, :, one], k.error[b, :, one])
            s = _scores(left, right, float(options.get("scale", width**-0.5)), unit)
            here = allowed[b, h] & ~np.isneginf(bias[b, h]) & (np.arange(shape[3]) < lengths[b])
            if options.get("is_causal"):
                here = here & (np.arange(shape[3]) <= np.arange(shape[2])[:, None])
            s = plus(s, exact(np.where(here, bias[b, h], 0.0)), unit)
            p, off = softmax(s, here, unit)
            columns.append((p, weighted(p, off, Near(v.value[b, :, two], v.error[b, :, two]), unit)))
        all_weights.append([p for p, _ in columns])
        outputs.append(Near(*(np.concatenate([o[i] for _, o in columns], axis=-1) for i in (0, 1))))
    output = Near(np.stack([o.value for o in outputs]), np.stack([o.error for o in outputs]))
    weights = Near(*(np.array([[p[i] for p in row] for row in all_weights]).reshape(shape) for i in (0, 1)))
    return (_linear(output, given, "o", unit) if "w_o" in given else output), weights


def _scores(q: Near, k: Near, scale: float, unit: Unit) -> Near:
    """The scores scale · q kᵀ for q (Sq, D) and k (Sk, D): two factors and the product may be scaled and stored."""
    transposed = Near(k.value.T, k.error.T)
    raw, size = product(q, transposed, unit), np.abs(q.value) @ np.abs(k.value).T
    return Near(scale * raw.value, abs(scale) * (raw.error + 2 * unit.u * size + 2 * unit.u * np.abs(raw.value)))


def _linear(x: Near, given: Mapping[str, Any], name: str, unit: Unit) -> Near:
    y = product(x, exact(given[f"w_{name}"]), unit)
    return plus(y, exact(given[f"b_{name}"]), unit) if f"b_{name}" in given else y


def _stored(a: Near, dtype: str) -> Near:
    """The number rounded once more, to the result's dtype; a masked weight stays exactly zero but for underflow."""
    return Near(a.value, a.error + ROUNDOFF[dtype] * (np.abs(a.value) + a.error) + UNDERFLOW[dtype])
