"""Arrays as safetensors: written by the package of that name, and read by it once the whole header is checked.

The package stays the one that knows the format; the checks before it give each kind of damage a name and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import ml_dtypes
import numpy as np
from msgspec import Meta, Struct

from conformance.vectors.documents import parse, typed
from conformance.vectors.errors import (
    BadBoolean,
    BadOffsets,
    HeaderTooLarge,
    MissingPackage,
    Overlap,
    Pickled,
    Truncated,
    UnknownDtype,
    Unsound,
    WrongFields,
    WrongSize,
)

#: The dtypes that are read, by their names in the format.  Vectors have the first four, BOOL and I64.
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (64, 32, 16, 8)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (64, 32, 16, 8)},
}

#: Bytes of the longest header that is read.  A vector has at most some forty arrays, of about a hundred bytes each.
HEADER_LIMIT = 1 << 20

#: Axes of an array; the widest here has four, and NumPy has at most 64.
RANK_LIMIT = 16

#: Beginnings of pickles (protocols 2 to 5) and of the archives in which torch and NumPy keep them.
PICKLES = (*(bytes([0x80, protocol]) for protocol in range(2, 6)), b"PK\x03\x04", b"\x93NUMPY")


def encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file, the same for the same arrays."""
    from_numpy = package("safetensors.numpy")
    # The package takes the memory of an array as it lies, so it must lie in order.
    return from_numpy.save({name: np.array(array, order="C") for name, array in sorted(arrays.items())})


def decode(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.  Raises VectorError for anything that is not exactly one."""
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
        raise MissingPackage("test vectors need the package safetensors: pip install '.[vectors]'") from None


def _header(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    """The entries of the header, and the bytes behind it."""
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
    """Begin and end of an array's bytes, if they are as many as it has."""
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
    """Refuse arrays that share bytes, leave some out, or lie beyond the end."""
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
