"""The result file: JSON lines, a header first, one line per result, a footer last.

Lines are written as they come, so that a run that is killed leaves what it measured; the footer's counts
show that nothing is missing.  The schema is ``results.schema.json``.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from conformance import SPEC_VERSION
from conformance.outcomes import Failure, Outcome, Result
from conformance.result_lines import FORMAT, ResultFileError, WrongCounts, WrongFields, lines

__all__ = ["ResultFileError", "Run", "Writer", "as_record", "fingerprint", "from_record", "read"]

#: What has to be text for a table to be made of it.
_TEXTS = ("implementation", "device", "dtype", "case", "reason", "looks", "message")


@dataclass(frozen=True)
class Run:
    """A result file, read: what ran where, and every result."""

    header: dict[str, Any]
    results: tuple[Result, ...]
    #: False if the footer is missing: the run was cut off.
    complete: bool
    #: What explains failures, as the footer has it.
    diagnoses: tuple[Mapping[str, Any], ...] = ()


class Writer:
    """Writes a result file line by line.  A context manager; the footer is written when it is left."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._counts: Counter[str] = Counter()
        self._line({"kind": "header", "format": FORMAT, "spec": SPEC_VERSION, **header})

    def write(self, result: Result) -> None:
        """Add one result, at once."""
        self._counts[result.outcome.value] += 1
        self._line({"kind": "result", **as_record(result)})

    def close(self, *, complete: bool = True, diagnoses: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the footer, unless results are missing, and close the file."""
        if self._file.closed:
            return
        if complete:
            counts = dict(sorted(self._counts.items()))
            self._line({"kind": "footer", "counts": counts, "diagnoses": list(diagnoses)})
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=kind is None)

    def _line(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()


def as_record(result: Result) -> dict[str, Any]:
    """A result as plain data, which JSON can hold."""
    record = dict(vars(result))  # flat; dataclasses.asdict would copy 50,000 results for seconds
    record["share"] = _finite_or_text(result.share)
    if not result.remarks:
        del record["remarks"]
    return record


def from_record(record: Mapping[str, Any]) -> Result:
    """The result that became this data.  Raises KeyError, TypeError or ValueError for data that is none."""
    fields = dict(record)
    fields["outcome"] = Outcome(fields["outcome"])
    fields["failure"] = None if fields["failure"] is None else Failure(fields["failure"])
    fields["share"] = None if fields["share"] is None else float(fields["share"])
    fields["clauses"], fields["meets"] = tuple(fields["clauses"]), tuple(fields["meets"])
    fields["remarks"] = tuple(fields.get("remarks", ()))
    result = Result(**fields)
    _check(result)
    return result


def _check(result: Result) -> None:
    for name in _TEXTS:
        if not isinstance(getattr(result, name), str):
            raise TypeError(f"{name} is no text")
    if not all(isinstance(one, str) for one in (*result.clauses, *result.meets, *result.remarks, result.broken or "")):
        raise TypeError("a clause or a profile is no text")
    if result.share is not None and not result.share >= 0:
        raise ValueError(f"share is {result.share}")
    if not (0 <= result.run_seconds < math.inf and 0 <= result.prepare_seconds < math.inf):
        raise ValueError("seconds are not a finite, non-negative number")


def fingerprint() -> dict[str, Any]:
    """The machine and the interpreter that a run was made with, for its header."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def read(path: Path) -> Run:
    """Read a result file.  Raises a ResultFileError, named after the first thing wrong, with the file and line."""
    records = lines(path)
    _, header = next(records, (1, {"kind": "nothing"}))
    if header["kind"] != "header":
        raise WrongFields(f"{path} is not a conformance result file: its first line is not a header")
    results, footer = [], None
    for number, record in records:
        if record["kind"] == "header" or footer is not None:
            raise WrongFields(f"{path}, line {number}: a {record['kind']} where none can be")
        if record["kind"] == "footer":
            footer = record
        else:
            results.append(from_record({name: value for name, value in record.items() if name != "kind"}))
    if footer is None:
        return Run(header, tuple(results), complete=False)
    if footer["counts"] != dict(Counter(result.outcome.value for result in results)):
        raise WrongCounts(f"{path} has {len(results)} results, its footer counts {footer['counts']}")
    return Run(header, tuple(results), complete=True, diagnoses=tuple(footer.get("diagnoses", ())))


def _finite_or_text(share: float | None) -> float | str | None:
    """JSON has no infinity: an infinite share is the text "inf"."""
    return share if share is None or math.isfinite(share) else str(share)
