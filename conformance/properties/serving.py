"""Random problems of the serving forms: packed sequences, caches, partial results, block masks, trees and latents.

Property tests, which shrink what they choose, and searches, which use numpy's random numbers, share one way of drawing
them: a choice is one of a short list whose first element is the plainest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import data as sdpa_data
from attention_conformance.conformance.cases import latent as latent_cases
from attention_conformance.conformance.cases.base import ALL_DTYPES, AnyCase, Case
from attention_conformance.conformance.cases.data import Maker, Rng, Shape, lengths, random_bias, random_mask, stated
from attention_conformance.conformance.cases.latent import LatentCase, LatentShape
from attention_conformance.conformance.cases.merge import Data, MergeCase, Parts, sizes, states
from attention_conformance.conformance.cases.merge_gradient import MergeGradientCase, of_lse
from attention_conformance.conformance.cases.packed import (
    PackedCase,
    PackedShape,
    PagedCase,
    PagedShape,
    new_rows,
    sinks,
)
from attention_conformance.conformance.cases.paged import scales, stored_as
from attention_conformance.conformance.cases.store import RANDOM
from attention_conformance.conformance.cases.varlen_gradient import PackedGradientCase
from attention_conformance.impls.operators import OPERATORS

Choose = Callable[[Sequence[Any]], Any]

#: Forms that have random problems, and the operator that each tests.
FORMS = {
    "varlen": "varlen",
    "varlen_grad": "varlen_grad",
    "paged": "paged",
    "quantised": "paged",
    "merge": "merge",
    "merge_grad": "merge_grad",
    "blocks": "sdpa",
    "trees": "sdpa",
    "latent": "latent",
}

_CASES: dict[str, type[AnyCase]] = {
    "varlen": PackedCase,
    "varlen_grad": PackedGradientCase,
    "paged": PagedCase,
    "merge": MergeCase,
    "merge_grad": MergeGradientCase,
    "sdpa": Case,
    "latent": LatentCase,
}

#: Sequences, the lengths of each, heads per key head, key heads, widths.
COUNTS, LENGTHS = (1, 2, 3, 5), (1, 2, 3, 5, 8, 17, 0, 33)
GROUPS, HEADS, WIDTHS = (1, 2, 3), (1, 2), (8, 1, 4, 16)
#: Page sizes, formats of caches, and what has a scale of its own.
PAGES, FORMATS = (4, 1, 16, 17, 64), ("int8", "float8_e4m3fn", "float8_e5m2")
PER = ("tensor", "head", "token", "channel", "page", "token_head")

#: Batches, rows and keys, and the rows or keys of a block; keys before a tree and behind it.
BATCHES, ROWS, SIZES, BESIDE = (1, 2), (1, 2, 3, 5, 8, 17, 33), (1, 2, 4, 3, 5, 8, 16, 64), (0, 1, 3, 8)
#: Choices for a mask or a block mask: the share of its elements that is True, and the axes of a block mask.
KEPT, AXES = (0.5, 0.9, 0.1), ("bh", "h", "b", "")
#: Trees by what each node follows.
TREES = ("drawn", "binary", "star", "chain")
#: Widths of the rotary part and of a latent: few enough for projections to be summed exactly (latent_properties.py).
ROPES, RANKS = (4, 1, 8), (12, 1, 4, 24)

#: Shapes for targets that pay for every new shape, by form.
PALETTES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("varlen", "varlen_grad"), (PackedShape((2, 3), (2, 3)), PackedShape((3, 1, 4), (9, 0, 6), hq=4))),
    "blocks": (Shape(1, 1, 1, 3, 5, 8, 8), Shape(2, 4, 2, 9, 13, 8, 8)),
    "trees": (Shape(1, 1, 1, 3, 5, 8, 8), Shape(2, 4, 2, 7, 12, 8, 8)),
    "latent": (LatentShape(1, 1, 2, 3), LatentShape()),
}
#: Sizes of blocks for such targets.
FEW_SIZES = (2, 4)


@dataclass(frozen=True)
class ServingProblem:
    """Sizes, data and options of one input; its name seeds its numbers.

    Options are pairs of a keyword and its value: True for sinks, new keys and values and grad_lse, which are drawn; a
    tuple of offsets or lengths; the share of a mask that is True; the spread of a bias; the arguments of ``blocks_of``
    and ``tree_of``.  ``stored`` is the format of caches, and ``per`` what has a scale of its own.
    """

    name: str
    operator: str
    shape: Any
    options: tuple[tuple[str, Any], ...] = ()
    spread: float = 1.0
    offset: float = 0.0
    empty: float = 0.0
    stored: str = ""
    per: str = ""

    def case(self, clauses: str = "", why: str = "A random problem.", **rest: Any) -> AnyCase:
        """The problem as a case, for every dtype."""
        make = _CASES[self.operator]
        given: dict[str, Any] = {
            name: _MAKERS[name](value) if name in _MAKERS else value for name, value in self.options
        }
        if isinstance(self.shape, PackedShape):
            given = self.shape.options | given
        if self.stored:
            given |= scales(self.per, self.stored) | {"stored": self.stored, "edit": stored_as(self.stored)}
        named = clauses or make.blame.value
        kept = {"dtypes": ALL_DTYPES, "store": RANDOM, "data": self._data()}
        return make.of(self.name, named, why, self.shape, given | kept | rest)

    def _data(self) -> Any:
        if self.operator in ("merge", "merge_grad"):
            return _parts(self.spread, self.offset, self.empty)
        if self.operator == "sdpa":
            return sdpa_data.drawn(self.spread)
        if self.operator == "latent":
            return _spread_latents(self.spread)
        return None if self.spread == 1.0 else _spread(_CASES[self.operator], self.spread)

    def source(self, clauses: str = "", why: str = "Found by a property test.") -> str:
        """The line that makes the same case in a file of conformance/cases."""
        return f"yield {self!r}.case({clauses!r}, {why!r})"


def drawn(
    choose: Choose,
    form: str,
    keywords: Collection[str] | None = None,
    needs: Collection[str] = (),
    *,
    few: bool = False,
) -> ServingProblem:
    """A problem of a form.

    Parameters
    ----------
    choose
        Chooses one of several values, the first of which is the plainest.
    form
        Name of one of FORMS.
    keywords
        Keywords that may be given; by default all.
    needs
        Keywords that are always given.
    few
        Whether every new shape costs, so that there are few of them.

    Returns
    -------
    ServingProblem
        Named after all that is drawn.
    """
    known = frozenset(OPERATORS[FORMS[form]].keywords)
    known = known if keywords is None else known & frozenset(keywords)

    def given(name: str) -> bool:
        return name in needs or (name in known and choose((False, False, True)))

    palette = choose(PALETTES[form]) if few and form in PALETTES else None
    problem = _DRAWN[FORMS[form]](_Drawing(choose, form, known, given, palette))
    return replace(problem, name=f"fuzz-{zlib.crc32(repr((problem, choose(range(1000)))).encode()):08x}")


def of_rng(rng: np.random.Generator) -> Choose:
    """A choice by random numbers."""
    return lambda values: values[int(rng.integers(len(values)))]


@dataclass(frozen=True)
class _Drawing:
    """State of drawing a problem: choices, its form, the keywords there are, whether one is given, and the shape."""

    choose: Choose
    form: str
    known: frozenset[str]
    given: Callable[[str], bool]
    palette: Any


def _merge(d: _Drawing) -> ServingProblem:
    choose = d.choose
    shape = sizes(choose((1, 2)), choose((1, 2, 3)), choose((1, 2, 5)), choose((8, 1, 6)), choose((2, 1, 3, 5, 8, 17)))
    spread, offset = choose((2.0, 0.1, 40.0)), choose((0.0, 5.0, -300.0, 2000.0))
    options = (("grad_lse", True),) if d.given("grad_lse") else ()
    return ServingProblem("", FORMS[d.form], shape, options, spread, offset, choose((0.0, 0.3, 0.9)))


def _packed(d: _Drawing) -> ServingProblem:
    choose, operator, given = d.choose, FORMS[d.form], d.given
    new = operator == "paged" and {"k_new", "v_new"} <= d.known and given("k_new")
    count, same = choose(COUNTS), choose((False, True))
    queries = tuple(choose((1,) if operator == "paged" and same else LENGTHS) for _ in range(count))
    keys = tuple(choose(LENGTHS) for _ in range(count)) if operator == "paged" or not same else queries
    if new:  # the queries' tokens are the last ones
        keys = tuple(map(max, queries, keys))
    heads, width = choose(HEADS), choose(WIDTHS)
    packed = PackedShape(queries, keys, heads * choose(GROUPS), heads, width, choose((width, *WIDTHS)))
    shape = _over_pages(choose, packed) if operator == "paged" else replace(packed, behind=choose((0, 3)))
    shape = d.palette or shape
    options: dict[str, Any] = {}
    if given("is_causal"):
        options["is_causal"] = True
    if given("window"):
        options["window"] = (choose((None, 0, 2, 20)), choose((None, 0, 1, 5)))
    if options and given("causal_offset"):
        options["causal_offset"] = choose((0, 3, -2, tuple(choose((0, 1, 4, -1, 20)) for _ in range(shape.b))))
    if given("scale"):
        options["scale"] = choose((0.3, 1.0, 0.0))
    if given("softcap"):
        options["softcap"] = choose((4.0, 30.0))
    options |= {name: True for name in ("sinks", "return_lse") if given(name)}
    if given("bias"):
        options["bias"] = choose((1.0, 5.0))
    options |= dict.fromkeys(("k_new", "v_new"), True) if new else {}
    found = ServingProblem("", operator, shape, tuple(options.items()), choose((1.0, 0.1, 3.0)))
    return replace(found, stored=choose(FORMATS), per=choose(PER)) if d.form == "quantised" else found


def _masked(d: _Drawing) -> ServingProblem:
    """A problem with a block mask or a tree, by its form."""
    choose, given = d.choose, d.given
    heads, width = choose(HEADS), choose(WIDTHS)
    shape = d.palette or Shape(
        choose(BATCHES), heads * choose(GROUPS), heads, choose(ROWS), choose(ROWS), width, choose((width, *WIDTHS))
    )
    options: dict[str, Any] = {}
    if d.form == "trees":
        shape, options = _tree(d, shape)
    if d.form == "blocks" or ({"block_mask", "block_size"} <= d.known and given("block_mask")):
        sizes = FEW_SIZES if d.palette else SIZES
        size = (choose(sizes), choose(sizes))
        options |= {"block_mask": (size, choose(AXES), choose(KEPT)), "block_size": size}
    options |= {"is_causal": True} if given("is_causal") else {}
    if d.form == "blocks":
        if given("window"):
            options["window"] = (choose((None, 0, 2, 20)), choose((None, 0, 1, 5)))
        if options.keys() & {"is_causal", "window"} and given("causal_offset"):
            options["causal_offset"] = choose((0, 3, -2, tuple(choose((0, 1, 4, -1, 20)) for _ in range(shape.b))))
    if given("kv_lengths"):
        options["kv_lengths"] = tuple(choose((shape.sk, 1, 0, shape.sk // 2)) for _ in range(shape.b))
    numbers = {"mask": KEPT, "bias": (1.0, 10.0), "scale": (0.3, 1.0, 0.0), "softcap": (4.0, 30.0)}
    options |= {name: choose(values) for name, values in numbers.items() if given(name)}
    options |= {name: True for name in ("sinks", "return_weights", "return_lse") if given(name)}
    return ServingProblem("", "sdpa", shape, tuple(options.items()), choose((1.0, 0.1, 3.0)))


def _tree(d: _Drawing, drawn_shape: Shape) -> tuple[Shape, dict[str, Any]]:
    """A tree with some keys before and behind it; without an offset it begins at the first key."""
    choose = d.choose
    before = choose(BESIDE) if "causal_offset" in d.known else 0
    shape = d.palette or replace(drawn_shape, sk=drawn_shape.sq + before + choose(BESIDE))
    before = min(before, shape.sk - shape.sq)
    options: dict[str, Any] = {"tree_parents": (choose(TREES), choose((False, True)))}
    if before:
        each = tuple(choose((before, *range(before))) for _ in range(shape.b))
        options["causal_offset"] = choose((before, each))
    return shape, options


def _latent(d: _Drawing) -> ServingProblem:
    choose, given = d.choose, d.given
    sizes = (choose(BATCHES), choose((1, 2, 3)), choose(ROWS), choose(ROWS))
    widths = (choose(WIDTHS), choose(ROPES), choose(RANKS), choose(WIDTHS))
    shape = d.palette or LatentShape(*sizes, *widths)
    options: dict[str, Any] = {}
    if given("is_causal"):
        options["is_causal"] = True
        if given("causal_offset"):
            options["causal_offset"] = choose((0, 3, -2, tuple(choose((0, 1, 4, -1, 20)) for _ in range(shape.b))))
    if given("kv_lengths"):
        options["kv_lengths"] = tuple(choose((shape.sk, 1, 0, shape.sk // 2)) for _ in range(shape.b))
    options |= {"scale": choose((0.3, 1.0, 0.0))} if given("scale") else {}
    options |= {"return_lse": True} if given("return_lse") else {}
    return ServingProblem("", "latent", shape, tuple(options.items()), choose((1.0, 0.1, 3.0)))


#: Functions that draw a problem, by operator.
_DRAWN: dict[str, Callable[[_Drawing], ServingProblem]] = {
    **dict.fromkeys(("varlen", "varlen_grad", "paged"), _packed),
    **dict.fromkeys(("merge", "merge_grad"), _merge),
    "sdpa": _masked,
    "latent": _latent,
}


def blocks_of(size: tuple[int, int], axes: str, keep: float) -> Maker:
    """A block mask with blocks of a size, each True with probability ``keep``; ``axes`` names its axes, b and h."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        leading = (s.b if "b" in axes else 1, s.hq if "h" in axes else 1) if axes else ()
        return rng.random((*leading, *(-(-n // of) for n, of in zip((s.sq, s.sk), size, strict=True)))) < keep

    return make


def tree_of(kind: str, by_batch: bool) -> Maker:
    """The parents of a tree of TREES, (Sq,), or of one for each batch, (B, Sq)."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        rows = np.arange(s.sq)
        kinds: dict[str, Any] = {"star": -1, "chain": rows - 1, "binary": (rows - 1) // 2}
        shape = (s.b, s.sq) if by_batch else (s.sq,)
        return np.array(np.broadcast_to(kinds[kind], shape)) if kind in kinds else rng.integers(-1, rows, shape)

    return make


def _spread_latents(spread: float) -> Callable[..., tuple[np.ndarray, ...]]:
    """Data of latent attention with queries ``spread`` times as large."""

    def data(rng: np.random.Generator, s: LatentShape) -> tuple[np.ndarray, ...]:
        q, q_rope, *others = latent_cases.normal(rng, s)
        return spread * q, spread * q_rope, *others

    return data


def _over_pages(choose: Choose, packed: PackedShape) -> PagedShape:
    page = choose(PAGES)
    shared = min(choose((0, 1, 2)), -(-packed.k_lengths[0] // page))
    fields = {name: getattr(packed, name) for name in ("q_lengths", "k_lengths", "hq", "hkv", "d", "dv")}
    return PagedShape(**fields, page=page, shared=shared, unused=choose((1, 5)), padding=choose((None, -1, 2**31 - 1)))


def _parts(spread: float, offset: float, empty: float) -> Data:
    """Normal outputs and log-sum-exps, where a share of the rows of parts have no key."""

    def make(rng: np.random.Generator, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states(spread, offset)(rng, s)
        none = rng.random(lses.shape) < empty
        return np.where(none[..., None], 0.0, outputs), np.where(none, -np.inf, lses)

    return make


def _spread(make: type[AnyCase], spread: float) -> Callable[..., tuple[np.ndarray, ...]]:
    """Data of an operator's cases with scores ``spread`` times as large."""

    def data(rng: np.random.Generator, s: Any) -> tuple[np.ndarray, ...]:
        plain = PagedCase if make is PagedCase else PackedCase
        q, k, v = plain("", (), "", s).draw(rng)
        return spread * q, k, v

    return data


#: Makers of the options that are arrays.
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "sinks": lambda _: sinks,
    "causal_offset": lambda value: value if isinstance(value, int) else stated(*value),
    "grad_lse": lambda _: of_lse,
    "k_new": lambda _: new_rows("d"),
    "kv_lengths": lambda value: lengths(*value),
    "mask": random_mask,
    "bias": random_bias,
    "block_mask": lambda value: blocks_of(*value),
    "tree_parents": lambda value: tree_of(*value),
    "v_new": lambda _: new_rows("dv"),
}
