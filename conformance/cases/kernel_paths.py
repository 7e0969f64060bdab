"""Kernel paths: the dispatch conditions of real kernels (kernel_paths.toml), read, checked, and applied to calls.

A condition has one of a few forms, and all conditions of a path must hold:

======================  ==================================================================================
``sq > 64``             a size against a number, or against another size: ``== != < <= > >=``
``sk % 128 == 0``       the remainder of a size after division
``d in 64 128``         a size that is one of some; ``d not in 64 128``
``dtype in float16``    a dtype that is one of some
``with window``         an option that the call uses; ``without window``
======================  ==================================================================================

Sizes are those of the spec and some derived from them: see SIZES.
"""

from __future__ import annotations

import functools
import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from attention_conformance.impls.contract import DTYPES

#: The data file.
FILE = Path(__file__).parents[1] / "kernel_paths.toml"

#: Sizes of a call: lengths and widths as in the spec, query heads per key head, batch times query heads, and the rows
#: of a group's heads taken together.
SIZES = ("b", "hq", "hkv", "group", "sq", "sk", "d", "dv", "bh", "packed")

#: Options of a call: a keyword that is given and not false; ``lse`` and ``weights`` are requested results.
OPTIONS = (
    "mask",
    "bias",
    "causal",
    "offset",
    "window",
    "lengths",
    "scale",
    "softcap",
    "sinks",
    "past",
    "lse",
    "weights",
)

#: Options of keywords that have another name.
_NAMES = {
    "is_causal": "causal",
    "causal_offset": "offset",
    "kv_lengths": "lengths",
    "past_key": "past",
    "past_value": "past",
    "return_lse": "lse",
    "return_weights": "weights",
}

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, some: value in some,
    "not in": lambda value, some: value not in some,
}

#: A divisor below this is an alignment of memory: most kernels refuse sizes that break it.
ALIGNMENT = 32


class PathError(ValueError):
    """A data file that cannot be used; the text names the path and what is wrong with it."""


@dataclass(frozen=True)
class Call:
    """A call, as conditions of kernel paths see it."""

    sizes: Mapping[str, int]
    dtype: str
    options: frozenset[str]

    @classmethod
    def of(
        cls, b: int, hq: int, hkv: int, sq: int, sk: int, d: int, dv: int, dtype: str, keywords: Mapping[str, Any]
    ) -> Call:
        """A call by its lengths, its dtype and its keywords as in the contract; None and False mean not given."""
        group = hq // hkv if hkv else 0
        sizes = dict(zip(SIZES, (b, hq, hkv, group, sq, sk, d, dv, b * hq, sq * group), strict=True))
        given = (name for name, value in keywords.items() if not (value is None or value is False))
        return cls(sizes, dtype, frozenset(_NAMES.get(name, name) for name in given))


@dataclass(frozen=True)
class Condition:
    """One condition: what is compared, after which division, how, and with what."""

    text: str
    left: str
    compare: str
    right: Any
    divisor: int = 0

    def holds(self, call: Call) -> bool:
        """Whether a call meets it."""
        if self.left == "option":
            return (self.right in call.options) is (self.compare == "in")
        if self.left == "dtype":
            return _COMPARE[self.compare](call.dtype, self.right)
        return self.of(call.sizes[self.left], call.sizes)

    def of(self, value: int, sizes: Mapping[str, int]) -> bool:
        """Whether a value of its size meets it, given the other sizes."""
        right = sizes[self.right] if isinstance(self.right, str) else self.right
        return _COMPARE[self.compare](value % self.divisor if self.divisor else value, right)

    @property
    def has_edge(self) -> bool:
        """Whether sizes lie on both sides of it: not dtypes, options, alignments, or two sizes compared."""
        return self.left in SIZES and not isinstance(self.right, str) and not 0 < self.divisor < ALIGNMENT


