"""Fit of a case to an envelope: the smallest sizes inside it at which the case still serves its purpose.

A case's purpose is separate from its size.  Its requirements are in its ``needs`` and implied by its own sizes: an axis
of 0 or 1 stays so, fewer key heads than query heads stay fewer, D and Dv keep their order, and there are at least as
many keys.  Everything else may change: a case of 5 queries over 7 keys runs with 64 over 64 where an implementation
takes only multiples of 64.  The same envelope always gives the same sizes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.cases.data import LEVEL, Shape, normal, numbered, pointing, shifted
from attention_conformance.conformance.cases.packed import PackedShape, PagedShape
from attention_conformance.conformance.cases.store import FITTED
from attention_conformance.impls.envelope import AXES, Envelope, Sizes

#: The largest magnitude of inputs and scores with which a case runs in float16, whose largest number is 65504: beyond
#: it the case is about a range that float16 does not have.
FLOAT16_RANGE = 60000.0

_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_NEED = re.compile(r"(\w+) (=|!=|<=|>=|<|>) (\w+)")
_SIGNS = {"!=": "≠", "<=": "≤", ">=": "≥"}
_AXIS = {name: axis for axis, name in AXES.items()}  # the other way round

#: Axes that are chosen together: nothing relates one group to another.
_HEADS, _LENGTHS, _WIDTHS = ("b", "hq", "hkv"), ("sq", "sk"), ("d", "dv")

C = TypeVar("C", bound=AnyCase)
Need = tuple[str, str, str]


def fit(case: C, envelope: Envelope) -> C:
    """A case at sizes inside an envelope.

    Parameters
    ----------
    case
        A case whose shape is a ``Shape`` (of sdpa, its gradients and merge) or a ``PackedShape``, whose heads, widths
        and pages are fitted; any other case is returned unchanged.
    envelope
        The calls that an implementation takes.

    Returns
    -------
    AnyCase
        The case itself where its own sizes are inside; else the case at the smallest sizes at which it serves its
        purpose; else the case with ``unfit``, which says what it needs.
    """
    apart = envelope.apart(case.keywords)
    if apart:
        return replace(case, unfit=f"not applicable: {' and '.join(sorted(apart))} together")
    if envelope.free or not isinstance(case.shape, (Shape, PackedShape)):
        return case
    if isinstance(case.shape, PackedShape):
        return _fitted(case, replace(envelope, batch_sizes=Sizes()))
    return case if case.shape in envelope else _fitted(case, envelope)


@functools.cache
def _fitted(case: C, envelope: Envelope) -> C:
    chosen: dict[str, int] = {}
    packed = isinstance(case.shape, PackedShape)  # its lengths are its purpose
    for axes, find in ((_HEADS, _heads), *(() if packed else ((_LENGTHS, _lengths),)), (_WIDTHS, _widths)):
        # A need that spans groups of axes is checked with the last of them.
        needed = [n for n in needs(case) if set(_axes(n)) & set(axes) and set(_axes(n)) <= {*axes, *chosen}]
        proposed = find(case, envelope)
        found = proposed.smallest(axes, needed, chosen)
        if found is None:
            alone = [n for n in needed if proposed.smallest(axes, [n], chosen) is None]
            return replace(case, unfit=f"not applicable: {_lacking(alone or needed, axes)}")
        chosen |= dict(zip(axes, found, strict=True))
    if packed:
        shape = replace(case.shape, **{axis: n for axis, n in chosen.items() if axis != "b"})
        if isinstance(shape, PagedShape):
            pages = _pages(case, envelope.page_sizes)
            if not pages:
                return replace(case, unfit=f"not applicable: needs pages of {shape.page}")
            shape = _paged(shape, min(pages))
        if shape == case.shape:
            return case
        longest = {name: max(case.options[name], n) for name, n in shape.options.items()}
        return replace(case, shape=shape, options={**case.options, **longest}, fitted=True, store=FITTED)
    inside = resized(case, replace(case.shape, **chosen))
    if case.after:
        earlier = case.earlier()
        inside = replace(inside, before=fit(earlier, envelope) if earlier is not None else None)
    return inside


def nearest(shape: Any, envelope: Envelope) -> Any:
    """The shape inside an envelope that is nearest to a shape whose sizes have no purpose of their own.

    Parameters
    ----------
    shape
        A ``Shape``, or a ``PackedShape``, whose lengths are kept.
    envelope
        The calls that an implementation takes.

    Returns
    -------
    Shape | PackedShape | None
        None where the envelope has no size of some axis.
    """
    case = SimpleNamespace(shape=shape)
    chosen: dict[str, int] = {}
    packed = isinstance(shape, PackedShape)
    taken = replace(envelope, batch_sizes=Sizes()) if packed else envelope
    for axes, find in ((_HEADS, _heads), *(() if packed else ((_LENGTHS, _lengths),)), (_WIDTHS, _widths)):
        own = [getattr(shape, axis) for axis in axes]
        proposed = {*find(case, taken).sizes}
        if not proposed:
            return None
        away = {sizes: sum(abs(n - at) for n, at in zip(sizes, own, strict=True)) for sizes in proposed}
        chosen |= dict(zip(axes, min(proposed, key=lambda sizes: (away[sizes], sizes)), strict=True))
    found = replace(shape, **{axis: n for axis, n in chosen.items() if not packed or axis != "b"})
    if isinstance(found, PagedShape):
        pages = envelope.page_sizes.near(found.page)
        return _paged(found, min(pages, key=lambda n: abs(n - found.page))) if pages else None
    return found


#: The clause of page sizes: its cases keep their own page size.
_OF_PAGES = "PAGED-6"


def _pages(case: AnyCase, sizes: Sizes) -> list[int]:
    """Page sizes that a case may have."""
    own = case.shape.page
    return [n for n in sizes.near(own) if n] if case.clauses[0] != _OF_PAGES else [n for n in (own,) if n in sizes]


def _paged(shape: PagedShape, page: int) -> PagedShape:
    """A shape with pages of another size: full pages stay full, and no sequence has fewer keys than before."""
    whole = -(-shape.page // page) * page  # the fewest slots in whole new pages that hold what a page held
    lengths = tuple(n // shape.page * whole + n % shape.page for n in shape.k_lengths)
    return replace(shape, page=page, k_lengths=lengths)


def resized(case: C, shape: Shape) -> C:
    """A case at other sizes, whatever it needs: its data, past and lengths are adapted to them."""
    changes: dict[str, Any] = {"shape": shape, "fitted": True, "store": FITTED}
    if case.data in (None, numbered):
        changes["data"] = _pointing(case.data is numbered)
    elif getattr(case.data, "__qualname__", "").startswith(f"{shifted.__name__}."):
        changes["data"] = _lifted(case.data)
    past = getattr(case, "past", None)
    if past is not None:
        changes["past"] = _past(past, case.shape, shape)
    return replace(case, **changes)


@functools.cache
def _pointing(values_are_numbered: bool) -> Any:
    return pointing(numbered if values_are_numbered else normal(1.0))


@functools.cache
def _lifted(data: Any) -> Any:
    """Shifted scores, with values that differ from zero even in half precision."""
    return shifted(**{**inspect.getclosurevars(data).nonlocals, "level": LEVEL})


def _past(past: int, was: Shape, s: Shape) -> int:
    """Past keys at new sizes: no past stays none, no new key stays none, as many new keys as queries stay as many."""
    new = was.sk - past
    if past == 0 or new == 0:
        return past and s.sk
    return s.sk - (s.sq if new == was.sq else new)


def needs(case: AnyCase) -> list[Need]:
    """Conditions on the sizes of a case: its ``needs``, and those that its own sizes imply."""
    s: Shape = case.shape
    stated: list[Need] = []
    for text in filter(None, re.split(r",\s*", case.needs)):
        match = _NEED.fullmatch(text)
        if match is None:
            raise ValueError(f"{case.name}: {text!r} is no need, such as 'Sq > Sk' or 'B > 1'")
        stated.append((match[1], match[2], match[3]))
    fixed = [(name, "=", str(n)) for axis, name in AXES.items() if (n := getattr(s, axis)) in _pinned(axis)]
    if s.hq != s.hkv and s.hkv:
        fixed += [("group", ">", "1"), ("Hkv", "=", "1") if s.hkv == 1 else ("Hkv", ">", "1")]
    if s.d != s.dv and s.dv:
        fixed.append(("Dv", ">" if s.dv > s.d else "<", "D"))
    if s.sk > 1:
        fixed.append(("Sk", ">=", str(s.sk)))
    if s.sq > s.sk:
        fixed.append(("Sq", ">", "Sk"))
    past = getattr(case, "past", None)
    if past and past < s.sk:  # there is room for the past before the new keys
        fixed.append(("Sk", ">", "Sq"))
    return [*stated, *fixed]


def _pinned(axis: str) -> tuple[int, ...]:
    """Sizes of an axis that are what a case is about: none of something, one query, one key, a width of one."""
    return (0,) if axis in _HEADS else (0, 1)


def _axes(need: Need) -> Iterator[str]:
    for term in (need[0], need[2]):
        if term == "group":
            yield from ("hq", "hkv")
        elif not term.isdigit():
            yield _AXIS[term]


def meets_need(need: Need, sizes: dict[str, int]) -> bool:
    """Whether the sizes of axes meet a need."""
    left, sign, right = need

    def value(term: str) -> int:
        if term == "group":
            return sizes["hq"] // max(sizes["hkv"], 1)
        return int(term) if term.isdigit() else sizes[_AXIS[term]]

    return _OPERATORS[sign](value(left), value(right))


def _lacking(needed: Sequence[Need], axes: Sequence[str]) -> str:
    if not needed:
        return "no size of " + ", ".join(AXES[axis] for axis in axes)
    return "needs " + ", ".join(f"{left} {_SIGNS.get(sign, sign)} {right}" for left, sign, right in needed)


@dataclass(frozen=True)
class _Proposed:
    """Sizes of some axes inside an envelope, and what makes one worse than another for a case."""

    sizes: Sequence[tuple[int, ...]]
    worse: Callable[..., tuple[int, ...]]

    def smallest(self, axes: Sequence[str], needed: Sequence[Need], chosen: dict[str, int]) -> tuple[int, ...] | None:
        """The least bad sizes that, with the chosen ones, meet the needs; the smallest among equals."""
        fitting = [
            p for p in self.sizes if all(meets_need(n, chosen | dict(zip(axes, p, strict=True))) for n in needed)
        ]
        return min(fitting, key=lambda p: (*self.worse(*p), math.prod(p), p), default=None)


def _heads(case: AnyCase | SimpleNamespace, envelope: Envelope) -> _Proposed:
    s: Shape = case.shape
    groups = envelope.group_sizes.near(s.hq // s.hkv if s.hkv else 1)
    proposed = {
        (b, key_heads * group, key_heads)
        for b, key_heads, group in itertools.product(
            envelope.batch_sizes.near(s.b), envelope.key_head_counts.near(s.hkv), [1, *groups]
        )
    }
    proposed |= {
        (b, heads, heads // group)
        for b, heads, group in itertools.product(
            envelope.batch_sizes.near(s.b), envelope.head_counts.near(s.hq), groups
        )
        if group and heads % group == 0
    }
    inside = [p for p in sorted(proposed) if not any(envelope.heads_outside(*p))]

    def worse(b: int, hq: int, hkv: int) -> tuple[int, ...]:
        return (b < min(s.b, 2), hkv < min(s.hkv, 2), hq // max(hkv, 1) != s.hq // max(s.hkv, 1), b < s.b, hq < s.hq)

    return _Proposed(inside, worse)


def _lengths(case: AnyCase | SimpleNamespace, envelope: Envelope) -> _Proposed:
    s: Shape = case.shape
    queries = {n for near in (s.sq, s.sk) for n in envelope.query_lengths.near(near)}
    keys = {n for near in (s.sq, s.sk) for n in envelope.key_lengths.near(near)}
    queries |= {n for n in keys if n in envelope.query_lengths}
    keys |= {n for n in queries if n in envelope.key_lengths}
    inside = [p for p in sorted(itertools.product(queries, keys)) if not any(envelope.lengths_outside(*p))]

    def worse(sq: int, sk: int) -> tuple[int, ...]:
        return (sq < s.sq, _order(sq, sk) != _order(s.sq, s.sk), sk < s.sk)

    return _Proposed(inside, worse)


def _widths(case: AnyCase | SimpleNamespace, envelope: Envelope) -> _Proposed:
    s: Shape = case.shape
    near = {
        n for sizes in (envelope.head_widths, envelope.value_widths) for each in (s.d, s.dv) for n in sizes.near(each)
    }
    inside = [p for p in sorted(itertools.product(near, near)) if not any(envelope.widths_outside(*p))]

    def worse(d: int, dv: int) -> tuple[int, ...]:
        return (_order(d, dv) != _order(s.d, s.dv), d < s.d, dv < s.dv)

    return _Proposed(inside, worse)


def _order(a: int, b: int) -> int:
    return (a > b) - (a < b)


# Dtypes.


def dtypes_for(case: AnyCase, dtypes: Sequence[str]) -> tuple[str, ...]:
    """The dtypes in which a case runs on an implementation that takes ``dtypes``.

    They are the case's own dtypes; if the implementation has none of them, the narrower one that holds the case's
    numbers: float16, or bfloat16 where they are beyond float16.  Empty where the implementation has no such dtype.
    """
    own = tuple(d for d in dtypes if d in case.dtypes)
    if own or not set(dtypes) <= {"float16", "bfloat16"}:
        return own
    if "float16" in dtypes and in_float16(case):
        return ("float16",)
    return ("bfloat16",) if "bfloat16" in dtypes and "float16" not in case.dtypes else ()


#: Keywords that make no number large in calls of fewer than 2¹⁵ keys.
_SMALL = frozenset(
    {"mask", "is_causal", "causal_offset", "window", "kv_lengths", "softcap", "return_weights", "return_lse"}
    | {"block_mask", "block_size", "tree_parents", "alibi_slopes", "head_scale"}
    | {"rotary_cos", "rotary_sin", "rotary_interleaved"}
)


@functools.cache
def in_float16(case: AnyCase) -> bool:
    """Whether the finite inputs of a case, and its scores before the softmax, are within the range of float16."""
    return is_ordinary(case) or in_range(case)


def is_ordinary(case: AnyCase) -> bool:
    """Whether a case is made of normal or numbered data and small options, so that its numbers need no check."""
    data = (None, numbered, _pointing(False), _pointing(True))
    whole = case.edit is None or case.invalid
    return (
        whole and case.operator == "sdpa" and case.shape.sk < 1 << 15 and case.data in data and case.keywords <= _SMALL
    )


def in_range(case: AnyCase) -> bool:
    """Whether a case's numbers are within the range of float16, computed from the numbers themselves."""
    inputs = case.before_edit(case.dtypes[0]) if case.invalid else case.inputs(case.dtypes[0])
    arrays = [*inputs.arrays.values(), *(x for x in inputs.keywords.values() if isinstance(x, np.ndarray))]
    smallest = float(np.finfo(np.float32).min)

    def largest(array: np.ndarray) -> float:
        plain = np.abs(array.astype(np.float64))
        within = plain[np.isfinite(plain) & (plain != -smallest)]
        return float(within.max(initial=0.0))

    if max(map(largest, arrays)) > FLOAT16_RANGE:
        return False
    if not isinstance(case.shape, Shape) or "q" not in inputs.arrays:
        return True
    q, k = (np.nan_to_num(inputs.arrays[name].astype(np.float64), posinf=0, neginf=0) for name in ("q", "k"))
    longest = [float(np.sqrt((array**2).sum(-1)).max(initial=0.0)) for array in (q, k)]
    scale = inputs.keywords.get("scale")
    return longest[0] * longest[1] * (q.shape[-1] ** -0.5 if scale is None else abs(scale)) < FLOAT16_RANGE


