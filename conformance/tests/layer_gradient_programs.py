"""Gradients of layers by honest programs, each rounding where its profile says, and random problems for them.

The forward pass is that of layer_programs.py and the backward pass of the heads is that of gradient_variants.py; each
gets numbers of the storage dtype.  This module holds the chain between them.  A test makes a wrong program by
replacing one method.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import mha_gradients as layer_bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.evidence import gradient_variants
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec.mha_gradients import LayerGradExpected, mha_grad
from attention_conformance.conformance.tests import gradient_problems, layer_programs
from attention_conformance.impls.contract import Profile

Array = np.ndarray
Gradients = Mapping[str, Array]

#: The backward pass of the heads that uses up each profile.
OF_PROFILE = {
    Profile.WIDE: "kept_weights",
    Profile.FUSED: "flash",
    Profile.STORAGE: "every_array",
    Profile.TF32: "tf32",
}

#: Options that the heads take too.
_OF_HEADS = ("mask", "bias", "is_causal", "scale")


@dataclass(frozen=True)
class Problem:
    """A call of mha and a gradient of its output, in one dtype."""

    call: layer_programs.Problem
    grad_output: Array

    @property
    def dtype(self) -> str:
        """The dtype of all arrays."""
        return str(self.grad_output.dtype)

    def expected(self) -> LayerGradExpected:
        """The reference's gradients."""
        return self._expected

    @functools.cached_property
    def _expected(self) -> LayerGradExpected:
        return mha_grad(**self.call.keywords(), grad_output=self.grad_output)

    def bound(self, profile: Profile) -> dict[str, Array]:
        """The bounds of the gradients under a profile."""
        options: Options = self.call.of_bound()
        if profile not in self._bounds:
            self._bounds[profile] = layer_bounds.bound(self.expected(), options, self.dtype, profile)
        return self._bounds[profile]

    @functools.cached_property
    def _bounds(self) -> dict[Profile, dict[str, Array]]:
        return {}


@functools.lru_cache(maxsize=100)  # cached with its expected results: many programs are tried on one problem
def problem(seed: int, dtype: str) -> Problem:
    """The problem of a seed: the call of layer_programs.py, and a gradient of spread 0.1 to 10, or of ones."""
    call = layer_programs.random_problem(seed, dtype)
    rng = np.random.default_rng([seed, 7])
    x, w_v = call.arrays["x_q"], call.arrays["w_v"]
    width = call.arrays["w_o"].shape[1] if "w_o" in call.arrays else w_v.shape[1]
    gradient = 10 ** rng.uniform(-1, 1) * rng.standard_normal((*x.shape[:2], width))
    gradient = np.ones_like(gradient) if rng.random() < 0.2 else gradient
    return Problem(call, gradient.astype(NUMPY_DTYPES[dtype]))


def square(seed: int, dtype: str) -> Problem:
    """A problem with square weights and only options that nn.MultiheadAttention has."""
    rng = np.random.default_rng([seed, 8])
    heads, batch, rows = (int(rng.integers(1, most + 1)) for most in (4, 3, 12))
    width = heads * int(rng.integers(1, 9))
    arrays = {"x_q": rng.normal(size=(batch, rows, width))}
    if rng.random() < 0.5:
        arrays["x_kv"] = rng.normal(size=(batch, int(rng.integers(1, 20)), width))
    arrays |= {f"w_{name}": rng.normal(size=(width, width)) / np.sqrt(width) for name in "qkvo"}
    arrays |= {f"b_{name}": rng.normal(size=width) for name in "qkvo" if rng.random() < 0.7}
    scores = (batch, heads, rows, arrays.get("x_kv", arrays["x_q"]).shape[1])
    kind = rng.choice(["mask", "bias", "causal", "nothing"])
    options: dict[str, Any] = {}
    if kind == "mask":
        options = {"mask": rng.random(scores) < 0.7}
    elif kind == "bias":
        options = {"bias": rng.normal(size=scores).astype(NUMPY_DTYPES[dtype])}
    elif kind == "causal":
        options = {"is_causal": True}
    stored = {name: array.astype(NUMPY_DTYPES[dtype]) for name, array in arrays.items()}
    gradient = rng.normal(size=arrays["x_q"].shape).astype(NUMPY_DTYPES[dtype])
    return Problem(layer_programs.Problem(heads, stored, options), gradient)


