"""The index of a folder of vectors: the vectors, their files with hashes, and the selection by options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from attention_conformance.conformance import SPEC_VERSION
from attention_conformance.conformance.vectors import FORMAT
from attention_conformance.conformance.vectors.files import (
    NothingSelected,
    Repeated,
    WrongSpec,
    decode,
    inside,
    parse,
    read,
    text_of,
    typed,
)
from attention_conformance.conformance.vectors.vector import Vector, about_of, checked
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.strict import WrongFields, WrongFormat

NAME = "index.json"

#: Operator, case and dtype, which identify a vector.
Key = tuple[str, str, str]


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the folder: its name relative to the folder, with ``/``, and the SHA-256 of its bytes."""

    file: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One vector of the index."""

    operator: str
    case: str
    dtype: str
    about: File
    tensors: File

    @property
    def key(self) -> Key:
        """Key of the entry."""
        return self.operator, self.case, self.dtype


class Generator(Struct, frozen=True, forbid_unknown_fields=True):
    """Generator of the vectors."""

    name: str
    version: str


class Index(Struct, frozen=True, forbid_unknown_fields=True):
    """The index: the generator of the vectors, and all of them in order."""

    format: int
    spec: str
    generator: Generator
    vectors: tuple[Entry, ...]


def write_index(folder: Path, generator: Generator, entries: tuple[Entry, ...]) -> None:
    """Write the index of vectors to their folder."""
    (folder / NAME).write_bytes(text_of(Index(FORMAT, SPEC_VERSION, generator, entries)))


def read_index(folder: Path) -> Index:
    """The index of a folder.  Raises VectorError for an index of another version, or with unsafe names."""
    value = parse(read(folder, NAME), NAME)
    for key, wanted, error in (("format", FORMAT, WrongFormat), ("spec", SPEC_VERSION, WrongSpec)):
        if isinstance(value, dict) and value.get(key, wanted) != wanted:
            raise error(f"{NAME} is of {key} {value[key]!r:.40}, this suite reads {wanted!r}")
    index = typed(value, Index, NAME)
    seen: set[Any] = set()
    for entry in index.vectors:
        for each in (entry.key, entry.about.file, entry.tensors.file):
            if each in seen:
                raise Repeated(f"{NAME} has {each if isinstance(each, str) else ' '.join(each)} twice")
            seen.add(each)
        for name in (entry.about.file, entry.tensors.file):
            inside(folder, name)
    return index


def read_vector(folder: Path, entry: Entry) -> Vector:
    """The vector of an entry.  Raises VectorError if a file was changed or is not what the entry says."""
    about = about_of(parse(read(folder, entry.about.file, entry.about.sha256), entry.about.file), entry.about.file)
    if (about.operator, about.case, about.dtype) != entry.key:
        raise WrongFields(f"{entry.about.file} is not of {' '.join(entry.key)}, as the index says")
    name = entry.tensors.file
    return checked(about, decode(read(folder, name, entry.tensors.sha256), name), name)


@dataclass(frozen=True)
class Chosen:
    """Vectors that the options select: globs over operators, cases and dtypes; no glob of a kind means all."""

    operators: Sequence[str] = ()
    cases: Sequence[str] = ()
    dtypes: Sequence[str] = ()

    def of(self, keys: Iterable[Key]) -> list[Key]:
        """The selected vectors, in their order.  Raises NothingSelected for an option that names none."""
        keys = list(keys)
        options = (("--operator", self.operators), ("--case", self.cases), ("--dtype", self.dtypes))
        for at, (option, patterns) in enumerate(options):
            known = {key[at] for key in keys}
            for pattern in patterns:
                if not any(fnmatch(name, pattern) for name in known):
                    raise NothingSelected(f"{option} {pattern}: there is none{nearest(pattern, known)}")
        found = [key for key in keys if all(_named(n, p) for n, (_, p) in zip(key, options, strict=True))]
        if not found:
            raise NothingSelected("no vector matches --operator, --case and --dtype together")
        return found


def _named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)
