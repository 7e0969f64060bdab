"""Random problems of the forms that serve: packed sequences, paged and quantised caches, and partial results.

One way of drawing them for property tests, which shrink what they choose, and for searches, which draw from numpy's
random numbers: a choice is one of a short list whose first element is the plainest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, AnyCase
from attention_conformance.conformance.cases.merge import Data, MergeCase, Parts, sizes, states
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape, PagedCase, PagedShape
from attention_conformance.conformance.cases.paged import scales, stored_as
from attention_conformance.conformance.cases.store import RANDOM
from attention_conformance.conformance.cases.varlen_gradient import PackedGradientCase
from attention_conformance.impls.operators import OPERATORS

Choose = Callable[[Sequence[Any]], Any]

#: What there is a random problem of, and the operator that it is asked of.
FORMS = {"varlen": "varlen", "varlen_grad": "varlen_grad", "paged": "paged", "quantised": "paged", "merge": "merge"}

_CASES: dict[str, type[AnyCase]] = {
    "varlen": PackedCase,
    "varlen_grad": PackedGradientCase,
    "paged": PagedCase,
    "merge": MergeCase,
}

#: Sequences, the lengths of each, heads per key head, key heads, widths.
COUNTS, LENGTHS = (1, 2, 3, 5), (1, 2, 3, 5, 8, 17, 0, 33)
GROUPS, HEADS, WIDTHS = (1, 2, 3), (1, 2), (8, 1, 4, 16)
#: Page sizes, and formats of caches with what there is a scale for.
PAGES, FORMATS = (4, 1, 16, 17, 64), ("int8", "float8_e4m3fn", "float8_e5m2")
PER = ("tensor", "head", "token", "channel", "page", "token_head")

#: The shapes of targets that pay for every new one.
PALETTE = (PackedShape((2, 3), (2, 3)), PackedShape((3, 1, 4), (9, 0, 6), hq=4))


@dataclass(frozen=True)
class ServingProblem:
    """Sizes, data and options of one input; its name seeds its numbers.

    Options are pairs of a keyword and its value: True of sinks and of new keys and values, which are drawn, and a tuple
    of offsets.  ``stored`` and ``per`` are the format of caches and what there is a scale for.
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
        if self.operator == "merge":
            return _parts(self.spread, self.offset, self.empty)
        return None if self.spread == 1.0 else _spread(_CASES[self.operator], self.spread)

    def source(self, clauses: str = "", why: str = "Found by a property test.") -> str:
        """The line that makes the same case in a file of conformance/cases."""
        return f"yield {self!r}.case({clauses!r}, {why!r})"


def drawn(
    choose: Choose,
    form: str,
    keywords: Collection[str] = (),
    needs: Collection[str] = (),
    palette: PackedShape | None = None,
) -> ServingProblem:
    """A problem of a form.

    Parameters
    ----------
    choose
        Takes one of several values, the first of which is the plainest.
    form
        In FORMS.
    keywords
        Those that may be given; by default all.
    needs
        Those that are given in any case.
    palette
        The shape of a pack, where it is not drawn.

    Returns
    -------
    ServingProblem
        Named after all that is drawn.
    """
    operator = FORMS[form]
    if operator == "merge":
        problem = _merge(choose)
    else:
        problem = _packed(choose, form, frozenset(keywords), frozenset(needs), palette)
    return replace(problem, name=f"fuzz-{zlib.crc32(repr((problem, choose(range(1000)))).encode()):08x}")


def of_rng(rng: np.random.Generator) -> Choose:
    """A choice by random numbers."""
    return lambda values: values[int(rng.integers(len(values)))]


def _merge(choose: Choose) -> ServingProblem:
    shape = sizes(choose((1, 2)), choose((1, 2, 3)), choose((1, 2, 5)), choose((8, 1, 6)), choose((2, 1, 3, 5, 8, 17)))
    spread, offset = choose((2.0, 0.1, 40.0)), choose((0.0, 5.0, -300.0, 2000.0))
    return ServingProblem("", "merge", shape, (), spread, offset, choose((0.0, 0.3, 0.9)))


def _packed(
    choose: Choose, form: str, keywords: frozenset[str], needs: frozenset[str], palette: PackedShape | None
) -> ServingProblem:
    operator = FORMS[form]
    known = frozenset(OPERATORS[operator].keywords)
    known = known & keywords if keywords else known

    def given(name: str) -> bool:
        return name in needs or (name in known and choose((False, False, True)))

    new = operator == "paged" and {"k_new", "v_new"} <= known and given("k_new")
    count, same = choose(COUNTS), choose((False, True))
    queries = tuple(choose((1,) if operator == "paged" and same else LENGTHS) for _ in range(count))
    keys = tuple(choose(LENGTHS) for _ in range(count)) if operator == "paged" or not same else queries
    if new:  # the queries' tokens are the last ones
        keys = tuple(map(max, queries, keys))
    heads, width = choose(HEADS), choose(WIDTHS)
    packed = PackedShape(queries, keys, heads * choose(GROUPS), heads, width, choose((width, *WIDTHS)))
    shape = _over_pages(choose, packed) if operator == "paged" else replace(packed, behind=choose((0, 3)))
    shape = palette or shape
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
    options |= dict.fromkeys(("k_new", "v_new"), True) if new else {}
    found = ServingProblem("", operator, shape, tuple(options.items()), choose((1.0, 0.1, 3.0)))
    return replace(found, stored=choose(FORMATS), per=choose(PER)) if form == "quantised" else found


def _over_pages(choose: Choose, packed: PackedShape) -> PagedShape:
    page = choose(PAGES)
    shared = min(choose((0, 1, 2)), -(-packed.k_lengths[0] // page))
    fields = {name: getattr(packed, name) for name in ("q_lengths", "k_lengths", "hq", "hkv", "d", "dv")}
    return PagedShape(**fields, page=page, shared=shared, unused=choose((1, 5)), padding=choose((None, -1, 2**31 - 1)))


def _parts(spread: float, offset: float, empty: float) -> Data:
    """Normal outputs and log-sum-exps, and a share of the rows of parts without a key."""

    def make(rng: np.random.Generator, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states(spread, offset)(rng, s)
        none = rng.random(lses.shape) < empty
        return np.where(none[..., None], 0.0, outputs), np.where(none, -np.inf, lses)

    return make


def _spread(make: type[AnyCase], spread: float) -> Callable[..., tuple[np.ndarray, ...]]:
    """The data of an operator's cases with scores that are so many times as large."""

    def data(rng: np.random.Generator, s: Any) -> tuple[np.ndarray, ...]:
        plain = PagedCase if make is PagedCase else PackedCase
        q, k, v = plain("", (), "", s).draw(rng)
        return spread * q, k, v

    return data


#: How options that are arrays are made.
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "sinks": lambda _: lambda rng, s, dtype: (3 + 2 * rng.standard_normal(s.hq)).astype(dtype),
    "causal_offset": lambda value: value if isinstance(value, int) else lambda *_: np.array(value, np.int64),
    "k_new": lambda _: lambda rng, s, dtype: rng.standard_normal((sum(s.q_lengths), s.hkv, s.d)).astype(dtype),
    "v_new": lambda _: lambda rng, s, dtype: rng.standard_normal((sum(s.q_lengths), s.hkv, s.dv)).astype(dtype),
}
