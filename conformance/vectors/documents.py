"""Files of a folder that is not trusted: names that stay inside it, bytes of known size, strict JSON."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from pathlib import Path
from typing import Any

from conformance import strict
from conformance.vectors.errors import (
    DuplicateKey,
    LinkOutside,
    NotANumber,
    NotJson,
    OutsideFolder,
    TooLarge,
    Unreadable,
    WrongFields,
    WrongHash,
)

#: Bytes of the largest file that is read.  The largest vector has 6 MB.
FILE_LIMIT = 1 << 28

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
    """The value of a JSON document.  Raises VectorError for what is not JSON, keys that stand twice, and NaN."""
    try:
        return strict.loads(data)
    except strict.KeyTwice as error:
        raise DuplicateKey(f"{name} has the key {error.key!r} twice in one object") from None
    except strict.NotFinite as error:
        raise NotANumber(f"{name} has the number {error.number}, which is not finite") from None
    except strict.NotJson as error:
        raise NotJson(f"{name} is not JSON: {error.reason}") from None


def text_of(document: Any) -> bytes:
    """A JSON document as bytes, the same for the same value."""
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def fields(record: Any, kinds: dict[str, type], name: str) -> dict[str, Any]:
    """The record, if it is an object with these fields and no others, each of its kind.  Raises WrongFields."""
    if not isinstance(record, dict):
        raise WrongFields(f"{name} is a {type(record).__name__}, expected an object")
    wrong = sorted(set(record) ^ set(kinds))
    if wrong:
        raise WrongFields(f"{name} {'lacks' if wrong[0] in kinds else 'has the unknown field'} {wrong[0]!r}")
    for key, kind in kinds.items():
        if type(record[key]) is not kind:
            raise WrongFields(f"{name} has for {key!r} a {type(record[key]).__name__}, expected a {kind.__name__}")
    return record


def texts(values: Any, name: str) -> tuple[str, ...]:
    """A list of texts, none of which stands twice.  Raises WrongFields."""
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values) or len(set(values)) < len(values):
        raise WrongFields(f"{name} is not a list of different texts")
    return tuple(values)
