"""``attention-conformance publish``: the published results, compressed, and what is made from them, in one step.

A run's result files are kept as ``NAME.zst``, reduced to what a reader can use.  Samples of the bench are exact to half
a thousandth, as an interval that is called narrow has two hundredths, and are sorted within a batch, as no figure shows
their order.  Computed numbers, such as an error's share of its bound, have six digits.  Paths in tracebacks begin at
the checkout or at the folder of the libraries.  Results are kept by column, without seconds, and those of the base run
without messages, as no page shows them.  Page, summary and badges are made from what is kept, so that without files the
command regenerates them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attention_conformance.conformance.results import by_column, one_by_one
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls import compressed, strict
from attention_conformance.impls.checkout import writable
from attention_conformance.reports.compare.command import records
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import ReportError, text_of
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.outputs import written

#: Folder of the published results, its files in the order of the page, and its folder of the base run.
FOLDER = Path(__file__).with_name("published")
NAMES = ("conformance.jsonl", "kernels.jsonl", "bench.json", "bench-half.json", "faults.json")
BASE = "base"

#: Formats that are made from them.
FORMATS = ("html", "summary", "badges")

#: Digits of computed numbers.
DIGITS = 6

#: Fields of a bench file that hold samples.
SAMPLES = ("data", "run_seconds", "prepare_seconds", "first_call_seconds", "host_seconds")

#: Folders in a path of a traceback that say where the suite or a library was, and not what ran.
PLACE = re.compile(
    r'(?<=File ")/(?:[^"\n]*/site-packages/|[^"\n]*/lib/(?=python3)|[^"\n]*?/(?=(?:impls|conformance)/))'
)

#: Fields of a case that are not kept: seconds of its single calls, which no page shows and are a third of the file.
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
    """Keep the files, regenerate what is made from them, and return the paths.

    Parameters
    ----------
    files
        Result files, by the names in NAMES.
    base
        Result files of the base run, which they are compared with.
    output
        The folder.

    Returns
    -------
    str
        Paths, a line each.

    Raises
    ------
    ReportError
        For a file of another name or kind.
    InputError
        If the output is a part of an installed package.
    """
    unknown = [path.name for path in (*files, *base) if path.name not in NAMES]
    if unknown:
        raise ReportError(f"{', '.join(unknown)}: expected {', '.join(NAMES)}")
    writable(output)
    keep(files, output)
    keep(base, output / BASE, is_base=True)
    return "\n".join(map(str, written(model(output), output, FORMATS)))


def keep(files: Iterable[Path], folder: Path, is_base: bool = False) -> list[Path]:
    """Write result files into a folder, compressed.

    Parameters
    ----------
    files
        Result files of one run.
    folder
        Folder where they are kept.
    is_base
        Whether they are of the base run, which is kept without messages.

    Returns
    -------
    list[Path]
        Paths of the kept files.

    Raises
    ------
    ReportError
        For a file that cannot be read.
    """
    paths = []
    for path in files:
        read([path])  # so that only result files are published
        text = text_of(path)
        paths.append(folder / f"{path.name}{compressed.SUFFIX}")
        if path.suffix == ".jsonl":
            short = by_column(_result(each, is_base) for each in one_by_one(map(strict.loads, text.splitlines())))
        else:
            short = [_bench(strict.loads(text))]
        lines = (json.dumps(each, separators=(",", ":"), allow_nan=False) + "\n" for each in short)
        compressed.write(paths[-1], "".join(lines).encode())
    return paths


def published_files(folder: Path = FOLDER) -> list[Path]:
    """The published result files.

    Parameters
    ----------
    folder
        Folder of the published run, by default ours.

    Returns
    -------
    list[Path]
        Paths of the files that are there.
    """
    return [path for name in NAMES if (path := folder / f"{name}{compressed.SUFFIX}").exists()]


def model(folder: Path = FOLDER) -> Model:
    """Model of the published files, compared with the base run if there is one."""
    new = read(published_files(folder))
    since = compare(records(str(folder / BASE)), new) if (folder / BASE).is_dir() else None
    return Model(new, clauses(), since)


def _result(line: dict[str, Any], is_base: bool) -> dict[str, Any]:
    """A line of a conformance file with shorter numbers."""
    short: dict[str, Any] = _rounded(line, _computed)
    if line.get("kind") == "result":
        short |= UNKEPT | {"message": "" if is_base else PLACE.sub("", short["message"])}
    return short


def _bench(document: dict[str, Any]) -> dict[str, Any]:
    """A bench file, or a kill matrix, with shorter numbers; the samples of a batch are sorted."""
    short: dict[str, Any] = _rounded(document, _computed)
    for record in short.get("benchmarks", ()):
        sizes, data = record["extra_info"].get("process_runs"), iter(record["stats"].get("data", ()))
        if sizes:
            batches = (sorted(islice(data, size)) for run in sizes for size in run)
            record["stats"]["data"] = [seconds for batch in batches for seconds in batch]
    return short


def _rounded(value: Any, short: Callable[[float], float]) -> Any:
    """Data with each number shortened."""
    if isinstance(value, float):
        return short(value)
    if isinstance(value, dict):
        return {name: _rounded(each, _sample if name in SAMPLES else short) for name, each in value.items()}
    return [_rounded(each, short) for each in value] if isinstance(value, list) else value


def _computed(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _sample(value: float) -> float:
    """A number of few digits, at most four, within half a thousandth of the value."""
    if not value:
        return value
    unit = 10.0 ** int(f"{value:.3e}".partition("e")[2])
    step = next(step for step, below in ((1e-3, 2.0), (2e-3, 5.0), (5e-3, math.inf)) if abs(value) / unit < below)
    return float(f"{round(value / unit / step) * step * unit:.4g}")
