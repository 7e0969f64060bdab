"""Cases of mha and sublayer: their shape, their data, and their references and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import mha as bounds
from attention_conformance.conformance.bounds.mha import LayerBound
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import AnyCase, Blame
from attention_conformance.conformance.spec import mha as reference
from attention_conformance.conformance.spec.inputs import LayerInputs
from attention_conformance.conformance.spec.mha import LayerExpected, SublayerExpected
from attention_conformance.impls.contract import Profile

Rng = np.random.Generator
Maker = Callable[[Rng, "LayerShape", np.dtype], np.ndarray]


@dataclass(frozen=True)
class LayerShape:
    """Lengths and widths of one input, named as in the spec (MHA-1), and the form of inputs and output."""

    b: int = 2
    sq: int = 5
    sk: int = 5
    e: int = 8
    ekv: int = 8
    heads: int = 2
    d: int = 4
    dv: int = 4
    eo: int = 8
    unbatched: bool = False
    sequence_first: bool = False

    @property
    def elements(self) -> int:
        """Number of elements of x_q and of the weights of queries, keys and values."""
        inputs = self.b * (self.sq * self.e + self.sk * self.ekv)
        return inputs + self.heads * (self.d * (self.e + self.ekv) + self.dv * self.ekv)

    @property
    def scores(self) -> tuple[int, ...]:
        """(B, H, Sq, Sk), or (H, Sq, Sk)."""
        return (self.heads, self.sq, self.sk) if self.unbatched else (self.b, self.heads, self.sq, self.sk)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that every call of this shape has."""
        return {"heads": self.heads, **({"sequence_first": True} if self.sequence_first else {})}

    def rows(self, length: int, width: int) -> tuple[int, ...]:
        """The shape of an input of this length and width, in the form of the call."""
        if self.unbatched:
            return (length, width)
        return (length, self.b, width) if self.sequence_first else (self.b, length, width)


#: Self-attention with as many columns as heads · D, which every library has.
PLAIN = LayerShape()
#: Every width is different.
WIDTHS = LayerShape(sk=7, e=6, ekv=5, d=4, dv=3, eo=7)
CROSS = LayerShape(sk=7)


def normal(spread: float = 1.0, offset: float = 0.0) -> Callable[[Rng, LayerShape], tuple[np.ndarray, ...]]:
    """Normal x_q around an offset, and weights that keep the size of what they multiply, times the spread."""

    def make(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
        x_q = offset + rng.standard_normal(s.rows(s.sq, s.e))
        return (
            x_q,
            spread * _weight(rng, s.e, s.heads * s.d),
            spread * _weight(rng, s.ekv, s.heads * s.d),
            _weight(rng, s.ekv, s.heads * s.dv),
        )

    return make


def _weight(rng: Rng, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns)) / np.sqrt(rows)


def x_kv(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    """The input of keys and values."""
    return rng.standard_normal(s.rows(s.sk, s.ekv)).astype(dtype)


def w_o(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    """The output projection."""
    return _weight(rng, s.heads * s.dv, s.eo).astype(dtype)


def columns(name: str) -> Maker:
    """A bias, gamma or beta: normal numbers, as many as ``name`` has columns, gamma around 1."""

    def make(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
        widths = {"b_q": s.heads * s.d, "b_k": s.heads * s.d, "b_v": s.heads * s.dv, "b_o": s.eo}
        numbers = rng.standard_normal(widths.get(name, s.e))
        return (1 + numbers / 4 if name == "gamma" else numbers).astype(dtype)

    return make


#: The four biases of a layer.
BIASES = {name: columns(name) for name in ("b_q", "b_k", "b_v", "b_o")}


@dataclass(frozen=True)
class _Layer(AnyCase):
    """Base of the cases of both operators."""

    arguments: ClassVar[type] = LayerInputs
    shape: LayerShape = PLAIN

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """x_q and the weights in float64."""
        return (self.data or normal())(rng, self.shape)

    def make_bound(
        self, inputs: LayerInputs, expected: LayerExpected | SublayerExpected, dtype: str, profile: Profile
    ) -> LayerBound:
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, Options.of(inputs.keywords), dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result, in the form of the call."""
        if result == "weights":
            names = ("row", "key") if self.options.get("average_weights") else ("head", "row", "key")
            return names if self.shape.unbatched else ("batch", *names)
        if self.shape.unbatched:
            return ("row", "column")
        return ("row", "batch", "column") if self.shape.sequence_first else ("batch", "row", "column")


@dataclass(frozen=True)
class MhaCase(_Layer):
    """A case of mha."""

    operator: ClassVar[str] = "mha"
    blame: ClassVar[Blame] = Blame(
        "MHA-1", accuracy="MHA-18", value="MHA-12", of_result={"weights": "MHA-14"}, memory="MHA-23"
    )

    def make_expected(self, inputs: LayerInputs) -> LayerExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.mha(**_call(inputs))

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class SublayerCase(_Layer):
    """A case of sublayer."""

    operator: ClassVar[str] = "sublayer"
    blame: ClassVar[Blame] = Blame("SUB-7", accuracy="SUB-9", value="SUB-3", memory="MHA-23")

    def make_expected(self, inputs: LayerInputs) -> SublayerExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.sublayer(**_call(inputs))

    def __hash__(self) -> int:
        return hash(self.name)


def _call(inputs: LayerInputs) -> dict[str, Any]:
    """Arguments of the reference, which returns all results, whether requested or not."""
    return inputs.arrays | {name: value for name, value in inputs.keywords.items() if name != "return_weights"}
