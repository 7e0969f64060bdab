"""Files of an untrusted folder: named errors, reading inside the folder, strict JSON, safetensors.

Folders of vectors and of results are data from anywhere.  A file is refused as a whole, before anything in it is used,
with one class of VectorError for each kind of defect and in one sentence.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import ml_dtypes
import msgspec
import numpy as np
from msgspec import Meta, Struct

from attention_conformance.impls import strict
from attention_conformance.impls.strict import TooLarge, Unreadable, WrongFields

#: Bytes of the largest file that is read; the largest vector has 6 MB.
FILE_LIMIT = 1 << 28

T = TypeVar("T")

#: One part of a file name: characters of the names of operators, dtypes and cases.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)

#: The dtypes that are read, by their names in the format; vectors have the first six, BOOL and integers.
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "BOOL": np.dtype(np.bool_),
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (64, 32, 16, 8)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (64, 32, 16, 8)},
}

#: Bytes of the longest header that is read; a vector has at most some forty arrays, of about a hundred bytes each.
HEADER_LIMIT = 1 << 20

#: Axes of an array; the widest here has four, and NumPy has at most 64.
RANK_LIMIT = 16

#: Beginnings of pickles (protocols 2 to 5) and of the archives in which torch and NumPy keep them.
PICKLES = (*(bytes([0x80, protocol]) for protocol in range(2, 6)), b"PK\x03\x04", b"\x93NUMPY")


#: Vectors or results that cannot be used; the text is one sentence that names the file.
VectorError = strict.FileError


class MissingPackage(VectorError):
    """The package that reads and writes safetensors is not installed."""


class NothingSelected(VectorError):
    """The options name no case."""


class NotEmpty(VectorError):
    """The folder to write to is not empty."""


class OutsideFolder(VectorError):
    """A file name leads out of the folder, or could."""


class LinkOutside(VectorError):
    """A symbolic link leads out of the folder."""


class WrongHash(VectorError):
    """A file is not the one that the index was written with."""


class WrongSpec(VectorError):
    """Vectors of another version of the spec."""


class Repeated(VectorError):
    """A case and dtype, or a file, is twice in the index; or a case has two results."""


class Pickled(VectorError):
    """A pickle, or an archive that may hold one, instead of safetensors.  Nothing is ever unpickled."""


class HeaderTooLarge(VectorError):
    """The header of a safetensors file is longer than any that a vector needs."""


class Truncated(VectorError):
    """A safetensors file ends within its header, or within the data that the header describes."""


class UnknownDtype(VectorError):
    """An array of a dtype that the format does not have."""


class WrongSize(VectorError):
    """An array's bytes are not as many as its shape and dtype need, or bytes belong to no array."""


class BadOffsets(VectorError):
    """An array's bytes are at impossible places."""


class Overlap(VectorError):
    """Two arrays share bytes."""


class BadBoolean(VectorError):
    """A byte of a boolean array is neither 0 nor 1."""


class Unsound(VectorError):
    """The safetensors package refuses what the checks before it let through."""


class WrongArrays(VectorError):
    """The arrays of a vector are not those that its description names, or do not fit together."""


class BadBound(VectorError):
    """A bound that is NaN, infinite or negative, so that it bounds nothing."""


# Files and JSON.


def read(folder: Path, name: str, sha256: str | None = None) -> bytes:
    """The bytes of a file in the folder.  Raises VectorError if it leads outside, is no file, or has the wrong hash."""
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
        raise WrongHash(f"{name} does not have the sha256 that the index gives: one of the two was changed")
    return data


