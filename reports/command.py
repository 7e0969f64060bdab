"""The command ``report``: a report from result files; and the schemas of what is written."""

from __future__ import annotations

import argparse
from pathlib import Path

from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls.checkout import writable
from attention_conformance.impls.process.allocator import without_gc
from attention_conformance.reports import outputs, schemas
from attention_conformance.reports.compare import command as compare
from attention_conformance.reports.compare.compare import compare as compared
from attention_conformance.reports.compare.rules import read as read_rules
from attention_conformance.reports.input import places
from attention_conformance.reports.input.read import ReportError, read
from attention_conformance.reports.model import model


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``report``."""
    parser.description = (
        "Write a report from result files of `attention-conformance check --conformance-json FILE`, `bench"
        " --benchmark-json FILE` and `kill-matrix -o FILE`, or from a model.json."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a result file of any kind, a folder of them, or a glob"
    )
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write, made if missing"
    )
    parser.add_argument(
        "--format",
        dest="formats",
        action="append",
        choices=list(outputs.FORMATS),
        help=f"what to write; repeatable (default: {', '.join(outputs.DEFAULT)})",
    )
    parser.add_argument("--base", metavar="BASE", help="a run to compare with, as `compare` has it")
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="thresholds and what to ignore in that, as TOML; needs --base"
    )


def run(files: list[Path], output: Path, formats: list[str] | None, base: str | None, rules: Path | None) -> str:
    """Read the files, write the report and return its paths.  Raises ReportError for a file that cannot be used."""
    if rules and not base:
        raise ReportError("--rules is about a comparison: it needs --base")
    # Files become millions of small objects without reference cycles: the search for cycles took a third of the time.
    with without_gc():
        known = read_rules(rules) if rules else None
        records = read(places.files_of(files))
        since = compared(compare.records(base), records, known) if base else None
        whole = model.Model(records, clauses(), since)
        return "\n".join(map(str, outputs.written(whole, output, formats or outputs.DEFAULT)))


def schema_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``schema``."""
    parser.add_argument(
        "of", nargs="?", choices=list(schemas.DOCUMENTS), default="report", help="(default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="regenerate the files of all of them instead")


def schema(of: str, write: bool) -> str:
    """The JSON schema of model.json, of what a comparison writes, of history.json, or of a bench file."""
    if write:
        writable(schemas.FOLDER)
    return "\n".join(map(str, schemas.write())) if write else schemas.schema(of).rstrip("\n")
