"""``python -m reports FILE … -o DIR``: a Markdown page and CSV tables from result files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.clauses import clauses
from reports import divergence, faults, tables
from reports.markdown import page
from reports.reading import Records, ReportError, read

#: Exit status where a file cannot be used, as argparse has for an argument.
UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the files, write the report, print where it is.  Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m reports",
        description="Write report.md and CSV tables from result files of `pytest conformance --conformance-json FILE`,"
        " `pytest bench --benchmark-json FILE` and `python -m conformance faults -o FILE`.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a result file of either kind")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write, made if missing"
    )
    given = parser.parse_args(arguments)
    try:
        records = read(given.files)
        print(*written(records, given.output), sep="\n")
    except (ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    return 0


def written(records: Records, folder: Path) -> list[Path]:
    """Write the tables that there are records for, and the page; the paths, the page last."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {}
    if records.results:
        frame = tables.conformance(records.results)
        frames["conformance.csv"] = frame
        frames["answers.csv"] = divergence.answers(records.results).reset_index()
        frames["matrix.csv"] = tables.matrix(frame, clauses())
    if records.faults:
        frames["faults.csv"] = faults.frame(records.faults)
    if records.cells:
        frames["bench.csv"] = tables.bench(records.cells)
    for name, frame in frames.items():
        frame.to_csv(folder / name, index=False)
    report = folder / "report.md"
    report.write_text(page(records, clauses()), encoding="utf-8")
    return [*(folder / name for name in frames), report]


if __name__ == "__main__":
    raise SystemExit(main())
