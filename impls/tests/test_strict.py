"""Strict JSON: text that two readers could read differently is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attention_conformance.impls.strict import DuplicateKey, NotANumber, NotJson, StrictError, loads

#: Refused texts, with the error and its message.
REFUSED: dict[str, tuple[str | bytes, type[StrictError], str]] = {
    "nothing": ("", NotJson, "not JSON (Expecting value, line 1)"),
    "an error in the second line": ("[1,\n}", NotJson, "not JSON (Expecting value, line 2)"),
    "a deep nest": ("[" * 100_000, NotJson, "nested too deeply"),
    "a long integer": ("1" * 5_000, NotJson, "not JSON (Exceeds the limit"),
    "Latin-1": ('"\u00e9"'.encode("latin-1"), NotJson, "not JSON ('utf-8' codec can't decode"),
    "UTF-16": ("{}".encode("utf-16"), NotJson, "not JSON ('utf-8' codec can't decode"),
    "a key twice": ('{"a": 1, "b": 2, "a": 1}', DuplicateKey, "the key 'a' appears twice in one object"),
    "a key twice inside": ('[{"a": {"b": 1, "\\u0062": 2}}]', DuplicateKey, "the key 'b' appears twice in one object"),
    "NaN": ("[NaN]", NotANumber, "NaN is no number"),
    "an infinity": ("-Infinity", NotANumber, "-Infinity is no number"),
    "more than a float64": ("1e999", NotANumber, "1e999 is no number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_strict_is_refused(what: str) -> None:
    """Each error has its own type and a short reason."""
    text, error, said = REFUSED[what]
    with pytest.raises(error) as caught:
        loads(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, null, true], "b": {"a": "\u00e9"}}', "[]", "1e308"])
def test_what_is_strict_is_read(text: str) -> None:
    """Strict text or bytes are read as json reads them."""
    value: Any = loads(text)
    assert value == loads(text.encode())
    assert repr(value) == repr(json.loads(text))


def test_infinities_are_numbers_where_they_are_wanted() -> None:
    """Infinities are read with ``finite=False``; duplicate keys are still refused."""
    assert loads('{"a": [Infinity, 1e999]}', finite=False) == {"a": [float("inf"), float("inf")]}
    with pytest.raises(DuplicateKey):
        loads('{"a": NaN, "a": NaN}', finite=False)