class Program(layer_programs.Program):
    """Forward and backward pass of a layer; gradients of weights are sums over all rows at once."""

    def __init__(self, p: Problem, dtype: str, profile: Profile, heads: str = "") -> None:
        super().__init__(p.call, dtype, profile)
        self.p, self.variant = p, getattr(gradient_variants, heads or OF_PROFILE[profile]).compute

    def gradients(self) -> dict[str, Array]:
        """All gradients by name, in the storage dtype."""
        x = self.arrays["x_q"]
        y = self.arrays.get("x_kv", x)
        projected = {name: self.project(each, name) for name, each in (("q", x), ("k", y), ("v", y))}
        q, k, v = (self.split(each) for each in projected.values())
        g = self.p.grad_output.astype(self.work)
        d_combined = self.kept(self.matmul(g, self.arrays["w_o"].T)) if "w_o" in self.arrays else g
        of_heads = self.heads(q, k, v, self.split(d_combined))
        d = {name: self.combine(of_heads[f"grad_{name}"].astype(self.work)) for name in "qkv"}
        found = {f"grad_w_{name}": self.of_weight(each, d[name]) for name, each in (("q", x), ("k", y), ("v", y))}
        if "x_kv" in self.arrays:
            found["grad_x_q"], found["grad_x_kv"] = self.of_input(d, "q"), self.of_input(d, "kv")
        else:
            found["grad_x_q"] = self.of_input(d, "qkv")
        if "w_o" in self.arrays:
            output, _ = self.attention(q, k, v, x.shape[2])
            found["grad_w_o"] = self.of_weight(self.combine(output), g)
        for name, each in {**d, "o": g}.items():
            if f"b_{name}" in self.arrays:
                found[f"grad_b_{name}"] = self.of_bias(each)
        if "bias" in self.problem.options:
            found["grad_bias"] = of_heads["grad_bias"]
        return {name: array.astype(self.stored) for name, array in found.items()}

    def heads(self, q: Array, k: Array, v: Array, g: Array) -> dict[str, Array]:
        """The backward pass of the heads, from and to numbers of the storage dtype."""
        options: dict[str, Any] = {n: o for n, o in self.problem.options.items() if n in _OF_HEADS}
        q, k, v, g = (array.astype(self.stored) for array in (q, k, v, g))
        return self.variant(gradient_problems.Problem(q, k, v, g, options))

    def of_weight(self, x: Array, d: Array) -> Array:
        """Σ x[r]ᵀ d[r] over all rows."""
        return self.matmul(x.reshape(-1, x.shape[2]).T, d.reshape(-1, d.shape[2]))

    def of_bias(self, d: Array) -> Array:
        """Σ d[r] over all rows."""
        return d.sum(axis=(0, 1))

    def of_input(self, d: Mapping[str, Array], names: str) -> Array:
        """The sum of the products with the transposed weights, each stored."""
        parts = [self.kept(self.matmul(d[name], self.arrays[f"w_{name}"].T)) for name in names]
        total = parts[-1]
        for part in parts[-2::-1]:
            total = self.kept(total + part)
        return total


class BySample(Program):
    """Gradients of weights and biases computed for each sample, stored where ``storage`` stores, then added."""

    def of_weight(self, x: Array, d: Array) -> Array:
        """Sample by sample."""
        return self.within(self.matmul(x.swapaxes(1, 2), d)).sum(axis=0)

    def of_bias(self, d: Array) -> Array:
        """Sample by sample."""
        return self.within(d.sum(axis=1)).sum(axis=0)


class SideBySide(Program):
    """The gradient of an input as one product with the weights next to each other."""

    def of_input(self, d: Mapping[str, Array], names: str) -> Array:
        """One sum over all columns."""
        weights = np.concatenate([self.arrays[f"w_{name}"] for name in names], axis=1)
        return self.matmul(np.concatenate([d[name] for name in names], axis=2), weights.T)


class Sequential(Program):
    """Every product and sum adds one term after the other: the most roundings that a sum can have."""

    def matmul(self, a: Array, b: Array) -> Array:
        """A product, term by term."""
        total = a[..., :1] * b[..., :1, :]
        for term in range(1, a.shape[-1]):
            total = total + a[..., term, None] * b[..., term, None, :]
        return total

    def of_bias(self, d: Array) -> Array:
        """Row by row."""
        return np.add.accumulate(d.reshape(-1, d.shape[2]), axis=0)[-1]


def worst(got: Gradients, p: Problem, profile: Profile) -> float:
    """The largest error of any element in units of its bound; inf where a gradient is missing."""
    return max(by_name(got, p, profile).values())


def by_name(got: Gradients, p: Problem, profile: Profile) -> dict[str, float]:
    """The largest error of each gradient in units of its bound; inf for one that is missing."""
    right, limit = p.expected().gradients, p.bound(profile)
    if got.keys() != right.keys():
        return dict.fromkeys(right, np.inf)
    return {n: float(shares(got[n].astype(float), right[n], limit[n], p.dtype).max(initial=0.0)) for n in right}
