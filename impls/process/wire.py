"""Wire between a worker and its parent: requests are pickles, answers are typed records and raw arrays.

The worker trusts its parent, so a request may be a pickle.  The parent does not trust its worker, which runs foreign
code: an answer is a header, a table of arrays, one msgpack record and the arrays' bytes, and reading it executes
nothing.  Anything else that arrives is Malformed.  A request has an unpredictable number, which its answer carries;
after it comes a second number, the seal, which the worker reads and returns once it has sent its one answer.  So an
answer that was sent from inside a call is detected: the worker's own answer follows where the seal is expected.  Code
that takes the seal from the connection acts as a whole worker, which the process's own answer then betrays: it comes
where the next job's is expected.  The seal is sent with the job, as sending it after the answer costs a second round
trip (0.1 ms of 0.25 ms) and makes it no harder to take.

``impls/PLUGINS.md`` says what no such wall can do between two processes of one user.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
import select
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

#: Bytes of a number.
NUMBER = 16

#: A request is a job, or the seal of the answer to one; its header has the kind, the number, and the bytes that follow.
JOB, SEAL = 1, 2
REQUEST = struct.Struct("<B16sQ")

#: An answer is a result, an exception, or a returned seal.  Its header: magic, kind, number, bytes of the table,
#: of the record and of all arrays, and the seconds that the job took by the worker's clock.
RESULT, RAISED, SEALED = 1, 2, 3
ANSWER = struct.Struct("<4sBxxx16sIIQd")
MAGIC = b"ACw1"

#: Most bytes of a record and of a table, and most arrays and axes, in an answer.
LARGEST_RECORD, LARGEST_TABLE, MOST_ARRAYS, MOST_AXES = 1 << 24, 1 << 16, 256, 32

#: Seconds without a byte after which an answer that has begun is given up.
STALL = 60.0

#: Bytes that are read at once; most answers are shorter.
CHUNK = 1 << 16

#: The msgpack extension that represents an array: its index in the table.
ARRAY = 1

#: Dtypes by name: those of NumPy that are numbers, in either byte order, and those of ml_dtypes.
DTYPES: dict[str, np.dtype] = {
    str(dtype): dtype
    for plain in (*(np.dtype(code) for code in "?bhilqBHILQefdgFDG"), *map(np.dtype, ("longlong", "ulonglong")))
    for dtype in (plain, plain.newbyteorder(">"))
} | {
    str(np.dtype(kind)): np.dtype(kind)
    for kind in vars(ml_dtypes).values()
    if isinstance(kind, type) and issubclass(kind, np.generic)
}

#: For any other dtype only shape and name are sent, as a judge reports nothing else of it: texts and times by name, and
#: anything else as "object".
NAMED = re.compile(
    r"[<>|=]?(?:[US]\d{1,4}|[mM]8(?:\[\w{1,6}\])?)|datetime64(?:\[\w{1,6}\])?|timedelta64(?:\[\w{1,6}\])?"
)


class Malformed(Exception):
    """Bytes that are not an answer; the text says why."""


@dataclass(frozen=True)
class Raised:
    """An exception as texts: its type and the types that it is derived from, its message, and its traceback."""

    kinds: tuple[str, ...]
    text: str
    trace: str
    stderr: str = ""


@dataclass(frozen=True)
class Entry:
    """One array of an answer: ``order`` is that of its bytes, C or F, or "-" where none are sent."""

    dtype: str
    shape: tuple[int, ...]
    order: str


# The worker's side.

#: Modules whose classes jobs use and that are no longer in sys.modules, by name (bench/gate/hidden.py).
HELD: Mapping[str, Any] = {}


class _Jobs(pickle.Unpickler):  # (the parent's)
    """Reads jobs."""

    def find_class(self, module: str, name: str) -> Any:
        """The object that a job names, also one of a hidden module."""
        held = HELD.get(module)
        return super().find_class(module, name) if held is None else functools.reduce(getattr, name.split("."), held)


def read_request(descriptor: int) -> tuple[int, bytes, Any]:
    """The next request: kind, number, job.  Raises EOFError when the parent is gone."""
    kind, number, length = REQUEST.unpack(_exactly(descriptor, REQUEST.size))
    return kind, number, _Jobs(io.BytesIO(_exactly(descriptor, length))).load() if length else None


def write_answer(descriptor: int, parts: list[Any]) -> None:
    """Send an answer.  Raises OSError when the parent is gone."""
    for part in parts:
        rest = memoryview(part)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]


def result(number: bytes, value: Any, seconds: float, largest: int) -> list[Any]:
    """The answer with a result, as parts to be sent.  Raises TypeError with a clear text if it cannot be sent."""
    arrays: list[np.ndarray] = []
    try:
        record = msgspec.msgpack.Encoder(enc_hook=lambda each: _plain(each, arrays)).encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"the answer cannot be sent: {error}") from None
    entries, buffers = [], []
    for array in arrays:
        name = str(array.dtype)
        if DTYPES.get(name) != array.dtype:
            entries.append(Entry(name if NAMED.fullmatch(name) else "object", array.shape, "-"))
            continue
        turned = array.flags.f_contiguous and not array.flags.c_contiguous
        whole = np.ascontiguousarray(array.T if turned else array)
        entries.append(Entry(name, array.shape, "F" if turned else "C"))
        buffers.append(whole.reshape(-1).view(np.uint8))
    total = sum(each.nbytes for each in buffers)
    table = msgspec.msgpack.encode(entries)
    if len(record) > LARGEST_RECORD or len(arrays) > MOST_ARRAYS or total > largest:
        raise TypeError(
            f"the answer cannot be sent: a record of {len(record)} bytes with {len(arrays)} arrays of {total} bytes,"
            f" where {LARGEST_RECORD}, {MOST_ARRAYS} and {largest} are allowed"
        )
    header = ANSWER.pack(MAGIC, RESULT, number, len(table), len(record), total, seconds)
    return [header + table + record, *buffers]


def failure(number: bytes, error: BaseException, seconds: float) -> list[Any]:
    """The answer with an exception."""
    kinds = tuple(f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__[:20])
    trace = "".join(traceback.format_exception(error))[-CHUNK:]
    stderr = str(getattr(error, "stderr", ""))[-CHUNK:]
    raised = Raised(*(_sendable(each) for each in (kinds, said(error)[:CHUNK], trace, stderr)))
    table, record = msgspec.msgpack.encode([]), msgspec.msgpack.encode(raised)
    return [ANSWER.pack(MAGIC, RAISED, number, len(table), len(record), 0, seconds) + table + record]


def sealed(number: bytes) -> list[Any]:
    """The answer which says that no other answer comes before the next job."""
    return [ANSWER.pack(MAGIC, SEALED, number, 0, 0, 0, 0.0)]


def said(error: BaseException) -> str:
    """The message of an exception as text that can be sent and printed, whatever its class does.

    Parameters
    ----------
    error
        Exception of a call.

    Returns
    -------
    str
        The message, with a question mark for each lone surrogate; a note where its ``__str__`` raises.
    """
    try:
        return sendable(str(error))
    except Exception as second:
        return f"(its message cannot be read: __str__ raises {type(second).__name__})"


def sendable(text: str) -> str:
    """A text without halves of surrogate pairs, which UTF-8 does not have.

    Parameters
    ----------
    text
        Any text.

    Returns
    -------
    str
        The text, with a question mark for each half.
    """
    return text.encode(errors="replace").decode()


def _sendable(text: Any) -> Any:
    """Text without halves of surrogate pairs, which UTF-8 does not have."""
    if isinstance(text, tuple):
        return tuple(map(_sendable, text))
    return sendable(text)


def _plain(value: Any, arrays: list[np.ndarray]) -> Any:
    """A value in types that msgpack knows.  Raises TypeError if there are none."""
    if isinstance(value, np.ndarray):
        arrays.append(np.asarray(value))
        return msgspec.msgpack.Ext(ARRAY, (len(arrays) - 1).to_bytes(4, "little"))
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str, bytes)):
        return value.item()
    for kind in (str, bytes, bool, int, float):  # a subclass as the plain type
        if isinstance(value, kind):
            return kind(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, list, range, Set)):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain value and no array")


def _exactly(descriptor: int, count: int) -> bytearray:
    found, at = bytearray(count), 0
    while at < count:
        got = os.readv(descriptor, [memoryview(found)[at:]])
        if not got:
            raise EOFError
        at += got
    return found


# The parent's side.

#: Waits until a socket is ready for one of these (select.POLLIN, POLLOUT), or raises what ends the wait.
Wait = Callable[[int], int]


@dataclass(frozen=True)
class Answer:
    """An answer whose arrays are read and whose record is not yet."""

    kind: int
    number: bytes
    record: bytes
    arrays: tuple[np.ndarray, ...]
    seconds: float

    def read(self, kind: Any) -> Any:
        """The value, which is of this type, or Raised.  Raises Malformed if it is not."""
        wanted = Raised if self.kind == RAISED else kind
        arrays = dict(enumerate(self.arrays))
        decoder, given = _decoder(wanted)
        given.append(arrays)
        try:
            value = decoder.decode(self.record)
        except Malformed:
            raise
        except Exception as error:  # of msgspec, or of a record that refuses its fields
            raise Malformed(f"a record that is not {getattr(wanted, '__name__', wanted)}: {error}"[:300]) from None
        finally:
            given.pop()
        if arrays:
            raise Malformed("arrays that no record has")
        return value


_LOCAL = threading.local()


def _decoder(kind: Any) -> tuple[msgspec.msgpack.Decoder, list[dict[int, np.ndarray]]]:
    """The decoder of a type, cached for this thread, and the list from whose last entry it takes arrays."""
    kept = _LOCAL.__dict__.setdefault("kept", {})
    if kind not in kept:
        given: list[dict[int, np.ndarray]] = []

        def array(code: int, data: memoryview) -> np.ndarray:
            found = given[-1].pop(int.from_bytes(data, "little"), None) if code == ARRAY else None
            if found is None:
                raise Malformed("an array that is not in the table")
            return found

        kept[kind] = msgspec.msgpack.Decoder(kind, ext_hook=array, dec_hook=_array), given
    return kept[kind]


def _array(wanted: Any, found: Any) -> Any:
    if not isinstance(found, np.ndarray):
        raise Malformed(f"{type(found).__name__} in the place of an array")
    return found


class Line:
    """The parent's end of the connection.  Every wait has a limit, and nothing that is read is executed.

    Parameters
    ----------
    end
        A connected stream socket, which is closed with this.
    largest
        Most bytes of all arrays of an answer.
    """

    def __init__(self, end: socket.socket, largest: int) -> None:
        end.setblocking(False)
        self._socket = end
        self._largest = largest
        #: Bytes that were read after the last answer.
        self._left = bytearray()
        self._chunk = memoryview(bytearray(CHUNK))
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ready(self, events: int, seconds: float) -> int:
        """Events among these that the connection has within ``seconds``; 0 for none."""
        self._poll.modify(self._socket.fileno(), events)
        found = self._poll.poll(max(0, int(np.ceil(1000 * seconds))))
        return found[0][1] if found else 0

    def unasked(self) -> None:
        """Raise Malformed if something arrived without a request, EOFError if the other end is closed."""
        if self.ready(select.POLLIN, 0):
            raise Malformed("bytes that nothing asked for") if self._socket.recv(1) else EOFError

    def send(self, number: bytes, job: bytes, seal: bytes, wait: Wait) -> None:
        """Send a job and the seal of its answer.

        Raises Malformed if something arrives before all is sent, OSError if the other end is closed.
        """
        parts = [REQUEST.pack(JOB, number, len(job)), job, REQUEST.pack(SEAL, seal, 0)]
        for part in [b"".join(parts)] if len(job) < CHUNK else parts:  # one part wakes the worker once
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    if not wait(select.POLLIN | select.POLLOUT) & select.POLLOUT:
                        self.unasked()

    def receive(self, wait: Wait, followed: bool = False) -> Answer:
        """The next answer, after which nothing may come unless it is ``followed`` by another one.

        Raises Malformed, EOFError, or what ``wait`` raises.
        """
        begun, self._left = self._left, bytearray()
        self._read_more(begun, ANSWER.size, wait)
        magic, kind, number, table, record, total, seconds = ANSWER.unpack_from(begun)
        if magic != MAGIC or kind not in (RESULT, RAISED, SEALED):
            raise Malformed(f"bytes that are no answer, beginning with {bytes(begun[:16])!r}")
        if table > LARGEST_TABLE or record > LARGEST_RECORD or total > self._largest:
            raise Malformed(f"an answer that says it has {table + record + total} bytes")
        start = ANSWER.size + table + record
        self._read_more(begun, start, wait)
        arrays, buffers = _allocated(bytes(begun[ANSWER.size : ANSWER.size + table]), total)
        rest = memoryview(begun)[start:]
        for buffer in buffers:
            taken = min(len(rest), len(buffer))
            buffer[:taken] = rest[:taken]
            rest = rest[taken:]
            while taken < len(buffer):
                taken += self._into(buffer[taken:], wait)
        if len(rest) and not followed:
            raise Malformed("more bytes than its answer has")
        self._left = bytearray(rest)
        found = Answer(kind, number, bytes(begun[ANSWER.size + table : start]), arrays, seconds)
        for array in arrays:
            if (
                array.dtype == np.bool_
                and array.strides != (0,) * array.ndim
                and array.view(np.uint8).max(initial=0) > 1
            ):
                raise Malformed("truth values that are neither 0 nor 1")
        return found

    def _read_more(self, begun: bytearray, count: int, wait: Wait) -> None:
        """Read until ``begun`` has ``count`` bytes."""
        while len(begun) < count:
            got = self._into(self._chunk, wait, first=not begun)
            begun += self._chunk[:got]

    def _into(self, buffer: memoryview, wait: Wait, first: bool = False) -> int:
        """Read some bytes, one at least."""
        last = time.monotonic()
        while True:
            try:
                got = self._socket.recv_into(buffer)
            except BlockingIOError:
                if not wait(select.POLLIN) and not first and time.monotonic() > last + STALL:
                    raise Malformed("an answer that does not end") from None
                continue
            if not got:
                raise EOFError
            return got


def _allocated(text: bytes, total: int) -> tuple[tuple[np.ndarray, ...], list[memoryview]]:
    """The arrays of a table, and the bytes of those that have any.  Raises Malformed."""
    try:
        entries = msgspec.msgpack.decode(text, type=list[Entry]) if text else []
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(f"no table of arrays: {error}") from None
    if len(entries) > MOST_ARRAYS or sum(map(_bytes, entries)) != total:
        raise Malformed("arrays of other sizes than it says")
    arrays, buffers = [], []
    for each in entries:
        if each.order == "-":
            arrays.append(_nameless(each))
            continue
        raw = np.empty(_bytes(each), np.uint8)
        if raw.nbytes:
            buffers.append(memoryview(raw.data))
        turned = each.order == "F"
        shaped = raw.view(DTYPES[each.dtype]).reshape(each.shape[::-1] if turned else each.shape)
        arrays.append(shaped.T if turned else shaped)
    return tuple(arrays), buffers


def _bytes(each: Entry) -> int:
    """Bytes that follow for an entry.  Raises Malformed for an entry that no array has."""
    if len(each.shape) > MOST_AXES or any(n < 0 or n >= 1 << 48 for n in each.shape):
        raise Malformed(f"an array of shape {str(each.shape)[:100]}")
    if prod(n for n in each.shape if n) >= 1 << 48:
        raise Malformed(f"an array of shape {str(each.shape)[:100]}")
    if each.order == "-" and (each.dtype == "object" or NAMED.fullmatch(each.dtype)):
        return 0
    if each.order not in ("C", "F") or each.dtype not in DTYPES:
        raise Malformed(f"an array of dtype {each.dtype[:50]}")
    return prod(each.shape) * DTYPES[each.dtype].itemsize


def _nameless(each: Entry) -> np.ndarray:
    """An array that takes no memory, for one whose elements were not sent."""
    try:
        one = np.array(float("nan"), object) if each.dtype == "object" else np.zeros((), each.dtype)
        return np.broadcast_to(one, each.shape)
    except (TypeError, ValueError) as error:
        raise Malformed(f"an array of dtype {each.dtype}: {error}") from None