_FORMS: tuple[tuple[str, Callable[[re.Match[str]], dict[str, Any]]], ...] = (
    (
        rf"(?P<option>with|without) (?P<name>{'|'.join(OPTIONS)})",
        lambda m: {"left": "option", "compare": "in" if m["option"] == "with" else "not in", "right": m["name"]},
    ),
    (
        rf"dtype in (?P<some>(?:{'|'.join(DTYPES)})(?: (?:{'|'.join(DTYPES)}))*)",
        lambda m: {"left": "dtype", "compare": "in", "right": frozenset(m["some"].split())},
    ),
    (
        rf"(?P<left>{'|'.join(SIZES)}) (?P<how>in|not in) (?P<some>\d+(?: \d+)*)",
        lambda m: {"left": m["left"], "compare": m["how"], "right": frozenset(map(int, m["some"].split()))},
    ),
    (
        rf"(?P<left>{'|'.join(SIZES)}) % (?P<divisor>[1-9]\d*) (?P<how>==|!=) (?P<right>\d+)",
        lambda m: {"left": m["left"], "compare": m["how"], "right": int(m["right"]), "divisor": int(m["divisor"])},
    ),
    (
        rf"(?P<left>{'|'.join(SIZES)}) (?P<how>==|!=|<=?|>=?) (?P<right>\d+|{'|'.join(SIZES)})",
        lambda m: {
            "left": m["left"],
            "compare": m["how"],
            "right": int(m["right"]) if m["right"].isdigit() else m["right"],
        },
    ),
)


def condition(text: str) -> Condition:
    """The condition that a text states.  Raises PathError for a text of no known form."""
    for form, parts in _FORMS:
        found = re.fullmatch(form, text)
        if found:
            return Condition(text, **parts(found))
    raise PathError(f"{text!r} is no condition")


Text = Annotated[str, Meta(min_length=1)]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    kernel: Text
    what: Text
    repository: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+$")]
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$")]
    file: Annotated[str, Meta(pattern=r"^[\w./-]+\.\w+$")]
    when: Annotated[tuple[Text, ...], Meta(min_length=1)]
    edges: dict[str, Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]]
    rows: Annotated[int, Meta(ge=2)] | None = None
    keys: Annotated[int, Meta(ge=2)] | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: tuple[_Record, ...]


@dataclass(frozen=True)
class KernelPath:
    """A path of a real kernel: which calls take it, and where its source says so."""

    id: str
    kernel: str
    #: What the kernel does there, as a clause.
    what: str
    repository: str
    commit: str
    file: str
    when: tuple[Condition, ...]
    #: Values on both sides of its conditions and of its tiles, by size.
    edges: Mapping[str, tuple[int, ...]]
    #: Query rows and keys of a tile; None where the path has none of its own.
    rows: int | None = None
    keys: int | None = None

    @property
    def link(self) -> str:
        """The address of the source."""
        return f"https://github.com/{self.repository}/blob/{self.commit}/{self.file}"

    def taken(self, call: Call) -> bool:
        """Whether a call takes the path."""
        return all(each.holds(call) for each in self.when)


def load(file: Path) -> dict[str, KernelPath]:
    """The paths of a data file by their ids, in its order.  Raises PathError for a file that cannot be used."""
    try:
        records = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _File).path
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PathError(f"{file.name}: {error}") from error
    found: dict[str, KernelPath] = {}
    for record in records:
        if record.id in found:
            raise PathError(f"{record.id}: stands twice")
        try:
            found[record.id] = _path_of_record(record)
        except PathError as error:
            raise PathError(f"{record.id}: {error}") from error
    return found


@functools.cache
def kernel_paths() -> dict[str, KernelPath]:
    """The paths of the suite's own data file, by their ids."""
    return load(FILE)


def _path_of_record(record: _Record) -> KernelPath:
    when = tuple(map(condition, record.when))
    unknown = sorted(set(record.edges) - set(SIZES))
    if unknown:
        raise PathError(f"no size is named {', '.join(unknown)}")
    for each in when:
        if each.has_edge and {each.of(value, {}) for value in record.edges.get(each.left, ())} != {True, False}:
            raise PathError(f"edges of {each.left} lie on one side of {each.text!r}")
    for size, tile in (("sq", record.rows), ("sk", record.keys)):
        if tile and size in record.edges and all(value % tile == 0 for value in record.edges[size]):
            raise PathError(f"edges of {size} are multiples of its tile of {tile} only")
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return KernelPath(**fields | {"when": when})
