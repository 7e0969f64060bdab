"""Envelopes of kernels that ship, by name, and random shapes inside them.

The suite's results "per envelope" are for these: which faults show there, which are caught, and how well they are named
(faults/envelopes.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase
from attention_conformance.conformance.cases.data import Rng, Shape
from attention_conformance.conformance.cases.fit import at_sizes
from attention_conformance.conformance.cases.packed import PackedShape
from attention_conformance.impls.envelope import Envelope, Sizes

_WIDTHS = Sizes((64, 96, 128, 256))
_TILES = Sizes(multiple=128, least=128)


def static(b: int, heads: int, sq: int, sk: int) -> Envelope:
    """One shape of width 64, as in a model."""
    return at_sizes((b, heads, heads, sq, sk, 64, 64))


@dataclass(frozen=True)
class Kind:
    """A kind of kernel: the calls that it takes, in which dtypes, and whether it has a past and gradients.

    Where there are as many queries as keys there is no room for a past.
    """

    envelope: Envelope
    dtypes: tuple[str, ...]
    past: bool = True
    gradients: bool = True
    #: The operators of a serving kernel, instead of attention and its gradients.
    serves: tuple[str, ...] = ()
    #: Keywords of those operators that it lacks.
    without: frozenset[str] = frozenset()
    #: Restriction on its calls other than sizes, in words: a key of ``CALLS``.
    calls: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that it computes, among those that have lengths and widths."""
        return self.serves or (("sdpa", "sdpa_grad") if self.gradients else ("sdpa",))

    @property
    def lacking(self) -> frozenset[str]:
        """Keywords that it lacks."""
        return self.without if self.past else self.without | {"past_key", "past_value"}

    @property
    def line(self) -> str:
        """The envelope in one line."""
        lacking = (*sorted(self.without), *(() if self.past else ("past",)))
        return self.envelope.line(self.dtypes, lacking) + (f"; {self.calls}" if self.calls else "")

    def takes(self, case: AnyCase) -> bool:
        """Whether it takes the calls of a case of one of its operators whose sizes are inside the envelope."""
        return not case.keywords & self.lacking and (not self.calls or CALLS[self.calls](case))


def _lengths(case: AnyCase) -> tuple[int, ...]:
    """The lengths of the sequences of a pack."""
    return (*case.shape.q_lengths, *case.shape.k_lengths) if isinstance(case.shape, PackedShape) else ()


def _positions(case: AnyCase) -> bool:
    return isinstance(case.shape, PackedShape) and not case.options.get("is_causal")


#: Restrictions of serving kernels on calls, in words; merge, whose calls have no lengths, is not restricted.
CALLS: dict[str, Callable[[AnyCase], bool]] = {
    "no sequence without queries or keys": lambda case: 0 not in _lengths(case),
    "causal": lambda case: not _positions(case),
    "causal, one query of each sequence": lambda case: not _positions(case) and set(case.shape.q_lengths) == {1},
    "as many queries as keys in each sequence": lambda case: case.shape.q_lengths == case.shape.k_lengths,
}


#: Kinds of kernels, by name.
ENVELOPES: dict[str, Kind] = {
    "anything": Kind(Envelope(), ALL_DTYPES),
    "half-precision flash": Kind(Envelope(head_widths=_WIDTHS, value_widths=_WIDTHS, equal_widths=True), HALVES),
    "width 128": Kind(Envelope(head_widths=Sizes((128,)), value_widths=Sizes((128,))), HALVES),
    "static": Kind(static(1, 8, 128, 128), ("float32",), past=False, gradients=False),
    "static decoding": Kind(static(2, 8, 1, 256), ("float32",), gradients=False),
    "tiles of 128": Kind(
        Envelope(query_lengths=_TILES, key_lengths=_TILES, head_widths=Sizes((128,)), value_widths=Sizes((128,))),
        ("float32", "bfloat16"),
    ),
    "Sq = Sk": Kind(Envelope(length_relation="Sq = Sk"), ("float32",), past=False),
    "one query": Kind(Envelope(query_lengths=Sizes((1,))), ("float32",), gradients=False),
}

_SERVED = Sizes((64, 128))
_SERVING = ("varlen", "varlen_grad", "paged", "merge")


def _serving(*operators: str, **rest: Any) -> Kind:
    """A serving kernel in half precision with heads of 64 or 128; ``page_sizes`` and ``group_sizes`` are ``Sizes``."""
    sizes = {name: rest.pop(name) for name in ("page_sizes", "group_sizes") if name in rest}
    envelope = Envelope(head_widths=_SERVED, value_widths=_SERVED, equal_widths=True, **sizes)
    return Kind(envelope, HALVES, serves=operators, **rest)


#: Kinds of serving kernels, by name: engines' page sizes, and the calls and keywords that they lack.
SERVING: dict[str, Kind] = {
    "serving": Kind(Envelope(), ALL_DTYPES, serves=_SERVING),
    "serving in half precision": _serving(*_SERVING),
    "pages of 16": _serving("paged", page_sizes=Sizes((16,))),
    "pages of 64": _serving("paged", page_sizes=Sizes((64,))),
    "pages of 128": _serving("paged", page_sizes=Sizes((128,))),
    "causal packs": _serving("varlen", "varlen_grad", "paged", calls="causal"),
    "no empty sequence": _serving("varlen", "varlen_grad", "paged", calls="no sequence without queries or keys"),
    "packed training": _serving("varlen", "varlen_grad", calls="as many queries as keys in each sequence"),
    "paged decoding": _serving(
        "paged", page_sizes=Sizes((16, 64)), calls="causal, one query of each sequence", without=frozenset({"sinks"})
    ),
    "grouped heads": _serving("varlen", "varlen_grad", "paged", group_sizes=Sizes((4, 8))),
}

