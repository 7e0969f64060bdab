"""Probe of an envelope: which sizes and dtypes a function takes, found by a few calls before a run.

The probe looks for the envelope of a function that declares no sizes and refuses the plain call.  For a function that
declares sizes it looks for the dtypes, unless they are declared too, and calls declared sizes: the run reports where
declaration and calls differ.
Only ``NotImplementedError`` is a refusal; the cases judge whatever else a call does.  A function that takes the plain
call of a few queries and keys is probed no further.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.impls.calls import Reply, Request, call, describe
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.envelope import AXES, Envelope, Shape, Sizes
from attention_conformance.impls.interpreters import not_judged

#: Seconds after which a probe ends with what it knows; a compiler takes seconds for each new shape.
LIMIT = 30.0
LATE = f"the probe stopped after {LIMIT:.0f} s, so other sizes may be accepted too: declare the envelope"

#: Message for a function that took no call.
DECLARE = "no call of a probe was taken: declare the sizes that are, such as attention.head_widths = (64, 128)"

#: Calls that are tried until one is taken: widths, (Sq, Sk), and (B, Hq, Hkv), the usual ones first.
_FIRST_WIDTHS = (64, 128, 32, 16, 96, 256, 80, 48, 4, 1, 192, 512)
_FIRST_LENGTHS = (
    (5, 7),
    (7, 7),
    (64, 64),
    (128, 128),
    (256, 256),
    (512, 512),
    (64, 128),
    (128, 256),
    (1, 64),
    (1, 256),
)
_OTHER_HEADS = ((1, 8, 8), (1, 1, 1), (2, 8, 8), (1, 2, 2), (1, 8, 2), (1, 8, 1))

#: Lengths and page sizes of these calls for packed and paged attention, whose cases keep their lengths.
_PACKED_LENGTHS = ((5, 7), (5, 5), (1, 64))
_FIRST_PAGES = (16, 64, 128, 256, 32, 8)

#: Number of widths that are tried with other heads.
USUAL = 3

#: Sizes of each axis that are tried around the first call that is taken.
_WIDTHS = (1, 4, 8, 16, 20, 32, 40, 48, 64, 72, 80, 96, 100, 128, 160, 192, 256, 512)
_LENGTHS = (1, 2, 5, 7, 16, 17, 32, 48, 64, 65, 96, 128, 192, 256, 320, 384, 512)
_BATCHES = (1, 2, 3, 4)
_HEADS = (1, 2, 3, 4, 8)
_GROUPS = (1, 2, 3, 4, 8)
_PAGES = (1, 4, 8, 16, 17, 32, 64, 128, 256)
#: Up to this many sizes that were taken, and none larger, are a list and not a rule.
FEW = 4
_MULTIPLES = (128, 64, 32, 16, 8, 4, 2, 1)

#: Most declared sizes of an axis that are called, and most elements of such a call.
CHECKED, LARGEST = 6, 1 << 22

#: The numbers of every array, repeated: drawing new ones would take most of a probe's time.
_NUMBERS = np.random.default_rng(0).standard_normal(4099)

#: Number of sizes near another that are proposed to find a call inside a declaration.
_NEAR = 4


@dataclass(frozen=True)
class Sample(Shape):
    """Sizes of a call that is tried; for paged attention also the keys per page."""

    page: int = 4


@dataclass(frozen=True)
class Probed:
    """Findings of a probe: the envelope, and the dtypes in which the plain call is taken; none if no call is."""

    envelope: Envelope = field(default_factory=Envelope)
    dtypes: tuple[str, ...] = ()


#: Arguments and keywords of a call.
Given = tuple[dict[str, np.ndarray], dict[str, Any]]


def _dense(s: Sample, normal: Callable[..., np.ndarray]) -> Given:
    q = normal(s.b, s.hq, s.sq, s.d)
    return {"q": q, "k": normal(s.b, s.hkv, s.sk, s.d), "v": normal(s.b, s.hkv, s.sk, s.dv)}, {}


def _gradients(s: Sample, normal: Callable[..., np.ndarray]) -> Given:
    return _dense(s, normal)[0] | {"grad_output": normal(s.b, s.hq, s.sq, s.dv)}, {}


def _packed(s: Sample, normal: Callable[..., np.ndarray]) -> Given:
    arrays = {
        "q": normal(s.b * s.sq, s.hq, s.d),
        "k": normal(s.b * s.sk, s.hkv, s.d),
        "v": normal(s.b * s.sk, s.hkv, s.dv),
        "cu_seqlens_q": _ends(s.b, s.sq),
        "cu_seqlens_k": _ends(s.b, s.sk),
    }
    return arrays, {"max_seqlen_q": s.sq, "max_seqlen_k": s.sk}


def _paged(s: Sample, normal: Callable[..., np.ndarray]) -> Given:
    pages = -(-s.sk // s.page)
    arrays = {
        "q": normal(s.b * s.sq, s.hq, s.d),
        "k_cache": normal(s.b * pages, s.page, s.hkv, s.d),
        "v_cache": normal(s.b * pages, s.page, s.hkv, s.dv),
        "cu_seqlens_q": _ends(s.b, s.sq),
        "block_table": np.arange(s.b * pages, dtype=np.int32).reshape(s.b, pages),
        "kv_lengths": np.full(s.b, s.sk, np.int32),
    }
    return arrays, {"max_seqlen_q": s.sq, "max_seqlen_k": s.sk}


def _parts(s: Sample, normal: Callable[..., np.ndarray]) -> Given:
    outputs = normal(2, s.b, s.hq, s.sq, s.dv)
    return {"outputs": outputs, "lses": np.zeros(outputs.shape[:4], _wide(outputs))}, {}


def _wide(outputs: np.ndarray) -> np.dtype:
    """The dtype of the log-sum-exps of outputs."""
    return np.dtype(np.float64 if outputs.dtype == np.float64 else np.float32)


def _ends(sequences: int, length: int) -> np.ndarray:
    return (np.arange(sequences + 1) * length).astype(np.int32)


@dataclass(frozen=True)
class _Form:
    """Form in which a probe calls an operator: arrays, the lengths and pages that are tried, which axes count."""

    given: Callable[[Sample, Callable[..., np.ndarray]], Given]
    lengths: tuple[tuple[int, int], ...] = _FIRST_LENGTHS
    pages: tuple[int, ...] = (Sample.page,)
    #: Whether its cases are fitted to lengths and batch, and whether it has groups of heads.
    lengths_count: bool = True
    groups: bool = True


#: Forms of calls of the operators whose cases are fitted to an envelope.
_FORMS: dict[str, _Form] = {
    "sdpa": _Form(_dense),
    "sdpa_grad": _Form(_gradients),
    "varlen": _Form(_packed, _PACKED_LENGTHS, lengths_count=False),
    "paged": _Form(_paged, _PACKED_LENGTHS, _FIRST_PAGES, lengths_count=False),
    "merge": _Form(_parts, ((5, 7), (64, 64), (1, 2)), groups=False),
}

#: The operators whose envelopes are probed.
OPERATORS = tuple(_FORMS)


class _Asking:
    """Calls an implementation, and keeps its reasons for refusals."""

    def __init__(self, implementation: Implementation, device: str, form: _Form) -> None:
        self._implementation = implementation
        self._device = device
        self._form = form
        self._until = time.monotonic() + LIMIT
        self._refusals: dict[str, str] = {}
        self.options: dict[str, Any] = {}

    @property
    def late(self) -> bool:
        """Whether there is no time for another call."""
        return time.monotonic() > self._until

    def refused(self) -> tuple[str, ...]:
        """A line for each text of a refusal, with the first call that got it."""
        return tuple(self._refusals.values())

    def judged(self, dtype: str) -> bool:
        """Whether calls in a dtype mean anything; an interpreter may compute it wrongly."""
        return not not_judged(self._implementation, self._arrays(Sample(), dtype)[0])

    def takes(self, s: Sample, dtype: str) -> bool:
        """Whether the plain call of these sizes is not refused.  A call skipped for lack of time counts as refused.

        The refusals say so, as a faster machine may find more.
        """
        if self.late:
            self._refusals.setdefault(LATE, LATE)
            return False
        return self.reply(s, dtype).status != "unsupported"

    def reply(self, s: Sample, dtype: str) -> Reply:
        """Reply to the plain call of these sizes."""
        arrays, keywords = self._arrays(s, dtype)
        found = call(self._implementation, Request(self._device, arrays, keywords | self.options))
        if found.status == "unsupported":
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            self._refusals.setdefault(found.text, f"{found.text} ({shapes}, {dtype})")
        return found

    def _arrays(self, s: Sample, dtype: str) -> Given:
        numbers = _NUMBERS.astype(getattr(ml_dtypes, dtype, dtype))
        return self._form.given(s, lambda *shape: np.resize(numbers, shape))


def probe(implementation: Implementation, device: str, declared_dtypes: bool = False) -> Probed:
    """Find the envelope of an implementation, or call what it declares, in the process that runs it.

    Parameters
    ----------
    implementation
        Implementation of one of ``OPERATORS``.
    device
        Device that it is called on.
    declared_dtypes
        Whether its dtypes are declared, so that a refused one is a disagreement.

    Returns
    -------
    Probed
        An envelope without limits where the plain call is taken; ``dtypes`` is empty where no call was taken.
    """
    form = _FORMS[implementation.operator]
    asking = _Asking(implementation, device, form)
    if not implementation.envelope.free:
        return _checked_envelope(implementation, asking, form, declared_dtypes)
    taken = tuple(d for d in implementation.dtypes if asking.takes(Sample(), d))
    if taken:
        envelope = Envelope(source="probed").with_refusals(asking.refused())
        return Probed(_of_dtypes(envelope, implementation, Sample(), taken, asking, declared_dtypes), taken)
    anchor, first = _anchor(implementation, asking, form)
    if anchor is None:
        return Probed(replace(Envelope(), disagreements=(DECLARE,)).with_refusals(asking.refused()))
    dtypes = tuple(d for d in implementation.dtypes if d == first or asking.takes(anchor, d))
    envelope = _around(anchor, lambda s: asking.takes(s, first), form).with_refusals(asking.refused())
    return Probed(_of_dtypes(envelope, implementation, anchor, dtypes, asking, declared_dtypes), dtypes)


def _anchor(implementation: Implementation, asking: _Asking, form: _Form) -> tuple[Sample | None, str]:
    """The first call that is taken, and its dtype; a causal call where no other is taken."""
    causal: list[dict[str, Any]] = [{"is_causal": True}] if "is_causal" in describe(implementation).keywords else []
    for options in ({}, *causal):
        asking.options = options
        for s in _first(form):
            for dtype in implementation.dtypes:
                if asking.takes(s, dtype):
                    return s, dtype
    return None, ""


def _first(form: _Form) -> Iterator[Sample]:
    for (sq, sk), page in itertools.product(form.lengths, form.pages):
        for d in _FIRST_WIDTHS:
            yield Sample(2, 2, 2, sq, sk, d, d, page)
    for (b, hq, hkv), (sq, sk), page in itertools.product(_OTHER_HEADS, form.lengths, form.pages):
        if hq == hkv or form.groups:
            for d in _FIRST_WIDTHS[:USUAL]:
                yield Sample(b, hq, hkv, sq, sk, d, d, page)


# Declared envelopes.


def _checked_envelope(implementation: Implementation, asking: _Asking, form: _Form, declared_dtypes: bool) -> Probed:
    """A declared envelope with the dtypes that are taken, and with the differences between it and the calls."""
    envelope = implementation.envelope
    bases = list(dict.fromkeys(_bases(envelope, form)))
    asked = ((s, d) for s in bases for d in implementation.dtypes)
    base, dtype = next(((s, d) for s, d in asked if asking.takes(s, d)), (None, ""))
    reasons = asking.refused()
    if base is None:
        if not bases:
            return Probed(replace(envelope, disagreements=("the declared envelope contains no size",)))
        return Probed(replace(envelope, disagreements=(f"nothing that is declared is taken: {reasons[0]}",)))
    dtypes = tuple(d for d in implementation.dtypes if d == dtype or asking.takes(base, d))
    if not declared_dtypes:
        envelope = envelope.with_refusals(asking.refused())
    envelope = _of_dtypes(envelope, implementation, base, dtypes, asking, declared_dtypes)
    lines = [*envelope.disagreements, *_refused_sizes(envelope, base, dtype, asking, form)]
    if not lines and base != bases[0]:
        lines.append(f"a call inside what is declared is refused: {reasons[0]}")
    lines += _taken_besides(envelope, base, dtype, asking)
    return Probed(replace(envelope, disagreements=tuple(lines)), dtypes)


def _of_dtypes(
    envelope: Envelope, implementation: Implementation, s: Sample, taken: Sequence[str], asking: _Asking, declared: bool
) -> Envelope:
    """The envelope with a line where declared dtypes are refused."""
    refused = [d for d in implementation.dtypes if d not in taken and declared and not asking.late and asking.judged(d)]
    if not refused:
        return envelope
    told = ", ".join(f"{d} ({asking.reply(s, d).text})" for d in refused)
    line = f"declared {', '.join(implementation.dtypes)}; refused: {told}"
    return replace(envelope, disagreements=(*envelope.disagreements, line))


def _bases(envelope: Envelope, form: _Form) -> Iterator[Sample]:
    """Small calls inside a declaration: each declared width at the first lengths that it has."""
    widths = envelope.head_widths.near(Sample.d)[:CHECKED]
    pages = [
        n for n in dict.fromkeys((Sample.page, *form.pages)) if n in envelope.page_sizes
    ] or envelope.page_sizes.near(form.pages[0])[:1]
    given = [{}, *({"sq": sq, "sk": sk} for sq, sk in form.lengths)]
    for lengths, page, d in itertools.product(given, pages, widths):
        found = _sized(envelope, Sample(page=page), d=d, **lengths)
        if found is not None:
            yield found


def _sized(envelope: Envelope, near: Sample, **fixed: int) -> Sample | None:
    """A small call inside an envelope, near another and with some sizes as given; None where there is none."""

    def proposed(axis: str, sizes: Sizes) -> list[int]:
        if axis in fixed:
            return [fixed[axis]]
        n = getattr(near, axis)
        return [n] if n in sizes else sizes.near(n)[:_NEAR]

    key_heads = list(dict.fromkeys((*proposed("hkv", envelope.key_head_counts), 1)))
    groups = [fixed["group"]] if "group" in fixed else envelope.group_sizes.near(near.hq // near.hkv)[:_NEAR]
    heads = {(g * n, n) for g in groups for n in key_heads}
    heads |= {(n, n // g) for n in proposed("hq", envelope.head_counts) for g in groups if g and n % g == 0}
    of_heads = [
        (b, hq, hkv)
        for b, (hq, hkv) in itertools.product(proposed("b", envelope.batch_sizes), sorted(heads))
        if all(n == fixed.get(axis, n) for axis, n in (("hq", hq), ("hkv", hkv)))
        and not any(envelope.heads_outside(b, hq, hkv))
    ]
    queries, keys = proposed("sq", envelope.query_lengths), proposed("sk", envelope.key_lengths)
    # A length may depend on the other.
    queries, keys = ([*queries, *(() if "sq" in fixed else keys)], [*keys, *(() if "sk" in fixed else queries)])
    of_lengths = [p for p in itertools.product(queries, keys) if not any(envelope.lengths_outside(*p))]
    widths, values = proposed("d", envelope.head_widths), proposed("dv", envelope.value_widths)
    values = [*values, *(() if "dv" in fixed else widths)]
    of_widths = [p for p in itertools.product(widths, values) if not any(envelope.widths_outside(*p))]
    if not of_heads or not of_lengths or not of_widths:
        return None
    usual = (near.b, near.hq, near.hkv)
    b, hq, hkv = min(of_heads, key=lambda p: (p != usual, p[1] // p[2] != near.hq // near.hkv, math.prod(p)))
    sq, sk = min(of_lengths, key=lambda p: (p != (near.sq, near.sk), math.prod(p)))
    d, dv = min(of_widths, key=lambda p: (p[0] != p[1], sum(p)))
    return Sample(b, hq, hkv, sq, sk, d, dv, fixed.get("page", near.page))


#: Axes of a call by their declarations, as they are written.
_DECLARED = {
    "d": ("D", "head_widths"),
    "dv": ("Dv", "value_widths"),
    "sq": (AXES["sq"], "query_lengths"),
    "sk": (AXES["sk"], "key_lengths"),
    "b": (AXES["b"], "batch_sizes"),
    "hq": (AXES["hq"], "head_counts"),
    "hkv": (AXES["hkv"], "key_head_counts"),
    "group": ("Hq / Hkv", "group_sizes"),
    "page": ("page size", "page_sizes"),
}


def _refused_sizes(envelope: Envelope, base: Sample, dtype: str, asking: _Asking, form: _Form) -> Iterator[str]:
    """Sizes of each declared axis that are refused while the other axes keep sizes that were taken, and why."""
    for axis, (name, attribute) in _DECLARED.items():
        sizes: Sizes = getattr(envelope, attribute)
        if sizes.free or (axis in ("sq", "sk", "b") and not form.lengths_count):
            continue
        refused = []
        for n in _some(sizes, base.hq // base.hkv if axis == "group" else getattr(base, axis)):
            s = _sized(envelope, base, **{axis: n})
            if s is None or s == base or s.elements > LARGEST or asking.late:
                continue
            found = asking.reply(s, dtype)
            if found.status == "unsupported":
                refused.append(f"{name} = {n} ({found.text})")
        if refused:
            yield f"declared {name} {sizes}; refused: {', '.join(refused)}"


def _some(sizes: Sizes, n: int) -> list[int]:
    """A few of the declared sizes: all that are listed, else the nearest ones and the largest."""
    if sizes.values:
        return list(sizes.values[:CHECKED])
    ends = [max(sizes.least, 1), *([sizes.most // sizes.multiple * sizes.multiple] if sizes.most else [])]
    return [each for each in dict.fromkeys((*ends, *sizes.near(n)[:2])) if each in sizes]


def _taken_besides(envelope: Envelope, base: Sample, dtype: str, asking: _Asking) -> Iterator[str]:
    """A width near the declared ones that is taken although it is not declared."""
    widths = envelope.head_widths
    others = [n for n in _FIRST_WIDTHS if n not in widths]
    if widths.free or not others or asking.late:
        return
    nearest = min(others, key=lambda n: (abs(n - base.d), n))
    values = nearest if base.d == base.dv else base.dv
    if asking.reply(replace(base, d=nearest, dv=values), dtype).status == "returned":
        yield f"D = {nearest} is taken too, which head_widths does not name: declare or refuse it"


# Envelopes that are found.


def _around(anchor: Sample, takes: Callable[[Sample], bool], form: _Form) -> Envelope:
    """The envelope around a call that is taken: each axis by itself, then how lengths, widths and heads relate."""

    def sizes(tried: Sequence[int], of: Callable[[int], Sample], known: int) -> Sizes:
        return classified(tried, [n for n in tried if n == known or takes(of(n))])

    widths = sizes(_WIDTHS, lambda n: replace(anchor, d=n, dv=n), anchor.d)
    others = [n for n in _WIDTHS if n != anchor.d and n in widths]
    equal = not any(takes(replace(anchor, dv=n)) for n in (*others, anchor.d // 2)[:3] if n)
    values = widths if equal else sizes(_WIDTHS, lambda n: replace(anchor, dv=n), anchor.dv)
    batches = sizes(_BATCHES, lambda n: replace(anchor, b=n), anchor.b) if form.lengths_count else Sizes()
    pages = sizes(_PAGES, lambda n: replace(anchor, page=n), anchor.page) if len(form.pages) > 1 else Sizes()
    group = anchor.hq // anchor.hkv
    key_heads = sizes(_HEADS, lambda n: replace(anchor, hq=n * group, hkv=n), anchor.hkv)
    groups = [g for g in _GROUPS if g == group or (form.groups and takes(replace(anchor, hq=anchor.hkv * g)))]
    one_group = classified(_GROUPS, groups) if form.groups else Sizes()
    heads = Sizes((anchor.hq,)) if key_heads.values == (anchor.hkv,) and one_group.values == (group,) else Sizes()
    queries, keys, relation = _lengths(anchor, takes) if form.lengths_count else (Sizes(), Sizes(), "any")
    return Envelope(
        batch_sizes=batches,
        head_counts=heads,
        key_head_counts=key_heads,
        group_sizes=one_group,
        head_widths=widths,
        value_widths=values,
        equal_widths=equal,
        page_sizes=pages,
        source="probed",
        query_lengths=queries,
        key_lengths=keys,
        length_relation=relation,
    )


def _lengths(anchor: Sample, takes: Callable[[Sample], bool]) -> tuple[Sizes, Sizes, str]:
    """Sizes of Sq and of Sk, and how they relate."""
    keys = [n for n in _LENGTHS if n == anchor.sk or takes(replace(anchor, sk=n))]
    queries = [n for n in _LENGTHS if n == anchor.sq or takes(replace(anchor, sq=n))]
    both = [n for n in _LENGTHS if n == anchor.sq == anchor.sk or takes(replace(anchor, sq=n, sk=n))]
    if len(keys) == len(queries) == 1 < len(both):
        return classified(_LENGTHS, both), classified(_LENGTHS, both), "Sq = Sk"
    longer = [n for n in both if n > anchor.sk]
    if longer and keys[-1:] == longer[-1:] and not set(longer) & set(queries):
        return classified(_LENGTHS, both), classified(_LENGTHS, both), "Sq <= Sk"
    return classified(_LENGTHS, queries), classified(_LENGTHS, keys), "any"


def classified(tried: Sequence[int], taken: Sequence[int]) -> Sizes:
    """The simplest sizes that contain, of all sizes tried, exactly those that were taken.

    Parameters
    ----------
    tried, taken
        Sizes from small to large; ``taken`` are some of them.
    """
    if len(taken) == len(tried):
        return Sizes()
    if len(taken) > 1:
        for multiple in _MULTIPLES:
            for most in (None, taken[-1]):
                if most is not None and multiple > 1 and len(taken) <= FEW:
                    continue
                found = Sizes(multiple=multiple, least=max(multiple, 1) if multiple > 1 else taken[0], most=most)
                if [n for n in tried if n in found] == list(taken):
                    return found
    return Sizes(tuple(taken))
