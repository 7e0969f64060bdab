"""Cases at the sizes where kernels break: a covering design of tile edges, widths, groups, options and dtypes.

A run tests a plugged-in implementation with those that find what no other case does (``asked_cases``); all others run
only when named.  Their data makes the last key, the first key of each tile, the diagonal and the ends of the window
decide an element each, in every dtype: a row's largest scores are at some of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import FLOAT32, Case, case
from attention_conformance.conformance.cases.behaviour import nan_in_column, poison
from attention_conformance.conformance.cases.data import (
    LEVEL,
    Maker,
    Rng,
    Shape,
    bias_from,
    constant_bias,
    constant_values,
    full_mask,
    lengths,
    mask_without,
    random_bias,
    random_mask,
    shifted,
)
from attention_conformance.conformance.cases.design import Design, Factors, Row, design, restricted
from attention_conformance.conformance.cases.kernel_paths import Call
from attention_conformance.conformance.cases.store import CASES, FITTED
from attention_conformance.conformance.spec.inputs import Inputs

#: Lengths on both sides of the tiles and splits of kernel_paths.toml; those below 63 are no tile edges.
LENGTHS = (1, 2, 8, 16, 63, 64, 65, 127, 128, 129, 255, 256, 257, 385, 511, 512, 513, 1023, 1024, 1025)
WIDTHS = ((32, 32), (40, 40), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512))
GROUPS = (1, 2, 3, 5, 8, 16)
DTYPES = ("float32", "float16", "bfloat16")

#: Names of the cases that catch every fault in every envelope twice, one per line; chosen by the kill matrices
#: (faults/envelopes.py).
REQUESTED = Path(__file__).with_name("kernels_requested.txt")

#: Elements above which the references of a case are recomputed when a run comes back to it; others are kept.
LARGEST = 1 << 20

#: Height of a peak above the logarithm of the number of keys: its weight is then most of the row's.
PEAK = 2.0


@dataclass(frozen=True)
class OptionSet:
    """Options that a case uses together: the clauses that they are about, and how they are made for a shape."""

    clauses: str
    makers: Mapping[str, Any] = field(default_factory=dict)


def tiled_mask(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    """Each key allowed with probability 0.7, the last one always; some rows without the first or the second half."""
    mask = rng.random(s.scores) < 0.7
    rows, half = np.arange(s.sq), s.sk // 2
    mask[:, :, rows % 5 == 1, :half] = False
    mask[:, :, rows % 5 == 2, half : s.sk - 1] = False
    mask[..., s.sk - 1] = True
    return mask


def bottom_right(s: Shape) -> int:
    """The offset that ends the diagonal at the last key; 3 where there are more queries than keys."""
    return s.sk - s.sq if s.sk >= s.sq else 3


def sides(s: Shape) -> tuple[int, int]:
    """A window longer than a tile of 64 where there are keys for it, and open to the right for few queries."""
    left = 100 if s.sk > 128 else max(s.sk // 3, 1)
    return left, s.sk // 2 if s.sq < 16 else 5


def ragged(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    """One length per batch: two thirds of the keys, then all but one, and so on."""
    lengths = np.array([max(1, 2 * s.sk // 3), max(1, s.sk - 1)], np.int64)
    return np.resize(lengths, s.b)


def peaked_sinks(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    """One logit per head, about as large as the peaks of the scores."""
    return (np.log(s.sk + 1) + PEAK / 2 + rng.standard_normal(s.hq)).astype(dtype)


def of_shape(make: Any) -> Any:
    """A maker of an option that is not an array and depends only on the shape."""
    return lambda rng, s, dtype: make(s)


_CAUSAL: dict[str, Any] = {"is_causal": True}
_OFFSET = _CAUSAL | {"causal_offset": of_shape(bottom_right)}
_WINDOW = {"window": of_shape(sides)}
_LENGTHS: dict[str, Maker] = {"kv_lengths": ragged}

#: The options that meet sizes, widths, groups and dtypes: each alone, and the pairs that serving and training use.
OPTION_SETS: dict[str, OptionSet] = {
    "plain": OptionSet("SDPA-1"),
    "mask": OptionSet("SDPA-7", {"mask": tiled_mask}),
    "bias": OptionSet("SDPA-6", {"bias": random_bias(0.5)}),
    "causal": OptionSet("SDPA-9", _CAUSAL),
    "offset": OptionSet("SDPA-10 SDPA-9", _OFFSET),
    "window": OptionSet("SDPA-11", _WINDOW),
    "causal-window": OptionSet("SDPA-11 SDPA-9 SDPA-13", _CAUSAL | _WINDOW),
    "offset-window": OptionSet("SDPA-11 SDPA-10 SDPA-13", _OFFSET | _WINDOW),
    "softcap": OptionSet("SDPA-5", {"softcap": 6.0}),
    "causal-softcap": OptionSet("SDPA-5 SDPA-9 SDPA-13", _CAUSAL | {"softcap": 6.0}),
    "offset-softcap": OptionSet("SDPA-5 SDPA-10 SDPA-13", _OFFSET | {"softcap": 6.0}),
    "lengths": OptionSet("SDPA-12", _LENGTHS),
    "offset-lengths": OptionSet("SDPA-12 SDPA-10 SDPA-13", _OFFSET | _LENGTHS),
    "causal-mask": OptionSet("SDPA-7 SDPA-9 SDPA-13", _CAUSAL | {"mask": tiled_mask}),
    "sinks": OptionSet("SDPA-38", {"sinks": peaked_sinks}),
}

#: Keys that a kernel may lose or add: the first of tiles and splits, and the last of them.
EDGES = (0, 15, 16, 31, 32, 63, 64, 79, 80, 127, 128, 143, 144, 175, 176, 191, 192, 255, 256, 511, 512, 1023, 1024)


def telling(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal k and v, and in each row of q three peaks of one size: at an edge, near its diagonal, and at any key.

    In every third row the edge is the last key.  Peaks move with the row, the head and the batch, so that every head
    has different ones; a single row still has three.

    Parameters
    ----------
    rng
        A seeded generator.
    s
        The shape; without rows, keys or width, q, k and v are just normal.

    Returns
    -------
    tuple[np.ndarray, np.ndarray, np.ndarray]
        q (B, Hq, Sq, D), k (B, Hkv, Sk, D) and v (B, Hkv, Sk, Dv) in float64.
    """
    q = rng.standard_normal((s.b, s.hq, s.sq, s.d)) / 2
    k = rng.standard_normal((s.b, s.hkv, s.sk, s.d))
    v = rng.standard_normal((s.b, s.hkv, s.sk, s.dv))
    if not k.size or not q.size:
        return q, k, v
    b, h, i = np.ogrid[: s.b, : s.hq, : s.sq]
    n = i + 3 * h + 5 * b
    edges = np.array([edge for edge in EDGES if edge < s.sk])
    left, right = sides(s)
    near = np.array([0, 1, -left, -left - 1, right, right + 1])[n % 6]
    shift = np.where(n // 6 % 2 == 0, 0, bottom_right(s))
    peaks = (
        np.where(n % 3 == 0, s.sk - 1, edges[n // 3 % len(edges)]),
        np.clip(i + shift + near, 0, s.sk - 1),
        np.broadcast_to(rng.integers(s.sk, size=(s.b, s.hq, s.sq)), n.shape),
    )
    group = s.hq // s.hkv
    towards = (np.log(s.sk) + PEAK) * np.sqrt(s.d) * k / (k * k).sum(3, keepdims=True)
    for peak in peaks:
        q += towards[b, h // group, np.broadcast_to(peak, (s.b, s.hq, s.sq))]
    return q, k, v


#: Every part of the design; the edges of tiles of keys meet every option in every dtype.
FACTORS = Factors(
    sq=(1, 2, 8, 16, 63, 64, 65, 128, 129, 256, 257, 513, 1025),
    sk=LENGTHS,
    width=WIDTHS,
    group=GROUPS,
    hkv=(1, 2),
    b=(1, 2),
    option=tuple(OPTION_SETS),
    dtype=DTYPES,
    lse=(False, True),
    triples=(("sk", "option", "dtype"),),
    within={"sk": (63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 513, 1024, 1025)},
    limit=1 << 18,
)

#: One query and few over many keys, with each option in each dtype.
DECODE = Factors(
    sq=(1, 2, 8),
    sk=(129, 257, 512, 513, 1024, 1025),
    width=((64, 64), (96, 96), (128, 128), (192, 128), (256, 256)),
    group=(1, 3, 4, 8),
    hkv=(1, 2),
    b=(1, 2),
    option=tuple(OPTION_SETS),
    dtype=DTYPES,
    lse=(False, True),
    triples=(("sq", "option", "dtype"),),
    limit=3 << 17,
)

#: As many queries as keys, as in training: the edges of tiles of rows meet what training uses.
SQUARE = Factors(
    sq=(64, 65, 128, 129),
    sk=(64, 65, 128, 129),
    width=((32, 32), (64, 64), (96, 96), (128, 128), (256, 256)),
    group=(1, 2, 4),
    hkv=(1, 2),
    b=(1, 2),
    option=("plain", "causal", "causal-window", "causal-softcap", "causal-mask", "mask", "bias", "lengths"),
    dtype=DTYPES,
    lse=(False, True),
    triples=(("sq", "option", "dtype"),),
    within={"sq": (65, 129)},
    limit=9 << 17,
    allows=lambda row: row.sq == row.sk,
)

#: The other edges of tiles of rows, below which and up to which a kernel's loop over rows ends.
ROWS = Factors(
    sq=(127, 255, 511, 512, 1023, 1024),
    sk=(1, 16, 64, 65, 128, 129, 256),
    width=((32, 32), (64, 64), (128, 128)),
    group=(1, 2, 3),
    hkv=(1, 2),
    b=(1, 2),
    option=tuple(OPTION_SETS),
    dtype=DTYPES,
    lse=(False, True),
    limit=1 << 21,
)

#: Few to many (batch, head) pairs, from which kernels choose how to split: B · Hq from 1 to 64.
HEADS = Factors(
    sq=(1, 5, 17),
    sk=(17, 65, 129),
    width=((32, 32), (64, 64), (128, 128)),
    group=(1, 2, 4, 8, 16),
    hkv=(1, 2, 4, 8, 16, 64),
    b=(1, 2, 4, 8, 16, 64),
    option=("plain", "causal", "offset", "window", "lengths", "mask", "bias", "softcap"),
    dtype=DTYPES,
    lse=(False, True),
    limit=1 << 20,
    allows=lambda row: row.b * row.hkv * row.group <= 64,
)

#: Rows of their own: long keys, long queries, both long, and more heads than a grid's axis holds.
LARGE = (
    Row(1, 4097, (64, 64), 8, 1, 1, "plain", "float32", True),
    Row(1, 4097, (128, 128), 8, 1, 1, "lengths", "bfloat16", False),
    Row(8, 4097, (64, 64), 2, 2, 1, "offset", "float16", False),
    Row(2, 4096, (64, 64), 2, 2, 1, "softcap", "float16", True),
    Row(1, 4097, (128, 128), 3, 2, 1, "mask", "float32", False),
    Row(1025, 64, (32, 32), 1, 1, 1, "causal", "float16", False),
    Row(1, 65545, (32, 32), 1, 1, 1, "plain", "float32", False),
    Row(2, 65545, (32, 32), 1, 1, 1, "offset-window", "float16", False),
    Row(1, 65545, (32, 32), 1, 1, 1, "mask", "bfloat16", False),
    Row(65545, 1, (32, 32), 1, 1, 1, "causal", "bfloat16", False),
    Row(1024, 257, (32, 32), 1, 1, 1, "causal-mask", "float32", False),
    Row(1025, 513, (32, 32), 1, 1, 1, "offset-window", "bfloat16", False),
    Row(257, 1025, (32, 32), 1, 1, 1, "offset", "float32", True),
    Row(768, 385, (32, 32), 1, 1, 1, "bias", "float16", False),
    Row(513, 513, (32, 32), 1, 1, 1, "mask", "float16", False),
    Row(256, 256, (128, 128), 1, 1, 1, "causal", "float16", True),
    Row(1, 2, (16, 16), 1, 1, 65545, "plain", "float32", False),
    Row(1, 2, (16, 16), 65545, 1, 1, "plain", "float16", False),
    Row(1, 16, (64, 64), 1, 64, 1, "offset", "float16", False),
    Row(17, 65, (32, 32), 1, 1, 64, "lengths", "bfloat16", False),
    Row(2, 65, (64, 64), 1, 32, 2, "causal-mask", "float32", False),
)


#: Rows on paths that several conditions at once lead to, which a design of pairs and triples seldom meets.
NARROW = (
    Row(132, 193, (80, 80), 1, 1, 1, "causal", "float16", False),
    Row(130, 160, (96, 96), 1, 1, 1, "causal", "bfloat16", False),
    Row(16, 65, (128, 128), 2, 1, 1, "mask", "float16", False),
    Row(129, 16, (192, 128), 1, 1, 1, "plain", "float16", False),
    Row(130, 8, (192, 128), 1, 1, 1, "bias", "bfloat16", False),
    Row(256, 128, (64, 64), 1, 1, 1, "plain", "float16", True),
    Row(256, 128, (64, 64), 1, 1, 1, "causal", "bfloat16", True),
    Row(256, 256, (32, 32), 1, 1, 1, "causal", "float32", False),
    Row(8, 129, (256, 256), 1, 1, 1, "bias", "float16", False),
    Row(2, 257, (256, 256), 2, 1, 1, "bias", "bfloat16", False),
    Row(257, 16, (32, 32), 1, 1, 1, "bias", "float32", False),
    Row(256, 8, (64, 64), 2, 1, 1, "bias", "float32", False),
    Row(128, 256, (32, 32), 1, 1, 1, "lengths", "float32", False),
    Row(128, 128, (64, 64), 1, 1, 2, "lengths", "float16", False),
    Row(128, 128, (128, 128), 1, 1, 1, "causal", "bfloat16", False),
    Row(1, 256, (64, 64), 1, 2, 1, "mask", "float16", False),
    Row(1, 512, (128, 128), 2, 1, 1, "mask", "bfloat16", False),
    Row(1, 256, (64, 64), 16, 2, 1, "mask", "float16", False),
    Row(2, 256, (128, 128), 16, 2, 1, "mask", "bfloat16", False),
    Row(1, 256, (64, 64), 3, 2, 1, "mask", "float16", False),
    Row(2, 512, (80, 80), 3, 2, 1, "mask", "bfloat16", False),
    Row(513, 16, (32, 32), 1, 1, 1, "mask", "bfloat16", False),
    Row(2, 257, (512, 512), 1, 1, 1, "offset", "float16", False),
    Row(260, 260, (64, 64), 1, 1, 1, "causal", "bfloat16", False),
    Row(272, 272, (64, 64), 1, 1, 1, "causal-window", "bfloat16", False),
    Row(268, 268, (64, 64), 1, 1, 1, "causal-softcap", "bfloat16", False),
    Row(1, 1, (64, 64), 3, 2, 1, "bias", "float32", True),
    Row(1, 1, (128, 128), 2, 3, 1, "bias", "float32", True),
    Row(1, 1, (64, 64), 2, 3, 1, "sinks", "float32", True),
    Row(1, 1, (96, 96), 3, 2, 1, "sinks", "float32", False),
    Row(8, 8, (64, 64), 1, 2, 1, "softcap", "float32", False),
    Row(4, 4, (128, 128), 2, 1, 1, "causal-softcap", "float32", True),
    Row(8, 8, (192, 128), 1, 1, 1, "plain", "float32", False),
    Row(7, 7, (192, 128), 2, 1, 1, "causal", "float32", False),
    Row(1, 256, (64, 64), 3, 2, 1, "mask", "float32", False),
    Row(1, 512, (80, 80), 4, 2, 1, "mask", "float32", False),
    Row(1, 256, (64, 64), 16, 2, 1, "mask", "float32", False),
    Row(1, 256, (128, 128), 10, 2, 1, "mask", "float32", True),
    Row(1, 512, (128, 128), 1, 2, 2, "mask", "float32", False),
    Row(1, 4097, (64, 64), 2, 2, 1, "plain", "float32", False),
    Row(200, 200, (32, 32), 1, 1, 1, "bias", "float32", False),
    Row(260, 260, (32, 32), 1, 1, 1, "bias", "float32", False),
    Row(128, 128, (32, 32), 1, 1, 2, "lengths", "float32", False),
    Row(256, 256, (32, 32), 1, 1, 2, "lengths", "float32", False),
    Row(1, 512, (64, 64), 3, 2, 1, "mask", "float32", False),
    Row(4, 512, (96, 96), 3, 2, 1, "mask", "float32", False),
    Row(514, 32, (64, 64), 1, 1, 1, "mask", "bfloat16", False),
)


@dataclass(frozen=True)
class Written:
    """Rows that no design makes, and what they are for."""

    rows: tuple[Row, ...]
    why: str


BY_HAND = {
    "narrow": Written(NARROW, "A path that several conditions lead to"),
    "large": Written(LARGE, "Beyond what a design can pay for"),
}


@dataclass(frozen=True)
class Block:
    """A part of the tier: its factors, and its purpose in a sentence that each of its cases has."""

    factors: Factors
    why: str


BLOCKS = {
    "edges": Block(FACTORS, "Edges of tiles, with widths, groups and options as a covering design joins them"),
    "decode": Block(DECODE, "Few queries over many keys, which kernels split and merge"),
    "square": Block(SQUARE, "As many queries as keys, which kernels skip tiles of"),
    "rows": Block(ROWS, "The other edges of tiles of rows"),
    "heads": Block(HEADS, "From one (batch, head) pair to 64, by which kernels split"),
}


def call_of(case: Case) -> Call:
    """The call of a case in its first dtype, as conditions of kernel paths see it."""
    s = case.shape
    return Call.of(s.b, s.hq, s.hkv, s.sq, s.sk, s.d, s.dv, case.dtypes[0], case.options)


@functools.cache
def designed(name: str) -> Design:
    """The suite's design of a block."""
    return design(BLOCKS[name].factors)


def sizes_text(row: Row) -> str:
    """All of a row except its option, as in names of cases."""
    d, dv = row.width
    width = f"d{d}" if d == dv else f"d{d}v{dv}"
    sizes = f"{row.b}x{row.hkv * row.group}x{row.hkv}-q{row.sq}-k{row.sk}-{width}"
    return f"{sizes}{'-lse' * row.lse}-{row.dtype}"


def of_row(name: str, why: str, row: Row) -> Case:
    """The case of a row; its name gives the whole row, so that it is the same in any design."""
    options = OPTION_SETS[row.option]
    shape = Shape(row.b, row.hkv * row.group, row.hkv, row.sq, row.sk, *row.width)
    lse = {"return_lse": True} if row.lse else {}
    clauses = options.clauses + " SDPA-17" * (row.group > 1) + " SDPA-19" * row.lse
    return case(
        f"kernel-{name}-{row.option}-{sizes_text(row)}",
        clauses,
        f"{why}: {row.option}, {row.sq} queries, {row.sk} keys, groups of {row.group}.",
        shape,
        data=telling,
        dtypes=(row.dtype,),
        store=FITTED if shape.elements > LARGEST else CASES,
        **options.makers,
        **lse,
    )


def cases() -> Iterator[Case]:
    """Every case of the tier."""
    for name, block in BLOCKS.items():
        for row in designed(name).rows:
            yield of_row(name, block.why, row)
    yield from _by_hand()
    yield from _written().values()


_NAME = re.compile(
    r"(kernel|serving)-(?P<kind>[a-z]+)-(?P<option>[a-z][a-z0-9-]*)-(?P<b>\d+)x(?P<hq>\d+)x(?P<hkv>[1-9]\d*)"
    r"-q(?P<sq>\d+)-k(?P<sk>\d+)-d(?P<d>\d+)(v(?P<dv>\d+))?(?P<lse>-lse)?-(?P<dtype>[a-z]+\d+)"
)


def kernel_case(name: str) -> Case:
    """The case with a name, without making its design.  Raises KeyError for a name that no row has."""
    row = row_named(name)
    if row is None:
        return _written()[name]
    kind = name.split("-")[1]
    return of_row(kind, BLOCKS[kind].why if kind in BLOCKS else BY_HAND[kind].why, row)


def row_named(name: str) -> Row | None:
    """The row of a case by its name; None for a case that is written out, or of another tier."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    n = {axis: int(found[axis]) for axis in ("b", "hq", "hkv", "sq", "sk", "d")}
    group, width = n["hq"] // n["hkv"], (n["d"], int(found["dv"] or n["d"]))
    return Row(n["sq"], n["sk"], width, group, n["hkv"], n["b"], found["option"], found["dtype"], bool(found["lse"]))


def asked_cases() -> Iterator[Case]:
    """The cases that a run includes by default."""
    return map(kernel_case, REQUESTED.read_text(encoding="utf-8").split())


#: Unit of a row's cost among the few; a row may cost two.
CHEAP = 1 << 20


def few_cases() -> Iterator[Case]:
    """A few of the cases of ``asked_cases``, which still have all their options, widths and groups in every dtype.

    They also have every option with one query, few and many, over few keys and many, fewer or more than the queries, in
    groups and not, and with lse.  They are chosen greedily: the case that adds most for its cost first.  Written-out
    cases of a whole call (empty batches, smallest numbers and sinks) are added.
    """
    rows = {name: row_named(name) for name in REQUESTED.read_text(encoding="utf-8").split()}
    brings = {name: _features_of(row) for name, row in rows.items() if row is not None and row.cost <= 2 * CHEAP}
    costs = {name: 1 + row.cost / CHEAP for name, row in rows.items() if row is not None}
    missing = set().union(*brings.values())
    while missing:
        best = max(brings, key=lambda name: (len(brings[name] & missing) / costs[name], name))
        missing -= brings.pop(best)
        yield kernel_case(best)
    yield from (kernel_case(name) for name in rows if name.startswith("kernel-whole-"))


def _features_of(row: Row) -> set[tuple[Any, ...]]:
    """Features that a row adds to the few, such as its option, width and group."""
    queries, keys = _side(row.sq), _side(row.sk)
    return {
        ("option", row.option, row.dtype),
        ("width", row.width, row.dtype),
        ("group", row.group, row.dtype),
        ("lengths", queries, keys, row.dtype),
        ("queries", queries, row.option),
        ("keys", keys, row.option),
        ("lse", row.lse, row.option),
        ("heads", row.b * row.hkv * row.group > 8, row.dtype),
        ("relation", (row.sq > row.sk) - (row.sq < row.sk), row.option, row.group > 1),
    }


def _side(length: int) -> int:
    """Kind of a length: one, few, up to a tile and its next, or many."""
    return sum(length > most for most in (1, 16, 65))


def cases_within(seed: int = 0, **allowed: tuple[Any, ...]) -> Iterator[Case]:
    """The tier regenerated inside an envelope.

    Parameters
    ----------
    seed
        Seed of the design.
    allowed
        The values that the envelope has, by part of a row (``sq``, ``sk``, ``width``, ``group``, ``hkv``, ``b``,
        ``option``, ``dtype``, ``lse``); other parts keep theirs.

    Yields
    ------
    Case
        The cases of the restricted covering designs, then the handwritten ones inside.
    """
    for name, block in BLOCKS.items():
        for row in design(restricted(block.factors, **allowed), seed).rows:
            yield of_row(name, block.why, row)
    yield from _by_hand(**allowed)


def _by_hand(**allowed: tuple[Any, ...]) -> Iterator[Case]:
    """The cases that no design makes and whose parts are allowed."""
    for name, written in BY_HAND.items():
        for row in written.rows:
            if all(getattr(row, part) in values for part, values in allowed.items()):
                yield of_row(name, written.why, row)


#: One new token of a server: a batch of two over a cache of 256, heads of 64.
TOKEN = Shape(2, 8, 8, 1, 256, 64, 64)


@functools.cache
def _written() -> dict[str, Case]:
    """One query over many keys with the options of serving, and as many queries as keys; with fewer key heads, too.

    Most cases of the clauses have several queries, or fewer queries than keys, and do not run on a kernel that takes
    only one query, or only as many as keys.
    """
    padded: dict[str, Any] = {"kv_lengths": lengths(0, 170, of=256)}
    end: dict[str, Any] = {"is_causal": True, "causal_offset": lengths(99, 255)}
    low: dict[str, Any] = {"mask": mask_without(keys=slice(0, 160)), "data": shifted(-625.0, level=LEVEL)}
    smallest: dict[str, Any] = {
        "bias": bias_from(full_mask(False), None),
        "data": constant_values(1.5),
        "dtypes": FLOAT32,
    }
    off_first, but_last = mask_without(keys=slice(0, 1)), mask_without(keys=slice(0, -1))
    none: dict[str, Any] = {"kv_lengths": lengths(0), "return_lse": True}
    step: dict[str, Any] = {"past": 255, "is_causal": True}
    several: dict[str, Any] = {"past": 16, "is_causal": True}
    asked: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("bias-empty", "SDPA-24 SDPA-15", "A bias of −inf everywhere: zeros.", {"bias": constant_bias(-np.inf)}),
        ("bias-empty-weights", "SDPA-18 SDPA-15 SDPA-24", "Weights of zero where a bias leaves no key.", {"bias": constant_bias(-np.inf), "return_weights": True}),
        ("bias-smallest", "SDPA-24", "The smallest number as the bias of every key: any mean of v is 1.5.", smallest),
        ("mask-causal-empty", "SDPA-13 SDPA-15", "Causal leaves the first key, and the mask all others: none.", {"mask": off_first, "is_causal": True}),
        ("lengths-empty", "SDPA-15 SDPA-12 SDPA-19", "A slot of the batch that is not in use: zeros, and lse of −inf.", padded | {"return_lse": True}),
        ("lengths-empty-weights", "SDPA-18 SDPA-15 SDPA-12", "The weights of a slot that is not in use.", padded | {"return_weights": True}),
        ("lengths-empty-sinks", "SDPA-38 SDPA-19 SDPA-12", "A slot that is not in use, with sinks: lse is the sink.", padded | {"return_lse": True, "sinks": peaked_sinks}),
        ("sinks-weights", "SDPA-38 SDPA-18", "With sinks the weights of the keys add up to less than 1.", {"sinks": peaked_sinks, "return_weights": True}),
        ("low-scores", "SDPA-14", "Scores near −1e5: a maximum that starts at −5e4 is one of no key.", {"data": shifted(-1e5), "dtypes": FLOAT32}),
        ("mask-low-scores", "SDPA-7 SDPA-14", "160 keys masked, the scores of the others near −625.", low),
        ("mask-one-low", "SDPA-7 SDPA-14", "All keys but the last masked, and its score near −625.", {"mask": but_last, "data": shifted(-625.0, level=LEVEL)}),
        ("mask-window", "SDPA-13 SDPA-11 SDPA-7", "A mask, and a window to the right that ends within the keys.", {"mask": random_mask(0.7), "window": (None, 99)}),
        ("window-one", "SDPA-11", "(0, 0): the token's own key, and sides of 0 are sides.", {"window": (0, 0)}),
        ("causal-weights", "SDPA-9 SDPA-18", "Causal without an offset, with weights: one key.", {"is_causal": True, "return_weights": True}),
        ("causal-softcap", "SDPA-5 SDPA-9 SDPA-13", "Causal without an offset, with a softcap: one key.", {"is_causal": True, "softcap": 6.0}),
        ("causal-lengths", "SDPA-12 SDPA-9 SDPA-13", "Lengths do not move the diagonal.", {"is_causal": True, "kv_lengths": lengths(170, 255, of=256)}),
        ("offset-negative", "SDPA-10 SDPA-15", "Offset −3: the token stands before the first key.", {"is_causal": True, "causal_offset": -3}),
        ("offset-lengths", "SDPA-12 SDPA-10 SDPA-13", "Lengths below the offset of one sequence, above that of the other.", end | {"kv_lengths": lengths(170, 200, of=256)}),
        ("offset-cut", "SDPA-10 DEC-5 SDPA-12", "Tokens before the end of what is valid.", end | {"kv_lengths": lengths(170, 256, of=256)}),
        ("nan-value", "SDPA-23", "NaN in one column of one value reaches that column alone.", {"edit": nan_in_column}),
        ("nan-key-last", "SDPA-23", "NaN in the last key of the cache.", {"edit": poison("k", np.nan, slice(-1, None))}),
        ("past", "DEC-1 DEC-2 DEC-3", "One token behind 255.", step),
        ("past-bias", "DEC-1 SDPA-6", "A bias over past and new keys.", step | {"bias": random_bias(2.0)}),
        ("past-dtype", "DEC-7", "Past values alone are wider than the new ones.", step | {"edit": _wider_past_values, "invalid": True}),
        ("past-none", "DEC-1 DEC-3", "A past of no keys is a past, and there is a present.", {"past": 0}),
        ("past-none-lse", "DEC-3 SDPA-19", "The present comes behind lse, with a past of no keys.", {"past": 0, "return_lse": True}),
    )  # fmt: skip
    found = []
    for name, clauses, why, options in asked:
        options = {"data": telling, "dtypes": DTYPES} | options
        found.append(case(f"kernel-token-{name}", clauses, why, TOKEN, **options))
        why = f"{why[:-1]}, with groups of four."
        found.append(case(f"kernel-tokengrouped-{name}", f"{clauses} SDPA-17", why, replace(TOKEN, hkv=2), **options))
    for name, clauses, why, shape, options in (
        ("sinks-window", "SDPA-38 SDPA-11 SDPA-9", "Sinks in a causal window, as gpt-oss is trained.", replace(TOKEN, b=1, sq=65, sk=65), {"is_causal": True, "window": (8, 0), "sinks": peaked_sinks}),
        ("bias-smallest", "SDPA-24", "The smallest number as the bias of every key, in every row.", replace(TOKEN, b=1, sq=16, sk=16), smallest),
        ("bias-smallest-causal", "SDPA-24 SDPA-9", "The smallest number as the bias of every key up to the row's.", replace(TOKEN, b=1, sq=16, sk=16), smallest | {"is_causal": True}),
        ("lengths-none-sinks", "SDPA-38 SDPA-19 SDPA-12", "No valid key: zeros, and lse is the sink.", replace(TOKEN, b=1, sq=65, sk=65), none | {"sinks": peaked_sinks}),
        ("lengths-none-causal", "SDPA-15 SDPA-12 SDPA-19", "No valid key in a causal call: zeros, and lse of −inf.", replace(TOKEN, b=1, sq=65, sk=65), none | {"is_causal": True}),
        ("mask-long", "SDPA-7", "A mask of 256 rows and keys.", replace(TOKEN, b=1, hq=6, hkv=6, sq=256, sk=256), {"mask": random_mask(0.7)}),
        ("mask-lengths", "SDPA-7 SDPA-12 SDPA-13", "A mask, and a length that ends within the keys.", replace(TOKEN, b=1, sq=65, sk=65), {"mask": random_mask(0.7), "kv_lengths": lengths(40, of=65)}),
        ("mask-window", "SDPA-13 SDPA-11 SDPA-7", "A mask, and a window on both sides.", replace(TOKEN, b=1, sq=65, sk=65), {"mask": random_mask(0.7), "window": (8, 8)}),
        ("past-bias", "DEC-1 SDPA-6", "A bias over 16 past keys and 16 new ones.", replace(TOKEN, b=1, sq=16, sk=32), several | {"bias": random_bias(2.0)}),
        ("past-lengths", "DEC-1 SDPA-12", "Lengths of past and new keys together.", replace(TOKEN, sq=16, sk=32), several | {"kv_lengths": lengths(12, 25, of=32)}),
        ("past-none", "DEC-1 DEC-3", "A past of no keys, and 16 new ones: there is a present.", replace(TOKEN, b=1, sq=16, sk=16), {"past": 0}),
        ("no-batch-causal", "SDPA-20 SDPA-9", "A batch of none.", replace(TOKEN, b=0, sq=16, sk=16), {"is_causal": True}),
        ("one-key-sinks", "SDPA-4 SDPA-38", "One query and one key: with a sink the scale still decides.", replace(TOKEN, sk=1), {"scale": 0.7, "sinks": peaked_sinks}),
    ):  # fmt: skip
        options = {"data": telling, "dtypes": DTYPES} | options
        found.append(case(f"kernel-whole-{name}", clauses, why, shape, **options))
        why = f"{why[:-1]}, with groups of {'three' if shape.hq == 6 else 'four'}."
        found.append(case(f"kernel-wholegrouped-{name}", f"{clauses} SDPA-17", why, replace(shape, hkv=2), **options))
    return {each.name: each for each in found}


def _wider_past_values(x: Inputs) -> Inputs:
    return replace(x, keywords=x.keywords | {"past_value": x.keywords["past_value"].astype(np.float64)})
