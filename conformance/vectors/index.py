"""The index of a folder of vectors: which there are, their files with hashes, and which of them the options name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from conformance import SPEC_VERSION
from conformance.vectors import FORMAT
from conformance.vectors.documents import fields, inside, parse, read, text_of
from conformance.vectors.errors import NothingSelected, Repeated, WrongFields, WrongFormat, WrongSpec
from conformance.vectors.tensors import decode
from conformance.vectors.vector import Vector, about_of, checked
from impls.loading import nearest

NAME = "index.json"

#: Operator, case and dtype, which is what names a vector.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class File:
    """A file of the folder: its name from there, with ``/``, and the SHA-256 of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One vector of the index."""

    operator: str
    case: str
    dtype: str
    about: File
    tensors: File

    @property
    def key(self) -> Key:
        """What names it."""
        return self.operator, self.case, self.dtype


@dataclass(frozen=True)
class Index:
    """The index, read: what made the vectors, and all of them in order."""

    generator: dict[str, str]
    entries: tuple[Entry, ...]

    def as_json(self) -> dict[str, Any]:
        """The index as a JSON object."""
        return {
            "format": FORMAT,
            "spec": SPEC_VERSION,
            "generator": self.generator,
            "vectors": [asdict(entry) for entry in self.entries],
        }

    def write(self, folder: Path) -> None:
        """Write it to its folder."""
        (folder / NAME).write_bytes(text_of(self.as_json()))


def read_index(folder: Path) -> Index:
    """The index of a folder.  Raises VectorError for one of another version, or with names that are not safe."""
    record = parse(read(folder, NAME), NAME)
    for key, wanted, error in (("format", FORMAT, WrongFormat), ("spec", SPEC_VERSION, WrongSpec)):
        if isinstance(record, dict) and key in record and record[key] != wanted:
            raise error(f"{NAME} is of {key} {record[key]!r:.40}, this suite reads {wanted!r}")
    fields(record, {"format": int, "spec": str, "generator": dict, "vectors": list}, NAME)
    generator = fields(record["generator"], {"name": str, "version": str}, f"{NAME}, generator")
    entries = tuple(_entry(each, f"{NAME}, vector {at}") for at, each in enumerate(record["vectors"]))
    seen: set[Any] = set()
    for entry in entries:
        for each in (entry.key, entry.about.file, entry.tensors.file):
            if each in seen:
                raise Repeated(f"{NAME} has {each if isinstance(each, str) else ' '.join(each)} twice")
            seen.add(each)
        for name in (entry.about.file, entry.tensors.file):
            inside(folder, name)
    return Index(generator, entries)


def _entry(record: Any, name: str) -> Entry:
    kinds: dict[str, type] = {"operator": str, "case": str, "dtype": str, "about": dict, "tensors": dict}
    found = fields(record, kinds, name)
    files = {}
    for kind in ("about", "tensors"):
        each = fields(found[kind], {"file": str, "sha256": str}, f"{name}, {kind}")
        if not re.fullmatch(r"[0-9a-f]{64}", each["sha256"]):
            raise WrongFields(f"{name}, {kind} has a sha256 that is not 64 hexadecimal digits")
        files[kind] = File(**each)
    return Entry(found["operator"], found["case"], found["dtype"], **files)


def read_vector(folder: Path, entry: Entry) -> Vector:
    """The vector of an entry.  Raises VectorError if a file was changed or is not what the entry says."""
    about = about_of(parse(read(folder, entry.about.file, entry.about.sha256), entry.about.file), entry.about.file)
    if (about.operator, about.case, about.dtype) != entry.key:
        raise WrongFields(f"{entry.about.file} is not of {' '.join(entry.key)}, as the index says")
    name = entry.tensors.file
    return checked(about, decode(read(folder, name, entry.tensors.sha256), name), name)


@dataclass(frozen=True)
class Chosen:
    """What the options name: globs over operators, cases and dtypes; none of a kind means all of it."""

    operators: Sequence[str] = ()
    cases: Sequence[str] = ()
    dtypes: Sequence[str] = ()

    def of(self, keys: Iterable[Key]) -> list[Key]:
        """Those that are named, in their order.  Raises NothingSelected for an option that names none."""
        keys = list(keys)
        options = (("--operator", self.operators), ("--case", self.cases), ("--dtype", self.dtypes))
        for at, (option, patterns) in enumerate(options):
            known = {key[at] for key in keys}
            for pattern in patterns:
                if not any(fnmatch(name, pattern) for name in known):
                    raise NothingSelected(f"{option} {pattern}: there is none{nearest(pattern, known)}")
        found = [key for key in keys if all(_named(n, p) for n, (_, p) in zip(key, options, strict=True))]
        if not found:
            raise NothingSelected("there is no vector that --operator, --case and --dtype all name")
        return found


def _named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)
