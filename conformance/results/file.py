"""Result file, written: JSON lines, a header first, one line per result, a footer last.

Lines are written as results arrive, so that a killed run leaves what it measured; the footer's counts show that nothing
is missing.  The schema is ``results.schema.json``.
"""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from attention_conformance.conformance import SPEC_VERSION
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.results.parse import FORMAT, as_record


class Writer:
    """Writes a result file line by line.  A context manager that writes the footer on exit."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._counts: Counter[str] = Counter()
        self._line({"kind": "header", "format": FORMAT, "spec": SPEC_VERSION, **header})

    def write(self, result: Result) -> None:
        """Write one result immediately.

        Parameters
        ----------
        result
            Result of one case.
        """
        self._counts[result.outcome.value] += 1
        self._line({"kind": "result", **as_record(result)})

    def close(self, *, complete: bool = True, diagnoses: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the footer, unless results are missing, and close the file.

        Parameters
        ----------
        complete
            Whether no result is missing.
        diagnoses
            Diagnoses for the footer.
        """
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


def rewrite(
    path: Path, header: Mapping[str, Any], results: Iterable[Result], diagnoses: Sequence[Mapping[str, Any]]
) -> None:
    """Replace a file with a complete one whose lines are in order; no reader sees half of it.

    Parameters
    ----------
    path
        Path of the file to replace.
    header
        The first line.
    results
        The lines after it.
    diagnoses
        Diagnoses for the footer.
    """
    other = path.with_name(f"{path.name}.sorted")
    writer = Writer(other, header)
    for result in results:
        writer.write(result)
    writer.close(diagnoses=diagnoses)
    other.replace(path)


def one_by_one(lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of a valid result file, with results by column as single results.

    Parameters
    ----------
    lines
        Records as a file has them.

    Yields
    ------
    dict[str, Any]
        Header, results and footer.
    """
    for line in lines:
        if line["kind"] == "results":
            names = list(line["columns"])
            for values in zip(*line["columns"].values(), strict=True):
                yield {"kind": "result", **dict(zip(names, values, strict=True))}
        else:
            yield dict(line)


def by_column(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of a result file with all results in one, by column, which is half as large when compressed.

    Parameters
    ----------
    lines
        Header, results and footer, as a file has them.

    Returns
    -------
    list[dict[str, Any]]
        Header, columns and footer.
    """
    kept: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for line in one_by_one(lines):
        (results if line["kind"] == "result" else kept).append(line)
    absent: dict[str, Any] = {"side_effects": [], "sizes": []}
    names = dict.fromkeys(name for result in results for name in result if name != "kind")
    columns = {name: [{**absent, **result}[name] for result in results] for name in names}
    return [*kept[:1], {"kind": "results", "columns": columns}, *kept[1:]] if results else kept


def fingerprint() -> dict[str, Any]:
    """The machine and the interpreter that a run was made with, for its header.

    Returns
    -------
    dict[str, Any]
        JSON values by name.
    """
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
