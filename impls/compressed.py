"""Compressed files: Zstandard is unpacked while it is read, up to a limit on the unpacked size."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

#: Suffix of a compressed file, and its first bytes.
SUFFIX = ".zst"
_MAGIC = b"\x28\xb5\x2f\xfd"

#: The highest level that needs no more memory to read than lower ones; 18 MB of samples take some seconds.
LEVEL = 19

#: Most bytes that a file may require its reader to remember; LEVEL requires fewer.
_WINDOW = 1 << 27

#: Bytes that are unpacked at a time.
_PART = 1 << 20


class CompressedError(OSError):
    """A file that is not regular, not zstd, or damaged; the text is one sentence without the file's name."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.strerror = text


class TooLarge(CompressedError):
    """A file larger than the limit; the text continues after the file's name."""


def kind(path: Path) -> str:
    """The ending of a file's name before it was compressed: ".json" of ``a.json`` and of ``a.json.zst``.

    Parameters
    ----------
    path
        Path of a file, compressed or not.

    Returns
    -------
    str
        The suffix, with its dot.
    """
    return Path(path.stem).suffix if path.suffix == SUFFIX else path.suffix


@contextmanager
def opened(path: Path, limit: int) -> Iterator[BinaryIO]:
    """The bytes of a regular file, unpacked as they are read where its first bytes or its name say Zstandard.

    Parameters
    ----------
    limit : most bytes of the file, and of its unpacked content.

    Yields
    ------
    BinaryIO
        The file, at its first byte.

    Raises
    ------
    CompressedError : when it is opened, or while it is read: TooLarge, or another.
    OSError : for a file that cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CompressedError("it is not a regular file")
    if status.st_size > limit:
        raise TooLarge(f"has {status.st_size} bytes, at most {limit} are read")
    with path.open("rb") as file:
        packed = file.read(len(_MAGIC)) == _MAGIC or path.suffix == SUFFIX
        file.seek(0)
        yield cast(BinaryIO, io.BufferedReader(_Unpacked(file, limit))) if packed else file


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file, up to a limit; for a truncated file, as many as there are."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._stream = unpacker.stream_reader(file, read_across_frames=True)
        self._limit, self._size = limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(min(len(buffer), _PART))
        except zstandard.ZstdError as error:
            raise CompressedError(f"it cannot be decompressed: no zstd, or damaged: {error}") from None
        self._size += len(data)
        if self._size > self._limit:
            raise TooLarge(f"has more than {self._limit} bytes when it is decompressed")
        buffer[: len(data)] = data
        return len(data)


def read(path: Path, limit: int) -> bytes:
    """The content of a file, of at most ``limit`` bytes.

    Parameters
    ----------
    path
        Path of a regular file, compressed or not.
    limit
        Bytes of the largest content.

    Returns
    -------
    bytes
        Content, unpacked.

    Raises
    ------
    CompressedError
        TooLarge, or another for a file that cannot be unpacked.
    OSError
        For a file that cannot be read.
    """
    with opened(path, limit) as file:
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Write a file, packed if its name ends with SUFFIX; the same content gives the same file.

    Parameters
    ----------
    path
        Path of the file, whose folder is made.
    content
        Content, not yet packed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.ZstdCompressor(level=LEVEL).compress(content) if path.suffix == SUFFIX else content)
