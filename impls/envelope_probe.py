"""Probe of an envelope: which sizes a function of sdpa takes that declares none and refuses the plain call.

Only ``NotImplementedError`` is a refusal; whatever else a call does is for the cases to judge.  A function that takes
the plain call of a few queries and keys is probed no further.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.envelope import Envelope, Shape, Sizes

#: Seconds after which a probe ends with what it knows; a compiler takes seconds for each new shape.
LIMIT = 30.0
LATE = f"the probe ended after {LIMIT:.0f} s, so that other sizes may be taken too: declare the envelope"

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

#: Widths that are tried with other heads.
USUAL = 3

#: Sizes of each axis that are tried from there.
_WIDTHS = (1, 4, 8, 16, 20, 32, 40, 48, 64, 72, 80, 96, 100, 128, 160, 192, 256, 512)
_LENGTHS = (1, 2, 5, 7, 16, 17, 32, 48, 64, 65, 96, 128, 192, 256, 320, 384, 512)
_BATCHES = (1, 2, 3, 4)
_HEADS = (1, 2, 3, 4, 8)
_GROUPS = (1, 2, 3, 4, 8)
#: So few sizes that were taken, and none larger, are a list and no rule.
FEW = 4
_MULTIPLES = (128, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Probed:
    """What a probe found: the envelope, and the dtypes in which the plain call is taken; none if nothing is."""

    envelope: Envelope = field(default_factory=Envelope)
    dtypes: tuple[str, ...] = ()


class _Asking:
    """Asks an implementation, and keeps why it refused."""

    def __init__(self, implementation: Implementation, device: str) -> None:
        self._implementation = implementation
        self._device = device
        self._until = time.monotonic() + LIMIT
        self._refusals: dict[str, str] = {}

    def refused(self) -> tuple[str, ...]:
        """A line for each text of a refusal, with the first call that was refused so."""
        return tuple(self._refusals.values())

    def takes(self, s: Shape, dtype: str) -> bool:
        """Whether the plain call of these sizes is not refused.  What is not asked for want of time counts as refused.

        That is said among the refusals, as a faster machine may find more.
        """
        if time.monotonic() > self._until:
            self._refusals.setdefault(LATE, LATE)
            return False
        rng = np.random.default_rng(0)
        target = np.dtype(getattr(ml_dtypes, dtype, dtype))
        shapes = ((s.b, s.hq, s.sq, s.d), (s.b, s.hkv, s.sk, s.d), (s.b, s.hkv, s.sk, s.dv))
        q, k, v = (rng.standard_normal(shape).astype(target) for shape in shapes)
        reply = call(self._implementation, Request.qkv(self._device, q, k, v))
        if reply.status != "unsupported":
            return True
        self._refusals.setdefault(reply.text, f"{reply.text} (q {q.shape}, k {k.shape}, v {v.shape}, {dtype})")
        return False


def probe(implementation: Implementation, device: str) -> Probed:
    """Find the envelope of an implementation of sdpa, in the process that runs it.

    Parameters
    ----------
    implementation
        One that declares no envelope.
    device
        Where it is asked.

    Returns
    -------
    Probed
        An envelope without limits where the plain call is taken; ``dtypes`` is empty where nothing was taken.
    """
    asking = _Asking(implementation, device)
    taken = tuple(d for d in implementation.dtypes if asking.takes(Shape(), d))
    if taken:
        return Probed(Envelope(source="probed").with_refusals(asking.refused()), taken)
    asked = ((s, d) for s in _first() for d in implementation.dtypes)
    anchor, first = next(((s, d) for s, d in asked if asking.takes(s, d)), (None, ""))
    if anchor is None:
        return Probed(Envelope().with_refusals(asking.refused()))
    dtypes = tuple(d for d in implementation.dtypes if d == first or asking.takes(anchor, d))
    envelope = _around(anchor, lambda s: asking.takes(s, first))
    return Probed(envelope.with_refusals(asking.refused()), dtypes)


def _first() -> Iterator[Shape]:
    for sq, sk in _FIRST_LENGTHS:
        for d in _FIRST_WIDTHS:
            yield Shape(2, 2, 2, sq, sk, d, d)
    for b, hq, hkv in _OTHER_HEADS:
        for sq, sk in _FIRST_LENGTHS:
            for d in _FIRST_WIDTHS[:USUAL]:
                yield Shape(b, hq, hkv, sq, sk, d, d)


def _around(anchor: Shape, takes: Callable[[Shape], bool]) -> Envelope:
    """The envelope around sizes that are taken: each axis by itself, then how lengths, widths and heads relate."""

    def sizes(tried: Sequence[int], of: Callable[[int], Shape], known: int) -> Sizes:
        return classified(tried, [n for n in tried if n == known or takes(of(n))])

    widths = sizes(_WIDTHS, lambda n: replace(anchor, d=n, dv=n), anchor.d)
    others = [n for n in _WIDTHS if n != anchor.d and n in widths]
    equal = not any(takes(replace(anchor, dv=n)) for n in (*others, anchor.d // 2)[:3] if n)
    values = widths if equal else sizes(_WIDTHS, lambda n: replace(anchor, dv=n), anchor.dv)
    batches = sizes(_BATCHES, lambda n: replace(anchor, b=n), anchor.b)
    group = anchor.hq // anchor.hkv
    key_heads = sizes(_HEADS, lambda n: replace(anchor, hq=n * group, hkv=n), anchor.hkv)
    one_group = classified(_GROUPS, [g for g in _GROUPS if g == group or takes(replace(anchor, hq=anchor.hkv * g))])
    heads = Sizes((anchor.hq,)) if key_heads.values == (anchor.hkv,) and one_group.values == (group,) else Sizes()
    queries, keys, relation = _lengths(anchor, takes)
    return Envelope(
        batch_sizes=batches,
        head_counts=heads,
        key_head_counts=key_heads,
        group_sizes=one_group,
        head_widths=widths,
        value_widths=values,
        equal_widths=equal,
        source="probed",
        query_lengths=queries,
        key_lengths=keys,
        length_relation=relation,
    )


def _lengths(anchor: Shape, takes: Callable[[Shape], bool]) -> tuple[Sizes, Sizes, str]:
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
    """The simplest sizes of which exactly those that were taken are, of all that were tried.

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
