"""Cases of packed sequences and paged caches at the sizes of kernels: covering designs of lengths, options and pages.

As in kernels.py for attention, a row of a design is a case, whose name gives the whole row.  A run tests a plugged-in
implementation with the cases that some fault in some envelope needs; all others run only when named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.design import Factors, Row, design
from attention_conformance.conformance.cases.kernels import DTYPES, row_named, sizes_text
from attention_conformance.conformance.cases.packed import (
    PackedCase,
    PackedShape,
    PagedCase,
    PagedShape,
    Rng,
    across,
    new_rows,
    over_pages,
    sinks,
)
from attention_conformance.conformance.cases.paged import scales, stored_as
from attention_conformance.conformance.cases.store import CASES, FITTED
from attention_conformance.conformance.cases.varlen_gradient import PackedGradientCase

#: Names of the cases that catch every fault in every envelope twice, one per line; chosen by the kill matrices
#: (faults/envelopes.py).
REQUESTED = Path(__file__).with_name("serving_requested.txt")

#: Elements above which the references of a case are recomputed when a run comes back to it; others are kept.
LARGEST = 1 << 20

#: The lengths of sequences as quarters of the longest; neither the first nor the last is the longest.
QUARTERS = (3, 1, 4, 2, 3)

#: Unused pages in a cache whose block numbers exceed 16 bits.
MANY = 100_000


@dataclass(frozen=True)
class Options:
    """Options that a case uses together, their changes to its shape, and the clause's number in VARLEN or PAGED."""

    clause: int
    given: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    #: The sequence without keys, if there is one; the second then has no queries, except in a step of decoding.
    empty: int | None = None


def _offsets(rng: Rng, s: PackedShape, dtype: np.dtype) -> np.ndarray:
    """An offset for each sequence, none of which is the bottom right."""
    return np.array(
        [max(k - q - 1 + 3 * (n % 2), 0) for n, (q, k) in enumerate(zip(s.q_lengths, s.k_lengths, strict=True))]
    )


