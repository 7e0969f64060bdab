"""Checkpoint of a run: its measurements, a line for each process run of a cell, written when it ends.

A run that is killed leaves ``FILE.checkpoint.jsonl`` next to the JSON that it would have written.  ``--resume`` reads
it and continues.  The first line describes the run; a file of another plan, machine, version or code is refused, and so
is every damaged line but the last, which may have been cut off by the kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta

from attention_conformance.bench.records import Amount, Count, Kind, Positive
from attention_conformance.bench.validity.outcomes import MEASURED, Outcome, ProcessRun
from attention_conformance.impls import strict
from attention_conformance.impls.contract import Implementation, InputError

FORMAT = 3
SUFFIX = ".checkpoint.jsonl"

#: Most characters of a line: 1500 samples of 25 characters are 40,000.
LONGEST = 2**24


class CheckpointError(InputError):
    """A checkpoint that cannot be resumed; the text is one sentence for the user."""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of a process run: the fields of a ProcessRun."""

    batches: Annotated[tuple[Annotated[tuple[Positive, ...], Meta(min_length=1)], ...], Meta(min_length=1)]
    share: Amount
    prepare_seconds: Amount
    first_call_seconds: Amount
    peak_rss_bytes: int | None
    held_rss_bytes: int | None
    threads: Count
    stopped: str
    clock: str
    host_seconds: Amount | None
    evicted_bytes: Count
    unstable: tuple[str, str] | None = None


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="process run"):
    """Line of a checkpoint: a cell in a process run; ``measured`` if it was timed."""

    cell: str
    process_run: Count
    outcome: Kind
    clause: str
    reason: str
    measured: Measured | None


def checkpoint_of(path: Path) -> Path:
    """The checkpoint of a run that writes its JSON to ``path``."""
    return path.with_name(path.name + SUFFIX)


class Checkpoint:
    """Writes the lines of a run.  Each is on the disk before the next cell is measured."""

    def __init__(self, path: Path, header: Mapping[str, Any], known: Mapping[str, Outcome] | None = None) -> None:
        """Begin a checkpoint, or continue one with ``known`` (the result of ``read``)."""
        self.path = path
        if known is None:
            self._file: IO[str] = path.open("x", encoding="utf-8")
            self._write({"kind": "header", "format": FORMAT, **header})
        else:
            with path.open("rb+") as whole:
                whole.truncate(_complete(path))
            self._file = path.open("a", encoding="utf-8")

    def add(self, cell: str, outcome: Outcome, process_run: int) -> None:
        """Add the outcome of a cell in this process run (0 the first)."""
        last = Measured(**vars(outcome.process_runs[-1])) if outcome.kind in MEASURED else None
        self._write(msgspec.to_builtins(Line(cell, process_run, outcome.kind, outcome.clause, outcome.reason, last)))  # type: ignore[arg-type]

    def remove(self) -> None:
        """Remove the file: the run is complete, and its JSON is written."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path, header: Mapping[str, Any]) -> dict[str, Outcome]:
    """Outcomes in a checkpoint, by the id of the cell.  Raises CheckpointError unless its run is like this one."""
    try:
        lines = list(_lines(path))
    except FileNotFoundError:
        raise CheckpointError(f"nothing to resume: there is no {path}") from None
    if not lines:
        raise CheckpointError(f"{path} holds no complete line; delete it and start again")
    _compare(path, lines[0], {"kind": "header", "format": FORMAT, **header})
    known: dict[str, Outcome] = {}
    for number, found in enumerate(lines[1:], start=2):
        try:
            line = msgspec.convert(found, Line)
            outcome = known.get(line.cell, Outcome())
            if line.cell not in header["cells"] or line.process_run != len(outcome.process_runs):
                raise ValueError("it does not follow from the lines before")
            known[line.cell] = _outcome(line, outcome)
        except ValueError as error:  # msgspec's exceptions are ValueErrors
            raise CheckpointError(f"{path}, line {number} is no process run of this run ({error})") from None
    return known


def code(implementations: Iterable[Implementation]) -> dict[str, str]:
    """SHA-256 of the file of each implementation that names one, by name; files that it imports are not covered."""
    files = {one.name: Path(one.target.rpartition(":")[0]) for one in implementations}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sorted(files.items())
        if path.suffix == ".py" and path.is_file()
    }


def seed_of(path: Path) -> int:
    """The seed in the plan of a run to be resumed; 0 for a file that is not a checkpoint."""
    with contextlib.suppress(OSError, CheckpointError, LookupError, TypeError):
        seed = next(_lines(path), {})["plan"]["seed"]
        return seed if isinstance(seed, int) else 0
    return 0


def _outcome(line: Line, earlier: Outcome) -> Outcome:
    if earlier.kind not in MEASURED:
        raise ValueError("the cell had ended")
    if line.outcome not in MEASURED:
        return replace(earlier, kind=line.outcome, clause=line.clause, reason=line.reason)
    if line.measured is None:
        raise ValueError("it is timed, and nothing was measured")
    return earlier.with_run(ProcessRun(**msgspec.structs.asdict(line.measured)))


def _compare(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    differing = [name for name in expected if found.get(name) != expected[name]]
    if differing:
        raise CheckpointError(
            f"{path} is of another run: {', '.join(differing)} differ{'s' if len(differing) == 1 else ''};"
            " give the options of that run, or delete it and start again"
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines.  Raises CheckpointError for one that is not a strict JSON object."""
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
                raise CheckpointError(f"{path}, line {number} is damaged ({error})") from None
            yield line


def _complete(path: Path) -> int:
    """Bytes up to the end of the last complete line; the rest was being written when the run was killed."""
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
