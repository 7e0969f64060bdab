"""Random problems for gradients: every option of the spec drawn by itself, the same problem for the same seed.

Sizes are log-uniform and small enough that a few hundred are judged in seconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.conformance.bounds import gradients as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec.gradients import GradExpected, sdpa_grad
from attention_conformance.impls.contract import Profile

Rng = np.random.Generator


@dataclass(frozen=True)
class Problem:
    """Arrays in one dtype and the keywords of sdpa_grad."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    grad_output: np.ndarray
    options: dict[str, Any]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of sdpa_grad in order."""
        return self.q, self.k, self.v, self.grad_output

    @property
    def dtype(self) -> str:
        """The dtype of all arrays."""
        return str(self.q.dtype)

    def expected(self) -> GradExpected:
        """The reference's gradients."""
        return self._expected

    @functools.cached_property
    def _expected(self) -> GradExpected:
        return sdpa_grad(*self.arrays, **self.options)

    def bound(self, profile: Profile) -> dict[str, np.ndarray]:
        """The bounds of the gradients under a profile."""
        if profile not in self._bounds:
            self._bounds[profile] = bounds.bound(self.expected(), Options.of(self.options), self.dtype, profile)
        return self._bounds[profile]

    @functools.cached_property
    def _bounds(self) -> dict[Profile, dict[str, np.ndarray]]:
        return {}


def problem(seed: int, dtype: str, *, keys: int = 200, empty: bool = True, **given: Any) -> Problem:
    """The problem of a seed; ``keys`` is the largest Sk, ``empty`` allows fully masked rows.

    ``given`` replaces options; those given as None are left out.
    """
    return _drawn(seed, dtype, keys, empty, given) if given else _kept(seed, dtype, keys, empty)


@functools.lru_cache(maxsize=400)
def _kept(seed: int, dtype: str, keys: int, empty: bool) -> Problem:
    """The problem of a seed, cached with its expected results, as many programs are tried on one problem."""
    return _drawn(seed, dtype, keys, empty, {})


def _drawn(seed: int, dtype: str, keys: int, empty: bool, given: Mapping[str, Any]) -> Problem:
    rng = np.random.default_rng((2026, seed))
    batch, heads, group = (int(rng.integers(1, most + 1)) for most in (2, 2, 3))
    rows, length, width, value_width = (_log_integer(rng, most) for most in (32, keys, 64, 64))
    value_width = width if rng.random() < 0.5 else value_width  # what some kernels require
    q, k = (
        _log_uniform(rng, 0.1, 4) * rng.standard_normal(s)
        for s in ((batch, heads * group, rows, width), (batch, heads, length, width))
    )
    v = _log_uniform(rng, 0.1, 10) * rng.standard_normal((batch, heads, length, value_width))
    grad_output = _log_uniform(rng, 0.1, 10) * rng.standard_normal((batch, heads * group, rows, value_width))
    if rng.random() < 0.2:
        grad_output[:] = 1.0  # the loss is the sum of the output
    shape = (batch, heads * group, rows, length)
    target = np.dtype(dtype)
    options = {**_options(rng, shape, target, empty), **given}
    options = {name: value for name, value in options.items() if value is not None}
    q, k, v, grad_output = (array.astype(target) for array in (q, k, v, grad_output))
    return Problem(q, k, v, grad_output, options)


def _options(rng: Rng, shape: tuple[int, int, int, int], dtype: np.dtype, empty: bool) -> dict[str, Any]:
    batch, _, rows, keys = shape
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["mask"] = rng.random(part(rng, shape)) < rng.choice([0.2, 0.8])
        if not empty:
            options["mask"][..., 0] = True
    if rng.random() < 0.4:
        bias = _log_uniform(rng, 0.1, 5) * rng.standard_normal(part(rng, shape))
        hidden = rng.random(bias.shape) < rng.choice([0.0, 0.3])
        hidden[..., 0] &= empty
        options["bias"] = np.where(hidden, -np.inf, bias).astype(dtype)
    if rng.random() < 0.3:
        options["is_causal"] = True
    if rng.random() < 0.2 and empty:
        options["window"] = (int(rng.integers(0, keys)), int(rng.integers(0, keys)) if rng.random() < 0.5 else None)
    if ("is_causal" in options or "window" in options) and rng.random() < 0.4:
        low = -rows if empty else 0
        options["causal_offset"] = int(rng.integers(low, keys + 1))
    if rng.random() < 0.2:
        options["kv_lengths"] = rng.integers(0 if empty else 1, keys + 1, size=batch)
    if rng.random() < 0.4:
        options["scale"] = float(rng.choice([0.0, -1.0, 1.0, 2.0]) * rng.choice([1.0, 0.3]))
    if rng.random() < 0.25:
        options["softcap"] = _log_uniform(rng, 0.5, 30)
    return options


def part(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: some axes have length 1, and sometimes leading axes are left off."""
    ones = tuple(1 if rng.random() < 0.4 else length for length in shape)
    return ones[int(rng.integers(len(shape))) :] if rng.random() < 0.3 else ones


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _log_integer(rng: Rng, most: int) -> int:
    return int(math.exp(rng.uniform(0.0, math.log(most + 1))))


def worst(got: Mapping[str, np.ndarray], p: Problem, profile: Profile) -> float:
    """The largest error of any element in units of its bound; inf where a gradient is missing."""
    right, limit = p.expected().gradients, p.bound(profile)
    if got.keys() != right.keys():
        return np.inf
    return max(float(shares(got[n].astype(float), right[n], limit[n], p.dtype).max(initial=0.0)) for n in right)
