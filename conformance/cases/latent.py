"""(MLA-1 to 8) Cases of latent: latents and a rotary key for all heads, at small sizes and at DeepSeek's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import latent as bounds
from attention_conformance.conformance.bounds.latent import LatentBound
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase, Blame
from attention_conformance.conformance.cases.data import Rng
from attention_conformance.conformance.spec import latent as reference
from attention_conformance.conformance.spec.inputs import LatentInputs
from attention_conformance.conformance.spec.latent import LatentExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class LatentShape:
    """Sizes of one input, named as in the spec: ``d`` and ``dr`` of the parts of a query, ``rank`` of a latent."""

    b: int = 2
    heads: int = 3
    sq: int = 5
    sk: int = 7
    d: int = 8
    dr: int = 4
    rank: int = 12
    dv: int = 6

    @property
    def elements(self) -> int:
        """Number of elements of all arguments."""
        queries = self.b * self.heads * self.sq * (self.d + self.dr)
        return queries + self.b * self.sk * (self.rank + self.dr) + self.heads * self.rank * (self.d + self.dv)

    @property
    def scores(self) -> tuple[int, ...]:
        """(B, H, Sq, Sk)."""
        return (self.b, self.heads, self.sq, self.sk)


Maker = Callable[[Rng, LatentShape, np.dtype], Any]

SMALL = LatentShape()
#: Widths of DeepSeek-V3: keys of 128 + 64 and values of 128, or 512 + 64 and 512.
DEEPSEEK = LatentShape(b=1, heads=2, sq=3, sk=9, d=128, dr=64, rank=512, dv=128)


def normal(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    """Normal numbers; weights keep the size of what they multiply, and differ by head."""
    return (
        rng.standard_normal((s.b, s.heads, s.sq, s.d)),
        rng.standard_normal((s.b, s.heads, s.sq, s.dr)),
        rng.standard_normal((s.b, s.sk, s.rank)),
        rng.standard_normal((s.b, s.sk, s.dr)),
        rng.standard_normal((s.heads, s.rank, s.d)) / np.sqrt(max(s.rank, 1)),
        rng.standard_normal((s.heads, s.rank, s.dv)) / np.sqrt(max(s.rank, 1)),
    )


def coded(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    """Weights that take columns of a latent, with a sign, and queries whose two parts point at two keys each.

    With normal weights every column of a key and of a value is a sum of R terms that cancel, and its bound a sum of
    their sizes: at R = 512 the bound of a value in half precision is larger than the value, and the scores are so equal
    that no weight shows a mistake.  Here a column is one product, and the keys that a query points at score 3 to 5
    above the rest, in one part through the latents and in the other through the rotary keys.
    """
    q, q_rope, latents, k_rope, _, _ = normal(rng, s)
    w_uk, w_uv = _columns(rng, s, s.d), _columns(rng, s, s.dv)
    if not q.size or not s.sk:
        return q, q_rope, latents, k_rope, w_uk, w_uv
    keys, whole = latents[:, None] @ w_uk, np.sqrt(s.d + s.dr)
    turned = np.broadcast_to(k_rope[:, None], (s.b, s.heads, s.sk, s.dr))
    for part, every, sizes in ((q, keys, (5.0, 4.0)), (q_rope, turned, (4.0, 3.0))):
        part *= 0.25
        for size in sizes:
            target = rng.integers(0, s.sk, (s.b, s.heads, s.sq))
            part += size * whole / max(every.shape[3], 1) * np.take_along_axis(every, target[..., None], axis=2)
    return q, q_rope, latents, k_rope, w_uk, w_uv


def _columns(rng: Rng, s: LatentShape, width: int) -> np.ndarray:
    """(H, R, width): one element, ±1, in each column, in another row of R for each head."""
    chosen = np.zeros((s.heads, s.rank, width))
    for head in chosen:
        rows = np.resize(rng.permutation(s.rank), width)
        head[rows, np.arange(width)] = rng.choice([-1.0, 1.0], width)
    return chosen


@dataclass(frozen=True)
class LatentCase(AnyCase):
    """A case of latent."""

    operator: ClassVar[str] = "latent"
    arguments: ClassVar[type] = LatentInputs
    blame: ClassVar[Blame] = Blame(
        "MLA-1",
        accuracy="MLA-6",
        value="MLA-2",
        of_result={"lse": "MLA-5"},
        **dict.fromkeys(("dtype", "modified", "unrepeatable", "memory"), "MLA-7"),
    )
    shape: LatentShape = SMALL
    data: Callable[[Rng, LatentShape], tuple[np.ndarray, ...]] = normal

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """The six arguments in float64."""
        return self.data(rng, self.shape)

    def make_expected(self, inputs: LatentInputs) -> LatentExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        options = {name: value for name, value in inputs.keywords.items() if name != "return_lse"}
        return reference.latent(*inputs.arrays.values(), **options)

    def make_bound(self, inputs: LatentInputs, expected: LatentExpected, dtype: str, profile: Profile) -> LatentBound:
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, Options.of(inputs.keywords), dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return ("batch", "head", "row", "column")[: 3 if result == "lse" else 4]

    def __hash__(self) -> int:
        return hash(self.name)


def case(name: str, clauses: str, why: str, shape: LatentShape = SMALL, **rest: Any) -> LatentCase:
    """A case from its clauses as one text."""
    return LatentCase.of(f"latent-{name}", clauses, why, shape, rest)


def cases() -> Iterator[LatentCase]:
    """Every case of this operator."""
    end: dict[str, Any] = {"is_causal": True, "causal_offset": _end}
    yield case("plain", "MLA-2 MLA-3 MLA-6", "Three heads over latents of 12 columns.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("one-head", "MLA-1", "One head, one query.", replace(SMALL, b=1, heads=1, sq=1))
    yield case("square", "MLA-1", "Every width the same, so that any two may be exchanged unseen.", LatentShape(heads=4, d=4, dr=4, rank=4, dv=4), dtypes=("float32", *HALVES))
    yield case("square-decode", "MLA-1", "The same with one query over nine latents.", LatentShape(heads=4, sq=1, sk=9, d=4, dr=4, rank=4, dv=4), dtypes=("float32", *HALVES))
    yield case("wide-values", "MLA-1", "Values wider than keys.", replace(SMALL, d=4, dv=20), stays="Dv beyond D and R")
    yield case("deepseek", "MLA-3 MLA-4", "192 and 128 columns expanded, 576 and 512 absorbed.", DEEPSEEK, data=coded, dtypes=("float32", *HALVES), stays="the widths in use, in half precision")
    yield case("deepseek-decode", "MLA-6 MLA-3 MLA-4", "One query over 65 latents of 512.", replace(DEEPSEEK, sq=1, sk=65), data=coded, dtypes=("float32", *HALVES), stays="a step of decoding at the widths in use")
    yield case("long", "MLA-3", "More tokens than the cache has columns (ik_llama.cpp PR 2031).", replace(SMALL, sq=3, sk=40), data=_numbered, dtypes=("float32", *HALVES))
    yield case("long-one-query", "MLA-3", "One query over more tokens than columns.", replace(SMALL, sq=1, sk=33), data=_numbered, dtypes=("float32", *HALVES))
    yield case("strides", "MLA-7", "Arguments whose elements lie apart in memory.", memory="sliced", stays="another layout in memory")
    yield case("scale", "MLA-4", "A scale that is given.", scale=0.7, stays="a scale that is not the default one")
    yield case("rope-alone", "MLA-2", "Latents that project to keys of 0: only the rotary part decides.", data=_rope_alone, stays="the other part of the scores alone")
    yield case("no-rope", "MLA-2", "A rotary part of 0: the scale still counts its columns.", data=_no_rope, stays="one part of the scores alone")
    yield case("equal-latents", "MLA-2 MLA-3", "Equal latents of a batch: every weight gives the same values, another for each head.", data=_equal_latents, stays="values that no weight changes")
    yield case("causal", "MLA-5", "Causal, as many queries as keys.", replace(SMALL, sq=7), is_causal=True, stays="the mask of prefill")
    yield case("causal-end", "MLA-5", "The queries are the last tokens.", **end)
    yield case("lengths", "MLA-5", "A cache with a different part in use for each batch.", kv_lengths=_lengths, stays="a cache in use in part")
    yield case("lengths-zero", "MLA-5", "No key in the first batch: zeros, and lse −inf.", kv_lengths=_none_first, return_lse=True)
    yield case("lse", "MLA-5", "lse of the scaled scores.", return_lse=True, dtypes=("float32", *HALVES))
    yield case("lse-deepseek", "MLA-5 MLA-4", "lse where the cache is 576 wide.", DEEPSEEK, data=coded, return_lse=True, dtypes=("float32", *HALVES))
    for name, why, edit in (
        ("rank", "w_uk for latents of one column less.", lambda x: replace(x, w_uk=x.w_uk[:, :-1])),
        ("rope", "A rotary key of one column less.", lambda x: replace(x, k_rope=x.k_rope[..., :-1])),
        ("heads", "w_uv of one head less.", lambda x: replace(x, w_uv=x.w_uv[:-1])),
        ("lengths", "One rotary key less than latents.", lambda x: replace(x, k_rope=x.k_rope[:, :-1])),
        ("dtype", "Latents in float64.", lambda x: replace(x, latents=x.latents.astype(np.float64))),
    ):
        yield case(f"invalid-{name}", "MLA-8", why, edit=edit, invalid=True, dtypes=("float32", *HALVES), stays="one way not to fit")


def _end(rng: Rng, s: LatentShape, dtype: np.dtype) -> int:
    return s.sk - s.sq


def _lengths(rng: Rng, s: LatentShape, dtype: np.dtype) -> np.ndarray:
    return np.linspace(s.sk, 1, s.b).astype(np.int64)


def _none_first(rng: Rng, s: LatentShape, dtype: np.dtype) -> np.ndarray:
    return np.where(np.arange(s.b) == 0, 0, s.sk)


def _numbered(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    """Latents whose last column encodes the key."""
    q, q_rope, latents, k_rope, w_uk, w_uv = normal(rng, s)
    latents[..., -1], w_uk[:, -1] = np.arange(s.sk) % 61, 0.0
    return q, q_rope, latents, k_rope, w_uk, w_uv


def _rope_alone(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    q, q_rope, latents, k_rope, w_uk, w_uv = normal(rng, s)
    return q, 2 * q_rope, latents, k_rope, 0 * w_uk, w_uv


def _no_rope(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    q, q_rope, latents, k_rope, w_uk, w_uv = normal(rng, s)
    return 2 * q, 0 * q_rope, latents, k_rope, w_uk, w_uv


def _equal_latents(rng: Rng, s: LatentShape) -> tuple[np.ndarray, ...]:
    q, q_rope, latents, k_rope, w_uk, w_uv = normal(rng, s)
    return q, q_rope, np.broadcast_to(latents[:, :1], latents.shape).copy(), k_rope, w_uk, w_uv
