"""``attention-conformance publish``: the published results, compressed, and what is made of them, in one step.

A run's result files are kept as ``NAME.zst``, their samples and seconds with DIGITS digits: half a thousandth, where an
interval that is called narrow has two hundredths.  What is computed, as an error's share of its bound, keeps two more.
Page, summary and badges are made from what is kept, so that without files the command regenerates them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attention_conformance.conformance.results import strict
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls import compressed
from attention_conformance.reports.compare.command import records
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import ReportError, text_of
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.outputs import written

#: The published results, what they are made of in the order of the page, and the run that they are compared with.
FOLDER = Path(__file__).with_name("published")
NAMES = ("conformance.jsonl", "bench.json", "bench-half.json", "faults.json")
BASE = "base"

#: What is made of them.
FORMATS = ("html", "summary", "badges")

#: Digits of a sample, and the names of fields that hold samples.
DIGITS = 4
SAMPLES = ("data", "run_seconds", "prepare_seconds", "first_call_seconds", "host_seconds")

#: What is not kept of a case: the seconds of its single calls, which no page shows, and which are a third of the file.
UNKEPT = {"run_seconds": 0.0, "prepare_seconds": 0.0}


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``publish``."""
    parser.description = (
        "Keep the files that are given, and regenerate page, summary and badges from all that are kept."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"a new {', '.join(NAMES)}")
    parser.add_argument("--base", nargs="+", type=Path, default=(), metavar="FILE", help="the same of the base run")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, metavar="DIR", help="default: reports/published")


def run(files: Sequence[Path], base: Sequence[Path], output: Path) -> str:
    """Keep the files and regenerate; gives where.  Raises ReportError for a file of another name or kind."""
    unknown = [path.name for path in (*files, *base) if path.name not in NAMES]
    if unknown:
        raise ReportError(f"{', '.join(unknown)}: expected {', '.join(NAMES)}")
    keep(files, output)
    keep(base, output / BASE, messages=False)
    return "\n".join(map(str, written(model(output), output, FORMATS)))


def keep(files: Iterable[Path], folder: Path, *, messages: bool = True) -> list[Path]:
    """Write result files into a folder, compressed; the paths.  Raises ReportError for one that cannot be read.

    Of a run that others are compared with no page shows the messages.
    """
    paths = []
    for path in files:
        read([path])  # so that nothing is published that is no result file
        text = text_of(path)
        paths.append(folder / f"{path.name}{compressed.SUFFIX}")
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        compressed.write(paths[-1], "".join(_compact(line, messages=messages) for line in lines).encode())
    return paths


def kept(folder: Path = FOLDER) -> list[Path]:
    """The published result files."""
    return [path for name in NAMES if (path := folder / f"{name}{compressed.SUFFIX}").exists()]


def model(folder: Path = FOLDER) -> Model:
    """What the published files give, compared with the base run if there is one."""
    new = read(kept(folder))
    since = compare(records(str(folder / BASE)), new) if (folder / BASE).is_dir() else None
    return Model(new, clauses(), since)


def _compact(line: str, *, messages: bool) -> str:
    """A line of a conformance file, or a bench file, with shorter numbers."""
    rounded = _rounded(strict.loads(line), DIGITS + 2)
    if rounded.get("kind") == "result":
        rounded |= UNKEPT if messages else UNKEPT | {"message": ""}
    return json.dumps(rounded, separators=(",", ":"), allow_nan=False) + "\n"


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: _rounded(each, DIGITS if name in SAMPLES else digits) for name, each in value.items()}
    return [_rounded(each, digits) for each in value] if isinstance(value, list) else value