#: Every kind.
KINDS = ENVELOPES | SERVING


@dataclass(frozen=True)
class Proposed:
    """Sizes that a random shape is drawn from, as far as an envelope takes them."""

    b: tuple[int, ...] = (1, 2, 3)
    hkv: tuple[int, ...] = (1, 2, 3, 4)
    group: tuple[int, ...] = (1, 1, 2, 3, 4, 8)
    #: Small ones, and those on both sides of tiles.
    lengths: tuple[int, ...] = (
        *(1, 2, 3, 5, 7, 9, 16, 17, 33, 63, 64, 65, 100, 127, 128, 129, 160, 193, 255, 256, 257, 384, 385, 512, 513),
        *(640, 1024, 1025),
    )
    widths: tuple[int, ...] = (1, 3, 4, 8, 12, 16, 20, 32, 40, 64, 80, 96, 128, 192, 256)

    def with_edges(self, edges: Mapping[str, Sequence[int]]) -> Proposed:
        """The same with the edges of a kernel's path, by size (cases/kernel_paths.py), as likely as all the others."""

        def joined(own: tuple[int, ...], *names: str) -> tuple[int, ...]:
            given = tuple(n for name in names for n in edges.get(name, ()) if n > 0)
            return own + given * -(-len(own) // max(len(given), 1)) if given else own

        return Proposed(
            joined(self.b, "b"),
            joined(self.hkv, "hkv"),
            joined(self.group, "group"),
            joined(self.lengths, "sq", "sk", "packed"),
            joined(self.widths, "d", "dv"),
        )

    def inside(self, envelope: Envelope) -> dict[str, tuple[int, ...]]:
        """The sizes among these that an envelope takes, by axis: a random shape is drawn from them."""
        axes = {
            "b": (envelope.batch_sizes, self.b),
            "hkv": (envelope.key_head_counts, self.hkv),
            "group": (envelope.group_sizes, self.group),
            "sq": (envelope.query_lengths, self.lengths),
            "sk": (envelope.key_lengths, self.lengths),
            "d": (envelope.head_widths, self.widths),
            "dv": (envelope.value_widths, self.widths),
        }
        return {
            axis: sizes.values or tuple([n for n in some if n in sizes] or sizes.near(max(some)))
            for axis, (sizes, some) in axes.items()
        }


#: Draws of a shape before the cheapest so far is taken, and to find the cost of an envelope's cheapest.
_TRIES = 100

#: Where no shape of an envelope is as cheap as requested, one may cost this many times the cheapest.
_MARGIN = 4

#: Share of random shapes with as many queries as keys, and with values as wide as keys, where the envelope requires
#: neither.
_SQUARE, _SAME_WIDTH = 0.2, 0.6


def random_shape(rng: Rng, envelope: Envelope, most: int, proposed: Proposed | None = None) -> Shape:
    """A shape inside an envelope.

    Parameters
    ----------
    rng
        Generator of random numbers.
    envelope
        Envelope that it is inside.
    most
        Largest B · Hq · Sq · Sk · (D + Dv), if the envelope has such shapes; else a few times the envelope's least.
    proposed
        The sizes that it is drawn from.

    Returns
    -------
    Shape
        The first drawn shape that costs no more, or else the cheapest of many.

    Raises
    ------
    ValueError
        If no proposed size is inside.
    """
    sizes = proposed or Proposed()
    return _cheap(rng, envelope, max(most, _MARGIN * _least(envelope, sizes)), sizes)


@functools.cache
def _least(envelope: Envelope, sizes: Proposed) -> int:
    """About what the cheapest shape inside an envelope costs."""
    return _cost(_cheap(np.random.default_rng(1), envelope, 0, sizes))


def _cheap(rng: Rng, envelope: Envelope, most: int, sizes: Proposed) -> Shape:
    found, inside = None, sizes.inside(envelope)
    for _ in range(_TRIES):
        shape = _draw_shape(rng, envelope, inside)
        if shape not in envelope:
            continue
        if _cost(shape) <= most:
            return shape
        found = shape if found is None or _cost(shape) < _cost(found) else found
    if found is None:
        raise ValueError("no shape inside the envelope is made of the sizes that are proposed")
    return found


def _cost(s: Shape) -> int:
    return s.b * s.hq * s.sq * s.sk * (s.d + s.dv)


def _draw_shape(rng: Rng, envelope: Envelope, inside: Mapping[str, tuple[int, ...]]) -> Shape:
    def one(axis: str) -> int:
        return inside[axis][rng.integers(len(inside[axis]))]

    b, hkv = one("b"), one("hkv")
    hq = hkv * one("group")
    sq, sk = one("sq"), one("sk")
    if envelope.length_relation == "Sq = Sk" or rng.random() < _SQUARE:
        sq = sk
    d, dv = one("d"), one("dv")
    if envelope.equal_widths or rng.random() < _SAME_WIDTH:
        dv = d
    return Shape(b, hq, hkv, sq, sk, d, dv)
