"""Random problems of the layers: every option of mha, sublayer and mha_grad, drawn independently.

As in properties/drawn.py sizes are log-uniform, and the work is limited: by fewer samples, then fewer rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES
from attention_conformance.conformance.cases.data import lengths, random_bias, random_mask
from attention_conformance.conformance.cases.layer import LayerShape, MhaCase, Rng, SublayerCase, columns, w_o, x_kv
from attention_conformance.conformance.cases.mha_gradient import MhaGradientCase
from attention_conformance.conformance.properties.drawn import (
    GRADIENT,
    SEED,
    SPREAD,
    axes,
    happens,
    log_integer,
    log_uniform,
    scaled,
    signed,
    sized,
)
from attention_conformance.conformance.properties.problem import Axes, RandomBias, RandomMask
from attention_conformance.conformance.spec.inputs import LayerGradientInputs

#: Part of the seed, so that the problems of each operator differ.
NUMBER = {"mha": 4, "sublayer": 5, "mha_grad": 6}

#: Largest number of columns of an input, of all heads and of the output; keys; rows of cross-attention; samples, heads.
WIDTH, KEYS, ROWS, BATCHES, HEADS = 256, 512, 64, 3, 4

#: Most multiplications of one problem.
WORK = 2**21

#: Percentage of problems that have each option.
CHANCE = {
    "square": 40,  # E = Ekv = H · D = H · Dv = Eo with w_o, and all biases or none, which most libraries require
    "cross": 40,
    "w_o": 80,
    "all biases": 60,
    "bias of one": 50,  # of each bias, in problems with neither "square" nor "all biases"
    "mask": 25,
    "bias": 20,
    "is_causal": 25,
    "kv_lengths": 20,
    "scale": 15,
    "unbatched": 10,
    "sequence_first": 15,
    "return_weights": 25,
    "average_weights": 40,  # of those with return_weights
    "offset": 30,
    "outlier": 30,
    "values": 40,
    "pre_norm": 50,
    "ones": 15,
}

#: Ranges: the spread of inputs; their mean, in spreads; one row over the others; the spread of a bias.
VALUES, OFFSET, OUTLIER, BIAS = (0.01, 10.0), (1.0, 100.0), (1.0, 10.0), (0.01, 30.0)
EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3, 0.1)


@dataclass(frozen=True)
class LayerProblem:
    """Shape, data and options of one input; options that are None or have their default are not given."""

    name: str
    operator: str
    shape: LayerShape
    #: Spread of the projected queries and keys, apart from outliers and the mean.
    spread: float = 1.0
    values: float = 1.0
    offset: float = 0.0
    outlier: float = 1.0
    cross: bool = False
    projected: bool = True
    biases: tuple[str, ...] = ()
    mask: RandomMask | None = None
    bias: RandomBias | None = None
    is_causal: bool = False
    kv_lengths: tuple[int, ...] | None = None
    scale: float | None = None
    return_weights: bool = False
    average_weights: bool = False
    epsilon: float = 1e-5
    pre_norm: bool = False
    gradient: float = 1.0
    ones: bool = False

    def case(self) -> MhaCase | SublayerCase | MhaGradientCase:
        """The problem as a case, for every dtype."""
        given: dict[str, Any] = {"data": self._data, "options": self._options(), "dtypes": ALL_DTYPES}
        if self.operator == "mha_grad":
            return MhaGradientCase(self.name, ("GRAD-26",), "Random.", self.shape, edit=self._sized, **given)
        if self.operator == "sublayer":
            return SublayerCase(self.name, ("SUB-9",), "Random.", self.shape, **given)
        return MhaCase(self.name, ("MHA-18",), "Random.", self.shape, **given)

    def _data(self, rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
        def weight(rows: int, count: int) -> np.ndarray:
            return rng.standard_normal((rows, count)) / math.sqrt(rows)

        x = self._rows(rng, s.rows(s.sq, s.e))
        by = self.spread / self.values
        return x, by * weight(s.e, s.heads * s.d), by * weight(s.ekv, s.heads * s.d), weight(s.ekv, s.heads * s.dv)

    def _rows(self, rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
        """An input: normal numbers around a mean, one row longer than the others, as trained models have them."""
        x = self.values * (self.offset + rng.standard_normal(shape))
        x[rng.integers(shape[0])] *= self.outlier
        return x

    def _options(self) -> dict[str, Any]:
        s = self.shape
        options: dict[str, Any] = {"heads": s.heads}
        if self.operator == "sublayer":
            options |= {"gamma": columns("gamma"), "beta": columns("beta"), "epsilon": self.epsilon}
        if self.cross:
            options["x_kv"] = lambda rng, s, dtype: (self.values * x_kv(rng, s, np.dtype(np.float64))).astype(dtype)
        options |= {"w_o": w_o} if self.projected else {}
        options |= {name: partial(_sized_columns, name, self.values) for name in self.biases}
        options |= {} if self.mask is None else {"mask": random_mask(self.mask.keep, self.mask.axes)}
        options |= {} if self.bias is None else {"bias": random_bias(self.bias.spread, self.bias.axes)}
        options |= {} if self.kv_lengths is None else {"kv_lengths": lengths(*self.kv_lengths)}
        options |= {} if self.scale is None else {"scale": self.scale}
        options |= {"sequence_first": True} if s.sequence_first else {}
        flags = ("is_causal", "return_weights", "average_weights", "pre_norm")
        return options | {name: True for name in flags if getattr(self, name)}

    def _sized(self, x: LayerGradientInputs) -> LayerGradientInputs:
        return replace(x, grad_output=sized(x.grad_output, self.gradient, self.ones))


def layer_problem(operator: str, index: int) -> LayerProblem:
    """The problem of an index, always the same one."""
    rng = np.random.default_rng((SEED, index, NUMBER[operator]))

    def has(name: str) -> bool:
        return happens(rng, name, CHANCE)

    cross, square = has("cross"), has("square")
    projected = has("w_o") or operator == "sublayer" or square
    shape = _shape(rng, cross, square, operator, projected)
    names = ("b_q", "b_k", "b_v", *(("b_o",) if projected else ()))
    some = () if square else tuple(name for name in names if has("bias of one"))
    biases = names if has("all biases") else some
    weights = has("return_weights") and operator == "mha"
    given = tuple(int(rng.choice([0, shape.sk, *rng.integers(shape.sk + 1, size=4)])) for _ in range(shape.b))
    problem = LayerProblem(
        name=f"evidence-{operator}-{index}",
        operator=operator,
        shape=shape,
        spread=log_uniform(rng, *SPREAD),
        values=log_uniform(rng, *VALUES) if has("values") else 1.0,
        offset=signed(rng, log_uniform(rng, *OFFSET)) if has("offset") else 0.0,
        outlier=log_uniform(rng, *OUTLIER) if has("outlier") else 1.0,
        cross=cross,
        projected=projected,
        biases=biases,
        mask=RandomMask(round(float(rng.uniform(0.05, 0.95)), 2), _axes(rng, shape)) if has("mask") else None,
        bias=RandomBias(log_uniform(rng, *BIAS), _axes(rng, shape)) if has("bias") else None,
        is_causal=has("is_causal"),
        kv_lengths=given if has("kv_lengths") else None,
        scale=scaled(rng, shape.d) if has("scale") else None,
        return_weights=weights,
        average_weights=weights and has("average_weights"),
    )
    epsilon, pre_norm = float(rng.choice(EPSILONS)), operator == "sublayer" and has("pre_norm")
    gradient, ones = log_uniform(rng, *GRADIENT), has("ones")
    if operator == "sublayer":
        return replace(problem, epsilon=epsilon, pre_norm=pre_norm)
    return replace(problem, gradient=gradient, ones=ones) if operator == "mha_grad" else problem


def _shape(rng: Rng, cross: bool, square: bool, operator: str, projected: bool) -> LayerShape:
    batches, heads = int(rng.integers(1, BATCHES + 1)), int(rng.integers(1, HEADS + 1))
    e, ekv, d, dv, eo = (log_integer(rng, most) for most in (WIDTH, WIDTH, WIDTH // heads, WIDTH // heads, WIDTH))
    rows, keys = (log_integer(rng, most) for most in (ROWS if cross else KEYS, KEYS))
    ekv, keys = (ekv, keys) if cross else (e, rows)
    if square:
        e = ekv = eo = heads * d
        dv = d
    eo = e if operator == "sublayer" else eo if projected else heads * dv
    unbatched, sequence_first = (happens(rng, name, CHANCE) for name in ("unbatched", "sequence_first"))
    batches = 1 if unbatched else batches

    def work() -> int:
        inner = heads * (rows * (e * d + eo * dv) + keys * ekv * (d + dv))
        return batches * (inner + heads * rows * keys * (d + dv))

    batches = 1 if work() > WORK else batches
    while work() > WORK and rows > 1:
        rows -= max(1, rows // 8)
        keys = keys if cross else rows
    return LayerShape(batches, rows, keys, e, ekv, heads, d, dv, eo, unbatched, sequence_first and not unbatched)


def _axes(rng: Rng, s: LayerShape) -> Axes:
    """Axes of a mask or bias that are full; an unbatched call has no axis of samples."""
    return axes(rng)[-len(s.scores) :]


def _sized_columns(name: str, size: float, rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return (size * columns(name)(rng, s, np.dtype(np.float64))).astype(dtype)