#: Number of kernel-sized cases to keep of those that become the same call inside an envelope.
EQUAL_CALLS = 2


def fit_kernels(cases: Iterable[C], envelope: Envelope, dtypes: Sequence[str]) -> list[C]:
    """Kernel-sized cases inside an envelope, smallest first.

    They are many, and where an envelope has few sizes several become the same call: of those that are made alike, and
    so differ only in random numbers, the first ``EQUAL_CALLS`` are kept.

    Parameters
    ----------
    cases
        Cases of one tier.
    envelope, dtypes
        Envelope and dtypes of an implementation.
    """
    fitted = (fit(case, envelope) for case in cases)
    able = sorted((c for c in fitted if not c.unfit and dtypes_for(c, dtypes)), key=lambda case: case.size)
    met: Counter[tuple[Any, ...]] = Counter()
    found = []
    for case in able:
        made = case.data, case.edit, getattr(case, "past", None), frozenset(case.options.items())
        call = case.shape, made, dtypes_for(case, dtypes)
        met[call] += 1
        if met[call] <= EQUAL_CALLS:
            found.append(case)
    return found


def at(case: C, sizes: Sequence[int]) -> C:
    """A case at the sizes that a result names: B, Hq, Hkv, Sq, Sk, D, Dv; unchanged for none."""
    if not sizes:
        return case
    return fit(case, at_sizes(sizes))


def at_sizes(sizes: Sequence[int]) -> Envelope:
    """The envelope of one shape: B, Hq, Hkv, Sq, Sk, D, Dv."""
    b, hq, hkv, sq, sk, d, dv = (Sizes((n,)) for n in sizes)
    return Envelope(
        batch_sizes=b,
        head_counts=hq,
        key_head_counts=hkv,
        query_lengths=sq,
        key_lengths=sk,
        head_widths=d,
        value_widths=dv,
    )


def sizes_of(case: AnyCase) -> tuple[int, ...]:
    """The sizes of a fitted case, B, Hq, Hkv, Sq, Sk, D, Dv; () for a case at its own sizes."""
    return tuple(getattr(case.shape, axis) for axis in AXES) if case.fitted else ()
