"""Compressed files: what is written is read back; files that are damaged or too large are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.impls import compressed
from attention_conformance.impls.compressed import CompressedError


@pytest.mark.parametrize("name", ["a.json", "a.json.zst"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    """A file is compressed if its name says so; the same content gives the same file."""
    path, content = tmp_path / name, b"line\n" * 10_000
    compressed.write(path, content)
    once = path.read_bytes()
    compressed.write(path, content)
    assert path.read_bytes() == once
    assert (len(once) < 100) == name.endswith(".zst")
    assert compressed.read(path, len(content)) == content
    with compressed.opened(path, len(content)) as file:
        assert file.readline() == b"line\n"
    assert compressed.kind(path) == ".json"


@pytest.mark.parametrize("name", ["a.json", "a.json.zst"])
def test_what_is_larger_than_allowed_is_refused(tmp_path: Path, name: str) -> None:
    """A file of a kilobyte that unpacks to a gigabyte is refused at the limit."""
    compressed.write(tmp_path / name, bytes(1_000_001))
    with pytest.raises(CompressedError, match=r"more than 1000000 bytes when|at most 1000000 are read"):
        compressed.read(tmp_path / name, 1_000_000)


@pytest.mark.parametrize("content", [b"{}", b"PAR1" * 10, b"\x28\xb5\x2f\xfd" + b"\xff" * 40])
def test_what_is_no_zstd_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no zstd is refused whatever its name says."""
    path = tmp_path / "a.json.zst"
    path.write_bytes(content)
    with pytest.raises(CompressedError, match="no zstd, or damaged"):
        compressed.read(path, 1000)


def test_one_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    """A frame that makes its reader keep a large window is refused; frames may ask for up to 2 GiB."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    path = tmp_path / "a.zst"
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(stream.compress(b"text") + stream.flush())
    with pytest.raises(CompressedError, match="no zstd, or damaged"):
        compressed.read(path, 1000)
