"""The journal of a run: what was measured, a line for each visit of a cell, written when it ends.

A run that is killed leaves ``FILE.journal.jsonl`` beside the JSON that it would have written.  ``--resume`` reads it
and goes on.  The first line says what the run is; one of another plan, machine or version is refused, and so is
every damaged line but the last, which may have been cut off by the kill.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from bench.outcomes import NOT_TIMED, STRUCK_OUT, TIMED, Outcome, Visit
from conformance import strict

FORMAT = 1
SUFFIX = ".journal.jsonl"

#: Fields of a visit that are text.
TEXTS = ("stopped", "clock")

#: Characters of a line at most: 1500 samples of 25 characters are 40,000.
LONGEST = 2**24


class JournalError(Exception):
    """A journal that cannot be gone on with; the text is one sentence for the user."""


def beside(path: Path) -> Path:
    """The journal of a run that writes its JSON to ``path``."""
    return path.with_name(path.name + SUFFIX)


class Journal:
    """Writes the lines of a run.  Each is on the disk before the next cell is measured."""

    def __init__(self, path: Path, header: Mapping[str, Any], known: Mapping[str, Outcome] | None = None) -> None:
        """Begin a journal, or with ``known`` (what ``read`` gave) go on with one."""
        self.path = path
        if known is None:
            self._file: IO[str] = path.open("x", encoding="utf-8")
            self._write({"kind": "header", "format": FORMAT, **header})
        else:
            with path.open("rb+") as whole:
                whole.truncate(_complete(path))
            self._file = path.open("a", encoding="utf-8")

    def add(self, cell: str, outcome: Outcome, visit: int) -> None:
        """What became of a cell in this visit (0 the first)."""
        last = dataclasses.asdict(outcome.visits[-1]) if outcome.kind == TIMED else None
        said = {"outcome": outcome.kind, "clause": outcome.clause, "reason": outcome.reason}
        self._write({"kind": "visit", "cell": cell, "visit": visit, **said, "measured": last})

    def remove(self) -> None:
        """The run is complete, and its JSON is written."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path, header: Mapping[str, Any]) -> dict[str, Outcome]:
    """What a journal has of each cell, by its id.  Raises JournalError unless it is one of a run like this one."""
    try:
        lines = list(_lines(path))
    except FileNotFoundError:
        raise JournalError(f"nothing to resume: there is no {path}") from None
    if not lines:
        raise JournalError(f"{path} holds no complete line; delete it and start anew")
    _compare(path, lines[0], {"kind": "header", "format": FORMAT, **header})
    known: dict[str, Outcome] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            cell, outcome = line["cell"], known.get(line["cell"], Outcome())
            if line["kind"] != "visit" or cell not in header["cells"] or line["visit"] != len(outcome.visits):
                raise ValueError("it does not follow from the lines before")
            known[cell] = _outcome(line, outcome)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"{path}, line {number} is no visit of this run ({error})") from None
    return known


def _outcome(line: Mapping[str, Any], earlier: Outcome) -> Outcome:
    if earlier.kind != TIMED:
        raise ValueError("the cell had ended")
    if line["outcome"] == TIMED:
        return earlier.visited(_visit(line["measured"]))
    if line["outcome"] not in (STRUCK_OUT, NOT_TIMED):
        raise ValueError(f"unknown outcome {line['outcome']!r}")
    return dataclasses.replace(earlier, kind=line["outcome"], clause=str(line["clause"]), reason=str(line["reason"]))


def _visit(measured: Mapping[str, Any]) -> Visit:
    chunks = tuple(tuple(chunk) for chunk in measured["chunks"])
    numbers = [value for chunk in chunks for value in chunk]
    if not numbers or not all(isinstance(value, float) and 0 < value < math.inf for value in numbers):
        raise ValueError("samples have to be positive numbers")
    for name, value in measured.items():
        if name != "chunks" and not isinstance(value, str if name in TEXTS else (int, float, type(None))):
            raise ValueError(f"{name} has another type")
    return Visit(**{**measured, "chunks": chunks})


def _compare(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    differing = [name for name in expected if found.get(name) != expected[name]]
    if differing:
        raise JournalError(
            f"{path} is of another run: {', '.join(differing)} differ{'s' if len(differing) == 1 else ''};"
            " give the options of that run, or delete it and start anew"
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines.  Raises JournalError for one that is not a strict JSON object."""
    end = _complete(path)
    with path.open("rb") as file:
        number = 0
        while file.tell() < end:
            number += 1
            text = file.readline(LONGEST)
            try:
                line = strict.loads(text)
                if not isinstance(line, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                raise JournalError(f"{path}, line {number} is damaged ({error})") from None
            yield line


def _complete(path: Path) -> int:
    """Bytes up to the end of the last complete line; what follows was being written when the run was killed."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position:
            step = min(position, 2**16)
            file.seek(position - step)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                return position - step + found + 1
            position -= step
    return 0
