"""Random problems as hypothesis strategies: everything an implementation accepts, shrinking to a small plain one.

Every choice is from a short list or a small range, so that a shrunk problem can be read, and its first element is the
plainest: length 1, no option.  Lengths go past tiles of 16, 32 and 64.  Axes of length 0 are left to the fixed cases.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from attention_conformance.conformance.cases.data import GROUPED, ONE_QUERY, SMALL, SQUARE, TALL, TILES, Shape
from attention_conformance.conformance.properties import serving
from attention_conformance.conformance.properties.problem import FULL, Axes, Problem, RandomBias, RandomMask
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.operators import SDPA

Value = TypeVar("Value")
Draw = Callable[[st.SearchStrategy[Value]], Value]

#: Shapes for targets that pay for every new shape: those of the fixed cases, after one small enough to read.
PALETTE = (Shape(1, 1, 1, 2, 2, 8, 8), ONE_QUERY, TALL, SMALL, SQUARE, GROUPED, TILES)

#: Percentage of problems that have each option.  With all ten, four are given on average.
CHANCE = 40

#: Largest number of batches, key heads, and query heads per key head; rows, keys, and widths.
BATCHES, HEADS, GROUP, ROWS, KEYS, WIDTH = 2, 3, 3, 20, 70, 24

#: Standard deviation of q and k, the offset of all scores, one key over the others, size of v (cases.data.drawn).
SPREADS, OFFSETS = (1.0, 0.1, 3.0, 10.0), (0.0, 20.0, -20.0, 300.0)
OUTLIERS, VALUES = (1.0, 8.0), (1.0, 100.0, 0.01)

#: Axes of a mask or bias for targets that pay for every new shape.
FEW_AXES: tuple[Axes, ...] = (FULL, (None, 1, 1, None), (1, 1, None, None))

#: Number of names, and so of different data, for problems alike in everything else.
NAMES = 1000


@dataclass(frozen=True)
class Space:
    """Space to draw from: the keywords that may be given, those that must be, and whether shapes are few."""

    keywords: frozenset[str] = frozenset(SDPA.keywords)
    always: frozenset[str] = frozenset()
    few: bool = False


def pays_for_shapes(implementation: Implementation) -> bool:
    """Whether a new shape costs a compilation or an export: preparing does more than bind the options."""
    return implementation.prepare != Implementation.prepare


@st.composite
def problems(draw: Draw, space: Space) -> Problem:
    """A problem, named after all that is drawn: different problems have different names and data."""
    shape = draw(_SHAPES[space.few])

    def option(name: str, choose: Callable[[], Any], absent: Any = None) -> Any:
        given = name in space.always or (name in space.keywords and draw(_PERCENT) > 100 - CHANCE)
        return choose() if given else absent

    is_causal = option("is_causal", lambda: True, False)
    window = option("window", lambda: (_side(draw, shape), _side(draw, shape)))
    problem = Problem(
        name="",
        shape=shape,
        spread=draw(_SPREADS),
        offset=draw(_OFFSETS),
        outlier=draw(_OUTLIERS),
        values=draw(_VALUES),
        mask=option("mask", lambda: RandomMask(draw(_KEEP), _axes(draw, space.few))),
        bias=option("bias", lambda: RandomBias(draw(_BIAS), _axes(draw, space.few))),
        is_causal=is_causal,
        causal_offset=option("causal_offset", lambda: _offset(draw, shape)) if is_causal or window else None,
        window=window,
        kv_lengths=option("kv_lengths", lambda: tuple(_length(draw, shape) for _ in range(shape.b))),
        scale=option("scale", lambda: draw(_SCALES)),
        softcap=option("softcap", lambda: draw(_SOFTCAPS)),
        return_weights=option("return_weights", lambda: True, False),
        return_lse=option("return_lse", lambda: True, False),
    )
    drawn = repr((problem, draw(_NAMES)))
    return replace(problem, name=f"fuzz-{zlib.crc32(drawn.encode()):08x}")


@st.composite
def serving_problems(
    draw: Draw, form: str, keywords: frozenset[str], needs: frozenset[str], few: bool
) -> ServingProblem:
    """A problem of a serving form, named in the same way; with few shapes where each one costs."""
    return serving.drawn(lambda values: draw(st.sampled_from(values)), form, keywords, needs, few=few)


def _side(draw: Draw, shape: Shape) -> int | None:
    """A side of a window: open, or from 0 to all keys."""
    return draw(st.integers(0, shape.sk)) if draw(_CLOSED) else None


def _offset(draw: Draw, shape: Shape) -> int | tuple[int, ...]:
    """An offset: 0, bottom right, any from before the first key to behind the last, or any for each batch."""
    one = st.integers(-shape.sq - 1, shape.sk + 1)
    kind = draw(_KIND_OF_OFFSET)
    if kind == "by batch":
        return tuple(draw(one) for _ in range(shape.b))
    return {"top left": 0, "bottom right": shape.sk - shape.sq}[kind] if kind != "any" else draw(one)


def _length(draw: Draw, shape: Shape) -> int:
    """A key length, of which all keys is the plainest."""
    return shape.sk - draw(st.integers(0, shape.sk))


def _axes(draw: Draw, few: bool) -> Axes:
    """Axes of a mask or bias that are full, and how many there are."""
    return draw(_FEW_AXES) if few else tuple(draw(_AXIS) for _ in range(draw(_RANK)))


def _up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


def _shape(b: int, heads: int, group: int, sq: int, sk: int, d: int, dv: int | None) -> Shape:
    return Shape(b, heads * group, heads, sq, sk, d, d if dv is None else dv)


# Strategies that depend on nothing are made once: making one takes longer than drawing from it.

#: Shapes, by whether they are few.  Every length and width is 1 or more.
_SHAPES = {
    True: st.sampled_from(PALETTE),
    False: st.builds(
        _shape,
        _up_to(BATCHES),
        _up_to(HEADS),
        _up_to(GROUP),
        _up_to(8) | _up_to(ROWS),
        _up_to(8) | _up_to(KEYS),
        st.sampled_from((1, 8, 16)) | _up_to(WIDTH),
        st.none() | _up_to(WIDTH),
    ),
}
_PERCENT = st.integers(1, 100)
_NAMES = st.integers(0, NAMES - 1)
_SPREADS, _OFFSETS, _OUTLIERS, _VALUES = map(st.sampled_from, (SPREADS, OFFSETS, OUTLIERS, VALUES))
_KEEP, _BIAS = st.sampled_from((0.5, 0.9, 0.1)), st.sampled_from((1.0, 10.0, 0.01))
_RANK, _AXIS, _FEW_AXES = (
    st.sampled_from((4, 4, 4, 4, 3, 2, 1)),
    st.sampled_from((None, None, 1)),
    st.sampled_from(FEW_AXES),
)
_CLOSED = st.booleans()
_KIND_OF_OFFSET = st.sampled_from(("top left", "bottom right", "any", "by batch"))
_SOFTCAPS = st.sampled_from((5.0, 1.0, 30.0))
#: Powers of two, which are exact, and tenths, which are not; 0 and negative ones among both.
_SCALES = st.sampled_from((1.0, 0.5, 0.0, -1.0)) | st.integers(-30, 30).map(lambda n: n / 10)
