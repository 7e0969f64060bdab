"""Cases to a folder: a description and arrays for each case and dtype, and an index with their hashes.

The same bytes each time: no time, no path, no machine; cases in their order, dtypes in theirs.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from conformance.cases import every_case
from conformance.vectors.documents import text_of
from conformance.vectors.errors import NotEmpty, Unreadable
from conformance.vectors.index import Chosen, Entry, File, Generator, write_index
from conformance.vectors.tensors import encode
from conformance.vectors.vector import Vector, vector

#: The distribution that the vectors are made by.
GENERATOR = "attention-conformance"


def export(folder: Path, chosen: Chosen) -> tuple[int, int]:
    """Write the vectors that are chosen; how many, and the bytes of all files.  Raises VectorError."""
    cases = every_case()
    keys = chosen.of((case.operator, case.name, dtype) for case in cases.values() for dtype in case.dtypes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise NotEmpty(f"{folder} is not empty, and what it holds would be taken for vectors")
        entries = tuple(_write(folder, vector(cases[name], dtype)) for _, name, dtype in keys)
        write_index(folder, Generator(GENERATOR, metadata.version(GENERATOR)), entries)
        return len(entries), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise Unreadable(f"{folder} cannot be written: {error.strerror or error}") from None


def _write(folder: Path, made: Vector) -> Entry:
    """Write one vector; its entry in the index."""
    about = made.about
    stem = f"{about.operator}/{about.dtype}/{about.case}"
    return Entry(
        about.operator,
        about.case,
        about.dtype,
        about=_file(folder, f"{stem}.json", text_of(about)),
        tensors=_file(folder, f"{stem}.safetensors", encode(made.arrays)),
    )


def _file(folder: Path, name: str, data: bytes) -> File:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(name, hashlib.sha256(data).hexdigest())
