"""``attention-conformance report``: a report from result files, a comparison, a history, and the schemas of what is written."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports import outputs, publish, schemas
from attention_conformance.reports.compare import agreement, rules
from attention_conformance.reports.compare import command as compare
from attention_conformance.reports.compare import compare as comparing
from attention_conformance.reports.history import command as history
from attention_conformance.reports.input.read import ReportError, read
from attention_conformance.reports.model import model

#: Exit status where a file cannot be used, as argparse has for an argument.
UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the first word asks for; without one of COMMANDS the words are files to report on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(given[0]) if given else None
    try:
        return command(given[1:]) if command else report(given)
    except (ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


def report(arguments: Sequence[str]) -> int:
    """Read the files, write the report, print where it is."""
    parser = argparse.ArgumentParser(
        prog="attention-conformance report",
        description="Write a report from result files of `pytest conformance --conformance-json FILE`,"
        " `pytest bench --benchmark-json FILE` and `attention-conformance kill-matrix -o FILE`, or from a model.json.",
        epilog="Also: attention-conformance compare BASE NEW, agree ONE OTHER, history FOLDER, publish and schema;"
        " each has its own --help.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a result file of any kind")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write, made if missing"
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=list(outputs.FORMATS),
        help=f"what to write; repeatable (default: {', '.join(outputs.DEFAULT)})",
    )
    parser.add_argument(
        "--base", metavar="BASE", help="a run to compare with, as `attention-conformance compare` has it"
    )
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="thresholds and what to ignore in that, as TOML; needs --base"
    )
    given = parser.parse_args(arguments)
    if given.rules and not given.base:
        parser.error("--rules is about a comparison: it needs --base")
    known = rules.read(given.rules) if given.rules else None
    records = read(given.files)
    since = comparing.compare(compare.records(given.base), records, known) if given.base else None
    whole = model.Model(records, clauses(), since)
    formats = given.format or outputs.DEFAULT
    if not given.format and outputs.left_out():
        print(outputs.left_out(), file=sys.stderr)
        formats = [name for name in formats if name != "html"]
    print(*outputs.written(whole, given.output, formats), sep="\n")
    return 0


def schema(arguments: Sequence[str]) -> int:
    """Print the JSON schema of model.json, of what a comparison writes, of history.json, or of a bench file."""
    parser = argparse.ArgumentParser(prog="attention-conformance schema", description=schema.__doc__)
    parser.add_argument(
        "of", nargs="?", choices=list(schemas.DOCUMENTS), default="report", help="(default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="regenerate the files of all of them instead")
    given = parser.parse_args(arguments)
    print(*schemas.write(), sep="\n") if given.write else print(schemas.schema(given.of), end="")
    return 0


#: First words that are no file.
COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "schema": schema,
    "compare": compare.main,
    "agree": agreement.main,
    "publish": publish.main,
    "history": history.main,
}


if __name__ == "__main__":
    gc.disable()  # files become millions of small objects without cycles: looking for those took a third of the time
    raise SystemExit(main())