def inside(folder: Path, name: str) -> Path:
    """The path of a name in a folder.  Raises OutsideFolder or LinkOutside if it is not inside."""
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise OutsideFolder(f"{name!r} is not a name of a file in the folder")
    try:
        root = folder.resolve(strict=True)
        path = (root / name).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that form a loop
        raise Unreadable(f"{folder / name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not path.is_relative_to(root):
        raise LinkOutside(f"{name} is a link that leads out of the folder")
    return path


def parse(data: bytes, name: str) -> Any:
    """The value of a JSON document.  Raises VectorError for invalid JSON, duplicate keys, and NaN."""
    try:
        return strict.loads(data)
    except strict.StrictError as error:
        raise error.named(name) from None


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


# Safetensors: written by the package of that name, and read by it after the whole header is checked.


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file, the same for the same arrays."""
    from_numpy = package("safetensors.numpy")
    # The package takes an array's memory as it is, so it must be in C order.
    return from_numpy.save({name: np.array(array, order="C") for name, array in sorted(arrays.items())})


def decode(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.  Raises VectorError for anything else."""
    module = package("safetensors")
    header, content = _header(data, name)
    specifications = {key: _specification(each, f"{name}, {key}") for key, each in header.items()}
    _tiled(specifications, len(content), name)
    try:
        found = dict(module.deserialize(data))
    except module.SafetensorError as error:
        raise Unsound(f"{name} is not safetensors: {error}") from None
    return {key: _array(found[key], f"{name}, {key}") for key in specifications}


def package(name: str) -> ModuleType:
    """A module of the safetensors package.  Raises MissingPackage."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackage(
            "test vectors need the package safetensors: pip install 'attention-conformance[vectors]'"
        ) from None


def _header(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    """The entries of the header, and the bytes after it."""
    if data.startswith(PICKLES) and data[8:9] != b"{":
        raise Pickled(f"{name} is a pickle or an archive, not safetensors, and nothing is unpickled")
    if len(data) < 8:
        raise Truncated(f"{name} has {len(data)} bytes, and the length of the header alone takes 8")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_LIMIT:
        raise HeaderTooLarge(f"{name} has a header of {length} bytes, at most {HEADER_LIMIT} are read")
    if 8 + length > len(data):
        raise Truncated(f"{name} ends within its header")
    header = typed(parse(data[8 : 8 + length], f"{name}, header"), dict[str, Any], f"{name}, header")
    typed(header.pop("__metadata__", {}), dict[str, str], f"{name}, __metadata__")
    return header, data[8 + length :]


class Specification(Struct, forbid_unknown_fields=True):
    """An array's entry in the header; a vector has at most some forty."""

    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=RANK_LIMIT)]
    #: A begin and an end.
    data_offsets: tuple[Any, ...]


def _specification(value: Any, name: str) -> tuple[int, int]:
    """Begin and end of an array's bytes, if their number fits its shape and dtype."""
    entry = typed(value, Specification, name)
    if entry.dtype not in DTYPES:
        raise UnknownDtype(f"{name} has the dtype {entry.dtype!r}, known are {', '.join(DTYPES)}")
    offsets = entry.data_offsets
    if len(offsets) != 2 or not all(type(n) is int for n in offsets) or not 0 <= offsets[0] <= offsets[1]:
        raise BadOffsets(f"{name} has as its bytes {list(offsets)!r:.80}, expected a begin and an end")
    needed = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise WrongSize(f"{name} has {offsets[1] - offsets[0]} bytes, its shape and dtype need {needed}")
    return offsets[0], offsets[1]


def _tiled(places: Mapping[str, tuple[int, int]], size: int, name: str) -> None:
    """Refuse arrays that share bytes, leave some out, or extend beyond the end."""
    at = 0
    for key, (begin, end) in sorted(places.items(), key=lambda each: each[1]):
        if begin < at:
            raise Overlap(f"{name}, {key} begins at byte {begin}, before the end of another array at {at}")
        if begin > at:
            raise BadOffsets(f"{name}, {key} begins at byte {begin}, and no array has the bytes from {at} on")
        if end > size:
            raise Truncated(f"{name} has {size} bytes of data, {key} ends at {end}")
        at = end
    if at < size:
        raise WrongSize(f"{name} has {size} bytes of data, its arrays {at}")


def _array(found: Mapping[str, Any], name: str) -> np.ndarray:
    dtype = DTYPES[found["dtype"]]
    if dtype == np.bool_ and np.any(np.frombuffer(found["data"], np.uint8) > 1):
        raise BadBoolean(f"{name} has a byte that is neither 0 nor 1")
    try:
        return np.frombuffer(found["data"], dtype).reshape(found["shape"])
    except ValueError as error:  # an empty array with axes too long for NumPy
        raise WrongFields(f"{name} has a shape that NumPy refuses: {error}") from None
