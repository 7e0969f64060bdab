"""Layers computed by honest programs, each rounding where its profile says, and random problems for them.

They share nothing with the reference but the order of the columns.  ``work`` is the working dtype; what is kept in the
storage dtype is rounded to it and used rounded from then on.  A test makes a wrong program by replacing one method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.evidence.variants import eleven_bits
from attention_conformance.impls.contract import Profile

Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """One call: ``arrays`` are inputs, weights and biases by name, in the dtype; ``options`` the other keywords."""

    heads: int
    arrays: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    #: gamma, beta, epsilon and pre_norm of a sublayer.
    norm: dict[str, Any] = field(default_factory=dict)

    def keywords(self) -> dict[str, Any]:
        """All keywords of the reference."""
        return {"heads": self.heads, **self.arrays, **self.options, **self.norm}

    def of_bound(self) -> Options:
        """The options that the bound takes."""
        return Options(scale=self.options.get("scale"), bias=self.options.get("bias"))


def random_problem(seed: int, dtype: str, *, sublayer: bool = False) -> Problem:
    """Sizes log-uniform, each option drawn independently, inputs of spread 0.1 to 4 and means of up to 4 spreads."""
    rng = np.random.default_rng([seed, sublayer])

    def size(largest: int) -> int:
        return int(np.exp(rng.uniform(0, np.log(largest + 0.99))))

    def chance(probability: float = 0.5) -> bool:
        return bool(rng.random() < probability)

    batch, heads, rows, keys = size(3), size(4), size(12), size(40)
    e, d, dv, ekv, eo = size(64), size(16), size(16), size(48), size(48)
    cross, biases, project = chance(), chance(), chance(0.8) or sublayer
    keys, ekv, eo = (keys if cross else rows), (ekv if cross else e), (e if sublayer else eo)
    spread, mean = float(np.exp(rng.uniform(np.log(0.1), np.log(4)))), float(rng.choice([0.0, 0.0, 1.0, 4.0]))

    def weight(inputs: int, outputs: int) -> Array:
        return rng.normal(size=(inputs, outputs)) / np.sqrt(inputs) / max(1.0, spread / 2)

    arrays = {"x_q": spread * (rng.normal(size=(batch, rows, e)) + mean)}
    arrays |= {"x_kv": spread * rng.normal(size=(batch, keys, ekv))} if cross else {}
    arrays |= {"w_q": weight(e, heads * d), "w_k": weight(ekv, heads * d), "w_v": weight(ekv, heads * dv)}
    arrays |= {"w_o": weight(heads * dv, eo)} if project else {}
    if biases:
        columns = {"b_q": heads * d, "b_k": heads * d, "b_v": heads * dv, **({"b_o": eo} if project else {})}
        arrays |= {name: rng.normal(size=width) for name, width in columns.items()}
    options: dict[str, Any] = {}
    if chance(0.3):
        options["mask"] = rng.random((batch, 1, rows, keys)) < 0.7
    if chance(0.3):
        options["bias"] = rng.normal(size=(heads, rows, keys)).astype(NUMPY_DTYPES[dtype])
    if chance(0.3):
        options["is_causal"] = True
    if chance(0.2):
        options["scale"] = float(rng.choice([0.0, -0.5, 0.125, 1.0]))
    norm: dict[str, Any] = {}
    if sublayer:
        norm = {"gamma": rng.normal(size=e), "beta": rng.normal(size=e), "pre_norm": chance()}
        norm |= {"epsilon": float(rng.choice([1e-5, 1e-6, 1e-12, 0.1]))}
    stored = {name: a.astype(NUMPY_DTYPES[dtype]) for name, a in arrays.items()}
    norm = {name: a.astype(NUMPY_DTYPES[dtype]) if isinstance(a, np.ndarray) else a for name, a in norm.items()}
    return Problem(heads, stored, options, norm)


class Program:
    """A layer that rounds exactly where the profile does, sums being NumPy's in the working dtype."""

    def __init__(self, problem: Problem, dtype: str, profile: Profile) -> None:
        self.problem, self.stored, self.profile = problem, NUMPY_DTYPES[dtype], profile
        self.work: Any = np.float64 if dtype == "float64" else np.float32
        self.arrays = {name: a.astype(self.work) for name, a in problem.arrays.items()}

    def kept(self, x: Array) -> Array:
        """An array that every profile stores between two operators."""
        return x.astype(self.stored).astype(self.work)

    def within(self, x: Array) -> Array:
        """An array that only ``storage`` stores."""
        return self.kept(x) if self.profile is Profile.STORAGE else x.astype(self.work)

    def matmul(self, a: Array, b: Array) -> Array:
        """A product in the working dtype."""
        return eleven_bits(a) @ eleven_bits(b) if self.profile is Profile.TF32 else a @ b

    def project(self, x: Array, which: str) -> Array:
        """X @ w + b, stored."""
        y = self.matmul(x, self.arrays[f"w_{which}"])
        bias = self.arrays.get(f"b_{which}")
        return self.kept(y if bias is None else self.within(y) + bias)

    def scale(self, width: int, model: int) -> float:
        """The scale of the scores for this width of a head and of the model."""
        given = self.problem.options.get("scale")
        return float(1 / np.sqrt(width)) if given is None else given

    def split(self, x: Array) -> Array:
        """(B, S, H·D) to (B, H, S, D)."""
        return x.reshape(*x.shape[:2], self.problem.heads, -1).transpose(0, 2, 1, 3)

    def combine(self, x: Array) -> Array:
        """(B, H, S, D) to (B, S, H·D)."""
        return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)

    def allowed(self, shape: tuple[int, ...]) -> Array:
        """Mask of the keys that the options allow."""
        allowed = np.broadcast_to(self.problem.options.get("mask", True), shape)
        if self.problem.options.get("is_causal"):
            allowed = allowed & np.tri(shape[2], shape[3], dtype=bool)
        return allowed

    def attention(self, q: Array, k: Array, v: Array, model: int) -> tuple[Array, Array]:
        """Heads and weights of the attention."""
        s = self.matmul(self.within(q * self.work(self.scale(q.shape[3], model))), k.swapaxes(2, 3))
        s = self.within(s)
        if "bias" in self.problem.options:
            s = self.within(s + self.problem.options["bias"].astype(self.work))
        s = np.where(self.allowed(s.shape), s, self.work(-np.inf))
        top = s.max(axis=3, keepdims=True)
        powers = self.within(np.exp(self.within(s - np.where(np.isfinite(top), top, 0))))
        total = self.within(powers.sum(axis=3, keepdims=True))
        p = powers / np.where(total == 0, 1, total)
        rounded = self.kept(p) if self.profile in (Profile.STORAGE, Profile.FUSED) else p
        return self.kept(self.matmul(rounded, v)), self.kept(p)

    def layer(self, x: Array, x_kv: Array) -> tuple[Array, Array]:
        """Output (B, Sq, Eo) and weights (B, H, Sq, Sk)."""
        q, k, v = (self.split(self.project(y, which)) for y, which in ((x, "q"), (x_kv, "k"), (x_kv, "v")))
        heads, weights = self.attention(q, k, v, x.shape[2])
        combined = self.combine(heads)
        return (self.project(combined, "o") if "w_o" in self.arrays else combined), weights

    def variance(self, centred: Array) -> Array:
        """The mean of squares."""
        return self.within(self.within(centred**2).mean(axis=2, keepdims=True))

    def deviation(self, var: Array, epsilon: float) -> Array:
        """The root, epsilon inside; float16 has no number near an epsilon below 1e-6, so that sum is not stored."""
        inside = var + self.work(epsilon)
        return self.within(np.sqrt(self.within(inside) if epsilon > 1e-6 else inside))

    def normalise(self, z: Array) -> Array:
        """LayerNorm, stored."""
        norm = self.problem.norm
        centred = self.within(z - self.within(z.mean(axis=2, keepdims=True)))
        y = self.within(centred / self.deviation(self.variance(centred), norm["epsilon"]))
        return self.kept(self.within(y * norm["gamma"].astype(self.work)) + norm["beta"].astype(self.work))

    def run(self) -> tuple[Array, Array]:
        """Output of mha or sublayer, and the weights of the layer, in the storage dtype."""
        x, pre = self.arrays["x_q"], self.problem.norm.get("pre_norm")
        inner = self.normalise(x) if pre else x
        output, weights = self.layer(inner, self.arrays.get("x_kv", inner))
        if self.problem.norm:
            output = self.kept(x + output)
            output = output if pre else self.normalise(output)
        return output.astype(self.stored), weights.astype(self.stored)
