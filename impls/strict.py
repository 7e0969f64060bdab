"""Strict JSON and typed records from untrusted files: the checks that msgspec leaves open, in one place.

``loads`` refuses duplicate keys, numbers that are not finite and deep nesting, ``convert`` makes typed records of the
value, and ``schema`` is the JSON schema of their types.  ``impls/compressed.py`` bounds sizes and decompresses files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from attention_conformance.impls.contract import InputError

#: Characters of a sentence that are kept.
LONGEST = 500

T = TypeVar("T")


def plain(text: str) -> str:
    """Text from a file that is safe to print: one line of bounded length, without terminal controls.

    Parameters
    ----------
    text
        Any text.

    Returns
    -------
    str
        One printable line.
    """
    line = " ".join(text.split())[:LONGEST]
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


class FileError(InputError, ValueError):
    """A file that cannot be used; the text is one sentence that names it, and a line in it."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text))


class Unreadable(FileError):
    """A file that is missing, is not a regular file, or cannot be read or decompressed."""


class TooLarge(FileError):
    """A file or line larger than the format allows."""


class WrongFields(FileError):
    """A field that is missing, unknown, or not what it should be."""


class WrongFormat(FileError):
    """A file of another version of the format."""


class StrictError(FileError):
    """A text that is not strict JSON, or not of its type; the text of the error is a short reason until it is named."""

    #: The reason as a sentence about what is named {0}; {1} is the error.
    SENTENCE: ClassVar = "{0}: {1}"

    def of(self, name: str) -> str:
        """The reason as a sentence about a file, or a part of one, with this name."""
        return self.SENTENCE.format(name, self)

    def named(self, name: str) -> Self:
        """The error itself, with that sentence as its text."""
        self.args = (plain(self.of(name)),)
        return self


class NotJson(StrictError):
    """Not JSON in UTF-8, nested too deeply, or an integer too long to read; ``reason`` is the decoder's message."""

    SENTENCE = "{0} is not JSON: {1.reason}"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class DuplicateKey(StrictError):
    """An object with a key twice: readers would disagree about which one counts."""

    SENTENCE = "{0} has the key {1.key!r} twice in one object"

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:80]!r} appears twice in one object")
        self.key = key


class NotANumber(StrictError):
    """NaN, an infinity, or a number beyond float64, as it was written."""

    SENTENCE = "{0} has the number {1.number}, which is not finite"

    def __init__(self, number: str) -> None:
        super().__init__(f"{number[:80]} is no number")
        self.number = number


class WrongType(StrictError):
    """A value that is not of its type: a field that is missing, unknown, or not what it should be."""


def loads(text: str | bytes, finite: bool = True) -> Any:
    """The value of a JSON text.

    Parameters
    ----------
    finite : whether NaN and infinities are refused.

    Returns
    -------
    Any
        Dictionaries, lists, texts and numbers.

    Raises
    ------
    StrictError : NotJson, DuplicateKey or NotANumber.
    """
    number = _finite if finite else None
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=_once, parse_float=number, parse_constant=number)
    except StrictError:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON ({error.msg}, line {error.lineno})", str(error)) from None
    except RecursionError as error:
        raise NotJson("nested too deeply", str(error)) from None
    except ValueError as error:  # not UTF-8, or an integer too long to read
        raise NotJson(f"not JSON ({error})", str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKey(next(name for name in names if names.count(name) > 1))
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotANumber(text)
    return value


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record of a file: no field is unknown, and texts are single printable lines.

    The texts of the fields in ``FREE`` may be any; code that prints them must make them safe.
    """

    FREE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name not in self.FREE and not all(text.isprintable() for text in _texts(getattr(self, name))):
                raise ValueError(f"{name!r} is {short_value(getattr(self, name))}, which is not plain text")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from _texts(item)
    elif isinstance(value, tuple):
        for each in value:
            yield from _texts(each)


def convert(value: Any, kind: type[T]) -> T:
    """Record of a type, from the value that ``loads`` gave.

    Parameters
    ----------
    value
        Value as ``loads`` gave it.
    kind
        A type of msgspec.

    Returns
    -------
    T
        The record.

    Raises
    ------
    WrongType
        The text names the field, "it" for the whole.
    """
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise WrongType(_error_sentence(str(error), value)) from None
    except RecursionError:
        raise WrongType("it is nested too deeply") from None


#: Message of msgspec, and its field: "Expected `str`, got `int` - at `$.ledgers[0].file`".
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)


#: Types as an engineer calls them.
_TYPES = {"str": "a text", "int": "an integer", "float": "a number", "bool": "true or false"}
_TYPES |= {"array": "a list", "object": "an object"}
_TYPE = re.compile(r"\b(?:" + "|".join(_TYPES) + r")\b")


def _error_sentence(message: str, value: Any) -> str:
    found = _MESSAGE.fullmatch(message)
    assert found is not None
    what, path = found["what"], found["path"] or ""
    field = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what, re.DOTALL)
    if field:
        return f"{path or 'it'} {'lacks' if 'missing' in field[1] else 'has the unknown field'} {field[2]!r}"
    if not re.match("Expected|Invalid|Integer", what):
        return f"{path}: {what}" if path else what  # a record's own check
    path = path.partition("[...]")[0]  # an entry that msgspec does not name
    for key, at in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(at)]
    said = f"{path!r} is {short_value(value)}" if path else f"it is {short_value(value)}"
    wanted = re.match(r"Expected (.*?)(?:, got .*)?$", what, re.DOTALL)
    return f"{said}, expected {_TYPE.sub(lambda name: _TYPES[name[0]], wanted[1]).replace('`', '')}" if wanted else said


def short_value(value: Any) -> str:
    """A wrong value in a sentence, cut where it is long.

    Parameters
    ----------
    value
        Any value.

    Returns
    -------
    str
        One line.
    """
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__} that begins with {text[:50]}"


def schema(title: str, *kinds: Any) -> dict[str, Any]:
    """The JSON schema (2020-12) of a value of one of these types.

    Parameters
    ----------
    title
        Title of the schema.
    kinds
        Types of msgspec; with several the value is of one of them.

    Returns
    -------
    dict[str, Any]
        JSON Schema, 2020-12.
    """
    references, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    one = {"oneOf": list(references)} if len(kinds) > 1 else dict(references[0])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **one, "$defs": parts}
