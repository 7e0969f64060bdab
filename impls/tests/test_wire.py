"""The wire between a worker and its parent: values arrive unchanged, and anything else raises one exception."""

from __future__ import annotations

import random
import resource
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from attention_conformance.impls.calls import Reply
from attention_conformance.impls.process import wire

NUMBER = b"0123456789abcdef"

#: Bytes of arrays that are allowed in these tests.
LARGEST = 1 << 20


@dataclass(frozen=True)
class Some:
    """A record with every kind of field."""

    status: Literal["returned", "raised"]
    results: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: tuple[float, ...] = ()
    names: frozenset[str] = frozenset()
    plain: Any = None


def received(data: bytes, kind: Any = Some) -> Any:
    """The parent's reading of these bytes, after which the connection is closed."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data) + 1)
    line = wire.Line(ours, LARGEST)
    try:
        theirs.settimeout(5)
        theirs.sendall(data)
        theirs.close()
        return line.receive(lambda events: line.ready(events, 1.0)).read(kind)
    finally:
        line.close()
        theirs.close()


def sent(value: Any, largest: int = LARGEST) -> bytes:
    """The bytes of an answer."""
    return b"".join(map(bytes, wire.result(NUMBER, value, 0.5, largest)))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3).T,
        np.arange(6).astype(ml_dtypes.float8_e4m3fn),
        np.array([True, False]),
        np.array(3.5),
        np.zeros((2, 0, 3), np.float16),
        np.arange(24, dtype=">f8").reshape(2, 3, 4).transpose(1, 0, 2),
        np.array([1 + 2j]),
    ],
    ids=str,
)
def test_an_array_comes_back_with_its_bits(array: np.ndarray) -> None:
    """Dtype, shape, bytes and column order survive."""
    got = received(sent(Some("returned", {"a": array}))).results["a"]
    assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert got.flags.f_contiguous == (array.flags.f_contiguous or array.size == 0 or array.ndim < 2)
    assert got.flags.writeable


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([[None, print]], object), "object"),
        (np.array(["abc"]), "<U3"),
        (np.array([(1, 2.0)], [("a", int), ("b", float)]), "object"),
    ],
    ids=["objects", "texts", "structures"],
)
def test_an_array_of_no_numbers_comes_back_as_its_name(array: np.ndarray, dtype: str) -> None:
    """The shape and the dtype's name are all that a judge reports about it."""
    got = received(sent(Some("returned", {"a": array}))).results["a"]
    assert (str(got.dtype), got.shape) == (dtype, array.shape)


def test_a_record_comes_back_in_its_types() -> None:
    """Tuples and sets come back by the fields' types, NumPy's scalars as numbers, and NaN as NaN."""
    numbers: Any = (1.5, np.float32(2.0), float("inf"))
    got = received(sent(Some("raised", {}, numbers, frozenset("ab"), {"x": (1, None)})))
    assert got == Some("raised", {}, (1.5, 2.0, float("inf")), frozenset("ab"), {"x": [1, None]})


@pytest.mark.parametrize(
    "value", [object(), Some("returned", plain=1 << 80), Some("returned", {"a": np.zeros(LARGEST)})], ids=type
)
def test_what_cannot_be_sent_is_said_by_the_worker(value: Any) -> None:
    """An object, an endless number, and too much data raise in the worker."""
    with pytest.raises(TypeError, match="the answer cannot be sent"):
        sent(value)


@pytest.mark.parametrize(
    "value",
    [{"status": "perhaps"}, {"status": "returned", "results": {"a": 1}}, {"numbers": ["1"]}, [], None, 7],
    ids=str,
)
def test_a_record_of_another_type_is_malformed(value: Any) -> None:
    """Each field must have its type."""
    with pytest.raises(wire.Malformed, match=r"a record that is not Some|in the place of an array"):
        received(sent(value))


def test_an_array_that_no_record_has_is_malformed() -> None:
    """Bytes that nothing reads would be a second answer."""
    with pytest.raises(wire.Malformed):
        received(sent({"status": "returned", "other": np.zeros(3)}))


def test_mutated_and_random_bytes_are_an_answer_or_malformed() -> None:
    """Thousands of them take bounded time and memory, and raise nothing else but the end of the connection."""
    rng = random.Random(0)  # noqa: S311
    valid = [
        sent(Some("returned", {"a": np.arange(6.0), "b": np.ones((2, 3), bool)}, (1.0,), frozenset("x"), {"y": [1]})),
        sent(Some("raised")),
        b"".join(wire.failure(NUMBER, ValueError("no"), 0.1)),
        sent(Reply("returned", {"output": np.zeros((2, 2), np.float32)}, changed=("a",))),
    ]
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"value": 0, "malformed": 0, "end": 0}
    for _ in range(6000):
        data = bytearray(rng.choice(valid))
        way = rng.random()
        if way < 0.1:
            data = bytearray(rng.randbytes(rng.randrange(300)))
        elif way < 0.2:
            del data[rng.randrange(len(data)) :]
        elif way < 0.3:
            data[wire.ANSWER.size :] = rng.randbytes(len(data) - wire.ANSWER.size)
        else:
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(4 if way < 0.95 else 0, len(data))] = rng.choice(
                    (0, 1, 0x7F, 0xC7, 0xDD, 0xDF, 0xFF)
                )
        try:
            received(bytes(data), rng.choice((Some, Reply, Any)))
            outcomes["value"] += 1
        except wire.Malformed:
            outcomes["malformed"] += 1
        except EOFError:
            outcomes["end"] += 1
    assert min(outcomes.values()) > 100
    assert time.monotonic() - started < 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


@pytest.mark.parametrize("begin", [b"\x91", b"\x81", b"\x81\xa1a"], ids=["lists", "maps", "named maps"])
def test_depth_without_end_is_malformed(begin: bytes) -> None:
    """A million levels are malformed."""
    record = begin * 1_000_000
    header = wire.ANSWER.pack(wire.MAGIC, wire.RESULT, NUMBER, 1, len(record), 0, 0.0)
    with pytest.raises(wire.Malformed):
        received(header + b"\x90" + record, Any)


def test_an_answer_and_its_seal_may_arrive_at_once_and_nothing_behind_them() -> None:
    """An answer and its seal are accepted however the bytes are cut; nothing may follow them."""
    answer, seal = sent(Some("returned", {"a": np.arange(20000.0)})), b"".join(wire.sealed(NUMBER))
    for data, right in ((answer + seal, True), (answer + seal + b"x", False), (answer + answer, False)):
        ours, theirs = socket.socketpair()
        line = wire.Line(ours, LARGEST)

        def wait(events: int, line: wire.Line = line) -> int:
            return line.ready(events, 1.0)

        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data) + 1)
        theirs.sendall(data)
        assert line.receive(wait, followed=True).read(Some).results["a"][-1] == 19999
        if right:
            assert line.receive(wait).kind == wire.SEALED
            line.unasked()
        elif data.endswith(b"x"):
            with pytest.raises(wire.Malformed, match="more bytes"):
                line.receive(wait)
        else:
            assert line.receive(wait).kind == wire.RESULT
        line.close()
        theirs.close()