def _large_scores(rng: Rng, s: PackedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = (over_pages if isinstance(s, PagedShape) else across)(rng, s)  # type: ignore[arg-type]
    return 2 * q, k, v


def _quantised(form: str, per: str, **shape: Any) -> Options:
    return Options(14, {"is_causal": True, "stored": form, "edit": stored_as(form), **scales(per, form)}, shape)


_CAUSAL: dict[str, Any] = {"is_causal": True}

#: The options of both operators, and of each alone.  Gradients have the clause GRAD-31 with all of them.
BOTH = {
    "plain": Options(2),
    "causal": Options(3, _CAUSAL),
    "every-key": Options(3, _CAUSAL | {"causal_offset": 1 << 20}),
    "offsets": Options(3, _CAUSAL | {"causal_offset": _offsets}),
    "window": Options(3, _CAUSAL | {"window": (5, None)}),
    "softcap": Options(3, _CAUSAL | {"softcap": 3.0, "data": _large_scores}),
    "empty": Options(4, _CAUSAL, empty=-1),
    "empty-first": Options(4, _CAUSAL, empty=0),
}
PACKED = BOTH | {
    "sinks": Options(5, _CAUSAL | {"sinks": sinks}),
    "every-key-behind": Options(7, _CAUSAL | {"causal_offset": 1 << 20}, {"behind": 6}),
    "behind": Options(7, _CAUSAL, {"behind": 6}),
}
PAGED = BOTH | {
    "sinks": Options(8, _CAUSAL | {"sinks": sinks}),
    "new": Options(11, _CAUSAL | {"k_new": new_rows("d"), "v_new": new_rows("dv")}),
    "shared": Options(2, _CAUSAL, {"shared": 1}),
    "padding": Options(4, _CAUSAL, {"padding": -1}),
    "many": Options(6, _CAUSAL, {"unused": MANY}),
    "int8-head": _quantised("int8", "head"),
    "int8-token": _quantised("int8", "token"),
    "e4m3-token-head": _quantised("float8_e4m3fn", "token_head"),
    "e5m2-channel": _quantised("float8_e5m2", "channel"),
    "int8-token-head": _quantised("int8", "token_head"),
    "int8-shared": _quantised("int8", "page", shared=1),
}

#: Page sizes of engines, and one that is no power of two.
PAGES = (1, 16, 17, 64, 128, 256)


@dataclass(frozen=True)
class Block:
    """A design, the operator and the options of its cases, and what it is for."""

    operator: str
    factors: Factors
    why: str
    #: Rows of its own, after those of the design.
    rows: tuple[Row, ...] = ()


_WIDTHS = ((8, 8), (64, 64), (128, 128))


def _factors(options: tuple[str, ...], **changes: Any) -> Factors:
    found = Factors(
        sq=(1, 5, 17, 33),
        sk=(5, 17, 33, 65),
        width=_WIDTHS,
        group=(1, 4),
        hkv=(1, 2),
        b=(3, 5),
        option=options,
        dtype=DTYPES,
        lse=(False, True),
        limit=1 << 20,
    )
    return replace(found, **changes)


def _by_page(*options: str) -> tuple[str, ...]:
    return tuple(f"p{page}-{option}" for page in PAGES for option in options)


_SQUARE: dict[str, Any] = {"sq": (5, 17, 33, 65), "allows": lambda row: row.sq == row.sk}
_GRADIENTS = tuple(name for name in PACKED if name != "sinks")
_FEW = ("causal", "every-key", "window", "empty", "int8-head", "e5m2-channel")
_REST = tuple(f"p16-{name}" for name in PAGED if name != "many")

BLOCKS: dict[str, Block] = {
    "packed": Block(
        "varlen",
        _factors(tuple(PACKED)),
        "Packed sequences of other lengths of queries and keys",
        (
            Row(2, 27000, (8, 8), 1, 1, 5, "causal", "float16", False),
            Row(2, 27000, (8, 8), 4, 1, 5, "every-key", "bfloat16", False),
        ),
    ),
    "packedsquare": Block(
        "varlen",
        _factors(tuple(PACKED), **_SQUARE),
        "Packed sequences over themselves, as in training",
        (
            Row(4, 4, (8, 8), 1, 1, 300, "causal", "float16", False),
            Row(3, 3, (8, 8), 1, 1, 290, "plain", "bfloat16", False),
        ),
    ),
    "gradients": Block("varlen_grad", _factors(_GRADIENTS, lse=(False,)), "Gradients of packed sequences"),
    "gradientssquare": Block(
        "varlen_grad", _factors(_GRADIENTS, lse=(False,), **_SQUARE), "Gradients of packed training"
    ),
    "pages": Block(
        "paged",
        _factors(_by_page(*_FEW), sq=(1, 5), sk=(17, 40, 130, 300)),
        "Pages of every size",
        (
            Row(1, 5, (8, 8), 1, 1, 3, "p1-many", "float16", False),
            Row(5, 17, (8, 8), 1, 1, 5, "p1-many", "bfloat16", True),
        ),
    ),
    "decode": Block("paged", _factors(_REST, sq=(1,), sk=(5, 17, 40, 130)), "Steps of decoding over pages"),
    "chunks": Block("paged", _factors(_REST, sq=(5, 17), sk=(17, 40, 130)), "Chunks of prompts over pages"),
}

_MAKERS: dict[str, type[PackedCase]] = {"varlen": PackedCase, "varlen_grad": PackedGradientCase, "paged": PagedCase}
_CLAUSES = {"varlen": "VARLEN-{}", "varlen_grad": "GRAD-31", "paged": "PAGED-{}"}


def lengths(longest: int, count: int) -> tuple[int, ...]:
    """The lengths of some sequences; the third is the longest."""
    return tuple(max(longest * QUARTERS[n % len(QUARTERS)] // 4, 1) for n in range(count))


def _without(lengths: tuple[int, ...], *sequences: int) -> tuple[int, ...]:
    """The lengths, with 0 for some sequences."""
    left = list(lengths)
    for each in sequences:
        left[each] = 0
    return tuple(left)


def of_row(name: str, row: Row) -> PackedCase:
    """The case of a row of a block."""
    block = BLOCKS[name]
    page, _, option = row.option.partition("-") if block.operator == "paged" else ("", "", row.option)
    options = (PAGED if page else PACKED)[option]
    queries, keys = lengths(row.sq, row.b), lengths(row.sk, row.b)
    if options.empty is not None:
        square = block.factors.allows is not None
        keys = _without(keys, options.empty, *([1] if square else []))
        queries = queries if row.sq == 1 else _without(queries, 1, *([options.empty] if square else []))
    if option == "new":
        keys = tuple(map(max, queries, keys))
    sizes = {"hq": row.hkv * row.group, "hkv": row.hkv, "d": row.width[0], "dv": row.width[1], **options.shape}
    shape = PagedShape(queries, keys, page=int(page[1:]), **sizes) if page else PackedShape(queries, keys, **sizes)
    clause = _CLAUSES[block.operator].format(options.clause)
    given = shape.options | dict(options.given) | ({"return_lse": True} if row.lse else {})
    return _MAKERS[block.operator].of(
        f"serving-{name}-{row.option}-{sizes_text(row)}",
        clause,
        f"{block.why}: {row.option}, {row.b} sequences, up to {row.sq} queries and {row.sk} keys.",
        shape,
        given | {"dtypes": (row.dtype,), "store": FITTED if shape.elements > LARGEST else CASES},
    )


@functools.cache
def designed(name: str) -> tuple[Row, ...]:
    """The rows of a block."""
    block = BLOCKS[name]
    return (*design(block.factors).rows, *block.rows)


def cases() -> Iterator[PackedCase]:
    """Every case of the tier."""
    for name in BLOCKS:
        for row in designed(name):
            yield of_row(name, row)


def serving_case(name: str) -> PackedCase:
    """The case with a name, without making its design.  Raises KeyError for a name that no row has."""
    row = row_named(name)
    if row is None:
        raise KeyError(name)
    return of_row(name.split("-")[1], row)


def asked_cases() -> Iterator[PackedCase]:
    """The cases that a run includes by default."""
    return map(serving_case, REQUESTED.read_text(encoding="utf-8").split())
