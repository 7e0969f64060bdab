"""Envelope: the calls that an implementation takes, as sizes of each axis, how they relate, and options.

A function declares it by attributes (``attention.head_widths = (64, 128)``, ``attention.lengths = "multiple of 128"``),
a program in its ``--describe`` answer, a model by its static axes; for a function that declares nothing and refuses
the plain call a probe finds it.
An envelope decides which sizes are tested, never whether a result is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self


@dataclass(frozen=True)
class Shape:
    """Lengths and widths of one input, named as in the spec."""

    b: int = 2
    hq: int = 2
    hkv: int = 2
    sq: int = 5
    sk: int = 7
    d: int = 8
    dv: int = 8

    @property
    def elements(self) -> int:
        """Number of elements of q, k and v."""
        return self.b * (self.hq * self.sq * self.d + self.hkv * self.sk * (self.d + self.dv))

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """(B, Hq, Sq, Sk)."""
        return (self.b, self.hq, self.sq, self.sk)


#: Number of multiples, from a size upward, that are proposed.
_STEPS = 3

_FORMS: tuple[tuple[re.Pattern[str], Callable[..., Sizes]], ...] = (
    (re.compile(r"any"), lambda: Sizes()),
    (re.compile(r"multiples? of ([1-9]\d*)"), lambda m: Sizes(multiple=int(m), least=int(m))),
    (
        re.compile(r"multiples? of ([1-9]\d*) up to (\d+)"),
        lambda m, n: Sizes(multiple=int(m), least=int(m), most=int(n)),
    ),
    (re.compile(r"up to (\d+)"), lambda n: Sizes(least=1, most=int(n))),
    (re.compile(r"at least (\d+)"), lambda n: Sizes(least=int(n))),
    (re.compile(r"(\d+) to (\d+)"), lambda a, b: Sizes(least=int(a), most=int(b))),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of an axis: a set, or multiples between two limits.

    Read from an int, a sequence of ints, or ``any``, ``multiple of N``, ``multiple of N up to M``, ``up to N``,
    ``at least N``, ``N to M``.
    """

    values: tuple[int, ...] = ()
    multiple: int = 1
    least: int = 0
    most: int | None = None

    @classmethod
    def read(cls, value: Any) -> Sizes:
        """The sizes that a declaration means.

        Parameters
        ----------
        value
            A number, a sequence, or text.

        Returns
        -------
        Sizes
            The sizes.

        Raises
        ------
        ValueError
            For a value that is not such a declaration.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            for form, make in _FORMS:
                if match := form.fullmatch(value.strip().lower()):
                    return make(*match.groups())
        else:
            many = (value,) if isinstance(value, int) else value
            if isinstance(many, Iterable):
                values = tuple(many)
                if values and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in values):
                    return cls(values=tuple(sorted(set(values))))
        raise ValueError(
            f"{value!r} is not a size: expected an int, a sequence of ints, or 'any', 'multiple of N',"
            " 'multiple of N up to M', 'up to N', 'at least N', 'N to M'"
        )

    def __contains__(self, n: int) -> bool:
        if self.values:
            return n in self.values
        return n >= self.least and n % self.multiple == 0 and (self.most is None or n <= self.most)

    @property
    def free(self) -> bool:
        """Whether every size is in it."""
        return self == Sizes()

    def near(self, n: int) -> list[int]:
        """Sizes that are tried for a case that was made for size ``n``: a few from n upward, and the next below.

        Parameters
        ----------
        n
            A length, at least 0.

        Returns
        -------
        list[int]
            The nearest first.
        """
        if self.values:
            return list(self.values)
        first = max(n, self.least)
        up = -(-first // self.multiple) * self.multiple
        proposed = [up + i * self.multiple for i in range(_STEPS)]
        below = min(n, n if self.most is None else self.most) // self.multiple * self.multiple
        return [each for each in dict.fromkeys((*proposed, below)) if each in self]

    def __str__(self) -> str:
        if self.values:
            return f"in {', '.join(map(str, self.values))}" if len(self.values) > 1 else f"= {self.values[0]}"
        most = "" if self.most is None else f" up to {self.most}"
        if self.multiple > 1:
            return f"multiples of {self.multiple}{most}"
        if self.most is not None:
            return f"{self.least} to {self.most}" if self.least > 1 else f"up to {self.most}"
        return f"at least {self.least}" if self.least > 1 else "any"


#: Relations between the lengths of queries and keys, by their declarations.
RELATIONS = {
    "any": lambda sq, sk: True,
    "Sq = Sk": lambda sq, sk: sq == sk,
    "Sq <= Sk": lambda sq, sk: sq <= sk,
}

#: The axes in the order in which sizes are written, and their names.
AXES = {"b": "B", "hq": "Hq", "hkv": "Hkv", "sq": "Sq", "sk": "Sk", "d": "D", "dv": "Dv"}


@dataclass(frozen=True)
class Envelope:
    """Envelope: the calls that an implementation takes; each field is an attribute of the declaring function.

    For packed and paged attention only heads, widths and page sizes count: their cases are about lengths.

    Parameters
    ----------
    batch_sizes, head_counts, key_head_counts, group_sizes
        Sizes of B, Hq, Hkv, and Hq / Hkv.
    query_lengths, key_lengths
        Sizes of Sq and Sk; ``lengths`` declares both.  Sk counts past and new keys.
    length_relation
        ``any``, ``Sq = Sk``, or ``Sq <= Sk``.
    head_widths, value_widths
        Sizes of D and Dv.
    equal_widths
        Dv = D in every call.
    page_sizes
        Keys per page, in paged attention.
    not_together
        Options that no call gives together: a sequence of groups of two keywords or more.
    """

    batch_sizes: Sizes = Sizes()
    head_counts: Sizes = Sizes()
    key_head_counts: Sizes = Sizes()
    group_sizes: Sizes = Sizes()
    query_lengths: Sizes = Sizes()
    key_lengths: Sizes = Sizes()
    length_relation: str = "any"
    head_widths: Sizes = Sizes()
    value_widths: Sizes = Sizes()
    equal_widths: bool = False
    page_sizes: Sizes = Sizes()
    not_together: tuple[frozenset[str], ...] = ()
    #: Where it comes from: "declared", "static axes", "probed", or "" where nothing limits it.
    source: str = field(default="", compare=False)
    #: Refusals of a probe, a line each.
    refusals: tuple[str, ...] = field(default=(), compare=False)
    #: Differences between the declaration and a few calls, a line each.
    disagreements: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def declared(cls, attributes: Mapping[str, Any], keywords: Collection[str]) -> Self:
        """The envelope that attributes of a function declare.

        Parameters
        ----------
        attributes
            Values by name.
        keywords
            Keywords that the function accepts.

        Returns
        -------
        Self
            The envelope.

        Raises
        ------
        ValueError
            For an attribute that is not understood.
        """
        changes: dict[str, Any] = {}
        for name, value in attributes.items():
            if name == "lengths":
                changes = {"query_lengths": Sizes.read(value), "key_lengths": Sizes.read(value), **changes}
            elif name in _OF_SIZES:
                changes[name] = Sizes.read(value)
            elif name == "length_relation":
                changes[name] = _relation(value)
            elif name == "equal_widths":
                changes[name] = bool(value)
            elif name == "not_together":
                changes[name] = _not_together(value, keywords)
        return cls(**changes, source="declared") if changes else cls()

    @property
    def free(self) -> bool:
        """Whether it takes every size."""
        return self == Envelope()

    @property
    def static(self) -> bool:
        """Whether it takes one shape, as a model that was exported with fixed sizes does."""
        sizes = (
            *(self.batch_sizes, self.head_counts, self.key_head_counts, self.query_lengths, self.key_lengths),
            *(self.head_widths, self.value_widths),
        )
        return all(len(each.values) == 1 for each in sizes)

    def __contains__(self, shape: Shape) -> bool:
        return not any(self.outside(shape))

    def outside(self, shape: Shape) -> Iterator[str]:
        """Reasons why a shape is outside, such as "D = 8, which is not in 64, 128".

        Parameters
        ----------
        shape
            B, Hq, Hkv, Sq, Sk, D and Dv.

        Yields
        ------
        str
            One text each; none for a shape inside.
        """
        yield from self.heads_outside(shape.b, shape.hq, shape.hkv)
        yield from self.lengths_outside(shape.sq, shape.sk)
        yield from self.widths_outside(shape.d, shape.dv)

    def heads_outside(self, b: int, hq: int, hkv: int) -> Iterator[str]:
        """Reasons why a batch and its heads are outside.

        Parameters
        ----------
        b
            Batch.
        hq
            Query heads.
        hkv
            Key and value heads.

        Yields
        ------
        str
            One text each.
        """
        yield from _sizes_outside(
            ("B", b, self.batch_sizes), ("Hq", hq, self.head_counts), ("Hkv", hkv, self.key_head_counts)
        )
        if hkv:
            yield from _sizes_outside(("Hq / Hkv", hq // hkv, self.group_sizes))

    def lengths_outside(self, sq: int, sk: int) -> Iterator[str]:
        """Reasons why two lengths are outside.

        Parameters
        ----------
        sq
            Queries.
        sk
            Keys.

        Yields
        ------
        str
            One text each.
        """
        yield from _sizes_outside(("Sq", sq, self.query_lengths), ("Sk", sk, self.key_lengths))
        if not RELATIONS[self.length_relation](sq, sk):
            yield f"Sq = {sq} with Sk = {sk}, where {self.length_relation.replace('<=', '≤')}"

    def widths_outside(self, d: int, dv: int) -> Iterator[str]:
        """Reasons why two widths are outside.

        Parameters
        ----------
        d
            Width of q and k.
        dv
            Width of v.

        Yields
        ------
        str
            One text each.
        """
        yield from _sizes_outside(("D", d, self.head_widths), ("Dv", dv, self.value_widths))
        if self.equal_widths and d != dv:
            yield f"Dv = {dv} with D = {d}, where Dv = D"

    def apart(self, keywords: Collection[str]) -> frozenset[str]:
        """Options of a call that are not taken together; none for a call that is taken.

        Parameters
        ----------
        keywords
            Keywords of the call.

        Returns
        -------
        frozenset[str]
            Names of options.
        """
        return next((each for each in self.not_together if each <= set(keywords)), frozenset())

    def line(self, dtypes: Collection[str], lacking: Collection[str] = ()) -> str:
        """The envelope in one line: "float16, bfloat16; D = Dv in 64, 128; Sq, Sk any; groups up to 8; no sinks".

        Parameters
        ----------
        dtypes
            Dtypes that are taken.
        lacking
            Keywords that are not taken.

        Returns
        -------
        str
            One line.
        """
        parts = [", ".join(dtypes)]
        if self.equal_widths:
            parts.append(f"D = Dv {self.head_widths}")
        elif self.head_widths == self.value_widths:
            parts.append(f"D, Dv {self.head_widths}")
        else:
            parts.append(f"D {self.head_widths}, Dv {self.value_widths}")
        both = self.query_lengths == self.key_lengths
        lengths = f"Sq, Sk {self.key_lengths}" if both else f"Sq {self.query_lengths}, Sk {self.key_lengths}"
        relation = "" if self.length_relation == "any" else f", {self.length_relation.replace('<=', '≤')}"
        parts.append(lengths + relation)
        named = (
            ("B", self.batch_sizes),
            ("Hq", self.head_counts),
            ("Hkv", self.key_head_counts),
            ("groups", self.group_sizes),
            ("pages", self.page_sizes),
        )
        parts += [f"{name} {sizes}" for name, sizes in named if not sizes.free]
        parts += [f"not {' with '.join(sorted(each))}" for each in self.not_together]
        parts += [f"no {', '.join(lacking)}"] if lacking else []
        return "; ".join(parts)

    def with_refusals(self, refusals: Iterable[str]) -> Self:
        """The same envelope with the refusals of a probe.

        Parameters
        ----------
        refusals
            Texts of the implementation.

        Returns
        -------
        Self
            The envelope.
        """
        return replace(self, refusals=tuple(dict.fromkeys(refusals)))


_OF_SIZES = tuple(each.name for each in fields(Envelope) if each.type == "Sizes")

#: Attributes of a function that declare its envelope.
ATTRIBUTES = (*_OF_SIZES, "lengths", "length_relation", "equal_widths", "not_together")


def _sizes_outside(*axes: tuple[str, int, Sizes]) -> Iterator[str]:
    for name, n, sizes in axes:
        if n not in sizes:
            yield f"{name} = {n}, where {name} {sizes}"


def _relation(value: Any) -> str:
    text = re.sub(r"\s+", " ", str(value).strip()).replace("≤", "<=").replace("==", "=")
    if text not in RELATIONS:
        raise ValueError(f"length_relation {value!r} is none of {', '.join(map(repr, RELATIONS))}")
    return text


def _not_together(value: Any, keywords: Collection[str]) -> tuple[frozenset[str], ...]:
    if isinstance(value, str) or any(isinstance(each, str) for each in value):
        raise ValueError(f"not_together is {value!r}, expected tuples of names")
    groups = tuple(frozenset(each) for each in value)
    for group in groups:
        unknown = sorted(group - set(keywords))
        if unknown or len(group) < 2:
            raise ValueError(f"not_together names {unknown or sorted(group)}; each entry is two keywords or more")
    return groups
