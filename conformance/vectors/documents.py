"""Files of a folder that is not trusted: names that stay inside it, bytes of known size, strict JSON."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from conformance import strict
from conformance.vectors.errors import (
    DuplicateKey,
    LinkOutside,
    NotANumber,
    NotJson,
    OutsideFolder,
    TooLarge,
    Unreadable,
    VectorError,
    WrongFields,
    WrongHash,
)

#: Bytes of the largest file that is read.  The largest vector has 6 MB.
FILE_LIMIT = 1 << 28

T = TypeVar("T")

_ERRORS: dict[type[strict.StrictError], type[VectorError]] = {
    strict.NotJson: NotJson,
    strict.KeyTwice: DuplicateKey,
    strict.NotFinite: NotANumber,
}

#: One part of a file name: what the names of operators, dtypes and cases are made of.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)


def read(folder: Path, name: str, sha256: str | None = None) -> bytes:
    """The bytes of a file of the folder.  Raises VectorError if it leads out of it, is no file, or is another one."""
    path = inside(folder, name)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{name} is not a regular file")
        if status.st_size > FILE_LIMIT:
            raise TooLarge(f"{name} has {status.st_size} bytes, at most {FILE_LIMIT} are read")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{name} cannot be read: {error.strerror or error}") from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise WrongHash(f"{name} has not the sha256 that the index gives for it: one of the two was changed")
    return data


def inside(folder: Path, name: str) -> Path:
    """The path of a name in a folder.  Raises OutsideFolder or LinkOutside if it is not one in there."""
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise OutsideFolder(f"{name!r} is not a name of a file in the folder")
    try:
        root = folder.resolve(strict=True)
        path = (root / name).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
        raise Unreadable(f"{folder / name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not path.is_relative_to(root):
        raise LinkOutside(f"{name} is a link that leads out of the folder")
    return path


def parse(data: bytes, name: str) -> Any:
    """The value of a JSON document.  Raises VectorError for what is not JSON, keys that are there twice, and NaN."""
    try:
        return strict.loads(data)
    except strict.StrictError as error:
        raise _ERRORS[type(error)](error.of(name)) from None


def typed(value: Any, kind: type[T], name: str) -> T:
    """A value of a document as a record.  Raises WrongFields for fields that are missing, unknown or wrong."""
    try:
        return strict.convert(value, kind)
    except strict.WrongType as error:
        raise WrongFields(error.of(name)) from None


def text_of(document: Any) -> bytes:
    """A JSON document, or a record, as bytes, the same for the same value."""
    text = json.dumps(msgspec.to_builtins(document), indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()
