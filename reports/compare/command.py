"""The command ``compare BASE NEW``: its arguments, and the exit status that a CI job goes by."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from attention_conformance.impls import compressed
from attention_conformance.reports.compare import pages
from attention_conformance.reports.compare import rules as rulebook
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import Records, ReportError

#: Endings of result files, compressed or not; a folder means all such files in it.
ENDINGS = (".json", ".jsonl")


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``compare``.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    parser.description = "What changed between two runs: conformance, accuracy, times, memory, cells."
    parser.epilog = "Exit status: 0 nothing is worse, 1 something is worse, 2 cannot tell (unfit or damaged input)."
    side = "result files with commas between them, a model.json, or a folder of result files"
    parser.add_argument("base", metavar="BASE", help=side)
    parser.add_argument("new", metavar="NEW", help="the same for the new run, which is judged")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="thresholds and what to ignore, as TOML")
    parser.add_argument(
        "--across-machines",
        default="",
        metavar="YARDSTICK",
        help="compare times as multiples of those of this implementation, which both runs timed",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a comment for a pull request")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")


def run(
    base: str, new: str, rules: Path | None, across_machines: str, markdown: Path | None, json: Path | None
) -> tuple[str, int]:
    """Compare and write the files; status 0: nothing is worse, 1: something is, 2: cannot tell.

    Parameters
    ----------
    base
        Result files with commas between them, a model.json, or a folder.
    new
        The same, of the run that is judged.
    rules
        A file of thresholds and of what to ignore.
    across_machines
        The implementation that times are taken relative to; "" to compare seconds.
    markdown
        Path of the comment.
    json
        Path of the JSON file, which has everything.

    Returns
    -------
    tuple[str, int]
        The terminal's text, and the exit status.

    Raises
    ------
    ReportError
        For files that cannot be used.
    """
    known = rulebook.read(rules) if rules else None
    found = compare(records(base), records(new), known, across_machines)
    pages.write(found, markdown, json)
    return pages.terminal(found).rstrip("\n"), found.status.value


def records(text: str) -> Records:
    """The records of one side.

    Parameters
    ----------
    text
        Result files with commas between them, a model.json, or a folder.

    Returns
    -------
    Records
        Records that the files hold.

    Raises
    ------
    ReportError
        For a folder without result files, a text that names no file, and a file that ``read`` refuses.
    """
    # These two accept any text: a list of many files may be longer than a file system allows for a name.
    if os.path.isfile(text):
        return read([Path(text)])
    if os.path.isdir(text):
        files = sorted(path for path in Path(text).iterdir() if compressed.kind(path) in ENDINGS)
        if not files:
            raise ReportError(f"{text} has no result file: none ends with {' or '.join(ENDINGS)}")
        return read(files)
    parts = [Path(part) for part in text.split(",") if part]
    if not parts:
        raise ReportError(f"no result file is named: {text!r}")
    return read(parts)
