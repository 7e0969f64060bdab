"""Folders of vectors and results are untrusted: damage to arrays is refused by name, and nothing is executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.tests.vectors import hash_again, refused
from attention_conformance.conformance.vectors import files
from attention_conformance.conformance.vectors.files import HEADER_LIMIT, VectorError, decode, encode
from attention_conformance.impls import strict

#: The file that tests damage, of a vector or of its result.
TENSORS = "sdpa/float32/plain.safetensors"


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """The bytes of a file with this header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """An entry of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class Trap:
    """A trap: unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


#: Files instead of safetensors: the defect, and the expected error.
FILES: dict[str, tuple[bytes, type[VectorError], str]] = {
    "empty": (b"", files.Truncated, "has 0 bytes"),
    "shorter than a length": (b"\x10\0\0", files.Truncated, "has 3 bytes"),
    "within the header": (safetensors({"output": entry([1], 0, 4)})[:30], files.Truncated, "ends within its header"),
    "within the data": (safetensors({"output": entry([2], 0, 8)}, b"1234"), files.Truncated, "ends at 8"),
    "huge header": (safetensors({}, length=HEADER_LIMIT + 1), files.HeaderTooLarge, "header of 1048577 bytes"),
    "largest header": (b"\xff" * 64, files.HeaderTooLarge, "header of 18446744073709551615 bytes"),
    "no JSON": (safetensors(b"{output}"), strict.NotJson, "header is not JSON"),
    "not UTF-8": (safetensors(b'{"\xff": 1}'), strict.NotJson, "header is not JSON"),
    "deep JSON": (safetensors(b"[" * 100_000), strict.NotJson, "header is not JSON"),
    "long number": (safetensors(b'{"a": ' + b"9" * 5000 + b"}"), strict.NotJson, "header is not JSON"),
    "a list": (safetensors([]), strict.WrongFields, r"it is \[\], expected an object"),
    "an entry that is a text": (safetensors({"output": "F32"}), strict.WrongFields, "it is 'F32', expected an object"),
    "no offsets": (safetensors({"output": {"dtype": "F32", "shape": []}}), strict.WrongFields, "lacks 'data_offsets'"),
    "an unknown field": (
        safetensors({"output": entry([1], 0, 4) | {"code": "x"}}, b"1234"),
        strict.WrongFields,
        "unknown field 'code'",
    ),
    "metadata that is no text": (
        safetensors({"__metadata__": {"a": 1}}),
        strict.WrongFields,
        "__metadata__: .* is .*, expected a text|__metadata__: it is",
    ),
    "a key twice": (safetensors(b'{"output": 1, "output": 2}'), strict.DuplicateKey, "has the key 'output' twice"),
    "a key twice inside": (
        safetensors(b'{"output": {"dtype": "F32", "dtype": "F64"}}'),
        strict.DuplicateKey,
        "has the key 'dtype' twice",
    ),
    "an escape in a name": (
        safetensors({"\x1b[2J": 1}),
        strict.WrongFields,
        r", \\x1b\[2J: it is 1, expected",
    ),
    "NaN in the header": (safetensors(b'{"output": NaN}'), strict.NotANumber, "number NaN"),
    "unknown dtype": (safetensors({"output": entry([1], 0, 1, "F8_E8M0")}, b"1"), files.UnknownDtype, "'F8_E8M0'"),
    "negative length": (safetensors({"output": entry([-1], 0, 4)}, b"1234"), strict.WrongFields, r"'shape\[0\]' is -1"),
    "a length that is no integer": (
        safetensors({"output": entry([1.0], 0, 4)}),  # type: ignore[list-item]
        strict.WrongFields,
        r"'shape\[0\]' is 1.0",
    ),
    "many axes": (
        safetensors({"output": entry([1] * 65, 0, 4)}, b"1234"),
        strict.WrongFields,
        "list of length <= 16",
    ),
    "a huge shape": (safetensors({"output": entry([2**40] * 4, 0, 4)}, b"1234"), files.WrongSize, "shape and dtype"),
    "too few bytes": (safetensors({"output": entry([2], 0, 4)}, b"1234"), files.WrongSize, "has 4 bytes, .* need 8"),
    "bytes of no array": (safetensors({"output": entry([1], 0, 4)}, b"12345678"), files.WrongSize, "its arrays 4"),
    "offsets backwards": (safetensors({"output": entry([1], 4, 0)}, b"1234"), files.BadOffsets, r"\[4, 0\]"),
    "offsets below 0": (safetensors({"output": entry([1], -4, 0)}, b"1234"), files.BadOffsets, r"\[-4, 0\]"),
    "one offset": (safetensors({"output": entry([1], 0, 4) | {"data_offsets": [0]}}), files.BadOffsets, r"\[0\]"),
    "offsets out of range": (safetensors({"output": entry([1], 400, 404)}, b"1234"), files.BadOffsets, "byte 400"),
    "a hole": (
        safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"1" * 12),
        files.BadOffsets,
        "begins at byte 8, and no array has the bytes from 4 on",
    ),
    "overlap": (
        safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"1" * 12),
        files.Overlap,
        "b begins at byte 4, before the end of another array at 8",
    ),
    "the same bytes": (
        safetensors({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"1234"),
        files.Overlap,
        "b begins at byte 0",
    ),
    "a boolean of 2": (safetensors({"a": entry([2], 0, 2, "BOOL")}, b"\1\2"), files.BadBoolean, "neither 0 nor 1"),
    "an archive": (b"PK\x03\x04" + b"\0" * 60, files.Pickled, "nothing is unpickled"),
    "an array of NumPy": (b"\x93NUMPY" + b"\0" * 60, files.Pickled, "nothing is unpickled"),
    "a longer empty axis than any": (
        safetensors({"a": entry([2**63, 0], 0, 0)}),
        strict.WrongFields,
        "a shape that NumPy refuses",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_result_that_is_no_safetensors_is_refused(
    vectors: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of damage to a result file is refused by its name, and the error names the file."""
    data, error, said = FILES[what]
    (vectors.with_name("results") / TENSORS).write_bytes(data)
    refused(vectors, error, f"{TENSORS}.*{said}", capsys)


@pytest.mark.parametrize("what", FILES)
def test_a_vector_that_is_no_safetensors_is_refused(
    vectors: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same damage in a vector whose hash is right is refused too."""
    data, error, said = FILES[what]
    (vectors / TENSORS).write_bytes(data)
    hash_again(vectors)
    refused(vectors, error, f"{TENSORS}.*{said}", capsys)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_and_not_loaded(
    vectors: Path, tmp_path: Path, protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pickle in a vector or a result is not loaded."""
    data = pickle.dumps(Trap(tmp_path / "sprung"), protocol)
    results = vectors.with_name("results")
    (results / TENSORS).write_bytes(data)
    refused(vectors, files.Pickled, "nothing is unpickled", capsys)
    shutil.copy(vectors / TENSORS, results / TENSORS)
    (vectors / TENSORS).write_bytes(data)
    hash_again(vectors)
    refused(vectors, files.Pickled, "nothing is unpickled", capsys)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(data)  # noqa: S301 - the trap works
    assert (tmp_path / "sprung").exists()


def test_a_header_that_begins_like_a_pickle_is_read() -> None:
    """A header of 0x280 bytes, whose first bytes are those of a pickle, is read."""
    text = json.dumps({"output": entry([1], 0, 4)}).ljust(0x280).encode()
    data = safetensors(text, b"\0\0\x80?")
    assert data.startswith(b"\x80\x02")
    assert decode(data, "file")["output"].tolist() == [1.0]


def test_the_package_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that passes our checks and that the safetensors package rejects is refused by name."""
    monkeypatch.setattr(files, "_tiled", lambda *each: None)
    with pytest.raises(files.Unsound, match="is not safetensors"):
        decode(safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"1" * 12), "file")


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where safetensors is not installed the sentence says how to install it."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(files, "import_module", missing)
    with pytest.raises(files.MissingPackage, match=r"pip install 'attention-conformance\[vectors\]'"):
        encode({"a": np.zeros(1)})
