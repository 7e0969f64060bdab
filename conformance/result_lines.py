"""Lines of a result file that is not trusted: bounded sizes, strict JSON, fields of the right kind, or a named error.

Result files come from other machines, by e-mail and from the web.  They are read as data, and nothing in them is run.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.outcomes import Failure, Outcome
from conformance.vectors import errors
from conformance.vectors.documents import parse
from impls.contract import DTYPES, Profile

#: Version of the format of result files.
FORMAT = 1

#: Bytes of the largest line and file that are read.  The published run of all implementations has lines of up to 6 kB
#: and 6 MB in all; its footer grows with the failures.
LINE_LIMIT, FILE_LIMIT = 1 << 24, 1 << 30


class ResultFileError(ValueError):
    """A result file that cannot be used; the text is one sentence with the file and the line."""

    def __init__(self, text: str) -> None:
        super().__init__(errors.plain(text))


class Unreadable(ResultFileError):
    """A file that is missing, is no regular file, or is no text."""


class TooLarge(ResultFileError):
    """A file, or a line of one, that is larger than any that a run writes."""


class NotJson(ResultFileError):
    """A line that is not JSON in UTF-8, or nests too deep."""


class DuplicateKey(ResultFileError):
    """An object with a key twice, of which readers would disagree which one counts."""


class NotANumber(ResultFileError):
    """NaN, an infinity, or a number beyond float64."""


class WrongFields(ResultFileError):
    """A field that is missing, unknown, or not of its kind."""


class WrongFormat(ResultFileError):
    """A file of another version of the format."""


class WrongCounts(ResultFileError):
    """Fewer or more results than the footer counts."""


Kind = Callable[[Any], bool]


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the record of each line; one that was cut off while it was written is left out."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{path} cannot be read: it is not a regular file")
        if status.st_size > FILE_LIMIT:
            raise TooLarge(f"{path} has {status.st_size} bytes, at most {FILE_LIMIT} are read")
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT + 1), b""), 1):
                if len(line) > LINE_LIMIT:
                    raise TooLarge(f"{path}, line {number} has more than {LINE_LIMIT} bytes")
                if line.endswith(b"\n"):
                    yield number, _record(line, f"{path}, line {number}")
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from None


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = parse(line, where)
    except errors.NotJson as error:
        raise NotJson(f"{where}: not JSON ({str(error).removeprefix(f'{where} is not JSON: ')})") from None
    except errors.DuplicateKey as error:
        raise DuplicateKey(str(error)) from None
    except errors.NotANumber as error:
        raise NotANumber(str(error)) from None
    if not isinstance(record, dict) or record.get("kind") not in tuple(_FIELDS):
        raise WrongFields(f"{where}: expected a header, result or footer record")
    if record["kind"] == "header" and record.get("format") != FORMAT:
        raise WrongFormat(f"{where} has format {_shown(record.get('format'))}, expected {FORMAT}")
    fields, needed = _FIELDS[record["kind"]]
    for name in needed:
        if name not in record:
            raise WrongFields(f"{where}: not a {record['kind']} (it lacks {name!r})")
    for name, value in record.items():
        kind = fields.get(name)
        if kind is None and record["kind"] != "header":  # later versions of this suite may say more of a run
            raise WrongFields(f"{where}: not a {record['kind']} (it has the unknown field {name!r})")
        if kind is not None and not kind(value):
            raise WrongFields(f"{where}: not a {record['kind']} ({name!r} is {_shown(value)})")
    return record


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__} that begins with {text[:50]}"


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _line(value: Any) -> bool:
    """What tables and messages are made of: nothing that a terminal obeys."""
    return isinstance(value, str) and value.isprintable()


def _name(value: Any) -> bool:
    return _line(value) and value != ""


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _share(value: Any) -> bool:
    return value is None or value == "inf" or _seconds(value)


def _one_of(*values: Any) -> Kind:
    return lambda value: (value is None or isinstance(value, str)) and value in values


def _list(kind: Kind) -> Kind:
    return lambda value: isinstance(value, list) and all(kind(each) for each in value)


def _by_name(kind: Kind) -> Kind:
    return lambda value: isinstance(value, dict) and all(_name(name) and kind(each) for name, each in value.items())


def _object(**fields: Kind) -> Kind:
    return lambda value: (
        isinstance(value, dict) and value.keys() == fields.keys() and all(kind(value[n]) for n, kind in fields.items())
    )


_EXPLANATION = _object(faults=_list(_name), title=_text, cases=_list(_name))
_DIAGNOSIS: Mapping[str, Kind] = {
    "implementation": _name,
    "device": _name,
    "failures": _count,
    "explanations": _list(_EXPLANATION),
}

#: The kinds of records: what their fields are, and which they need.
_FIELDS: Mapping[str, tuple[Mapping[str, Kind], tuple[str, ...]]] = {
    "header": (
        {
            "kind": _text,
            "format": _count,
            "spec": _name,
            "started": _line,
            "machine": _line,
            "system": _line,
            "python": _line,
            "versions": _by_name(_name),
            "shard": _name,
            "ledgers": _list(_object(file=_name, records=_count, crc32=_name)),
            "not_installed": _list(_name),
            "profiles": _by_name(_one_of(*Profile)),
            "adapters": _list(_object(implementation=_name, device=_name, text=_text)),
        },
        ("format", "spec"),
    ),
    "result": (
        {
            "kind": _text,
            "implementation": _name,
            "device": _name,
            "dtype": _one_of(*DTYPES),
            "case": _name,
            "clauses": _list(_name),
            "outcome": _one_of(*Outcome),
            "failure": _one_of(None, *Failure),
            "broken": lambda value: value is None or _text(value),
            "reason": _text,
            "looks": _text,
            "message": _text,
            "profile": _one_of(None, *Profile),
            "meets": _list(_one_of(*Profile)),
            "share": _share,
            "run_seconds": _seconds,
            "prepare_seconds": _seconds,
            "remarks": _list(_text),
        },
        ("implementation", "device", "dtype", "case", "clauses", "outcome", "failure", "meets", "share"),
    ),
    "footer": (
        {
            "kind": _text,
            "counts": _by_name(_count),
            "diagnoses": _list(
                lambda value: _object(**_DIAGNOSIS)(value) or _object(**_DIAGNOSIS, shared=_list(_text))(value)
            ),
        },
        ("counts",),
    ),
}
