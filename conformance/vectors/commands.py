"""Commands ``export`` and ``check-vectors``: cases written to a folder, and results from elsewhere judged.

An export has the same bytes each time: no time, no path, no machine; cases and dtypes in a fixed order.
"""

from __future__ import annotations

import argparse
import hashlib
from importlib import metadata
from pathlib import Path

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.vectors.check import ELSEWHERE, Origin, check
from attention_conformance.conformance.vectors.files import NotEmpty, encode, text_of
from attention_conformance.conformance.vectors.index import Chosen, Entry, File, Generator, write_index
from attention_conformance.conformance.vectors.vector import Vector, vector
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.strict import Unreadable

#: The distribution that makes the vectors.
GENERATOR = "attention-conformance"


def export(folder: Path, chosen: Chosen) -> tuple[int, int]:
    """Write the chosen vectors and return their number and the bytes of all files.  Raises VectorError."""
    cases = every_case()
    keys = chosen.of((case.operator, case.name, dtype) for case in cases.values() for dtype in case.dtypes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise NotEmpty(f"{folder} is not empty, and what it holds would be taken for vectors")
        entries = tuple(_write(folder, vector(cases[name], dtype)) for _, name, dtype in keys)
        write_index(folder, Generator(GENERATOR, metadata.version(GENERATOR)), entries)
        return len(entries), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise Unreadable(f"{folder} cannot be written: {error.strerror or error}") from None


def _write(folder: Path, made: Vector) -> Entry:
    """Write one vector and return its entry in the index."""
    about = made.about
    stem = f"{about.operator}/{about.dtype}/{about.case}"
    return Entry(
        about.operator,
        about.case,
        about.dtype,
        about=_file(folder, f"{stem}.json", text_of(about)),
        tensors=_file(folder, f"{stem}.safetensors", encode(made.arrays)),
    )


def _file(folder: Path, name: str, data: bytes) -> File:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(name, hashlib.sha256(data).hexdigest())


def run_export(folder: Path, operator: list[str], case: list[str], dtype: list[str]) -> str:
    """Write vectors to a folder."""
    count, size = export(folder, Chosen(operator, case, dtype))
    return f"{count} vectors, {size / 1e6:.1f} MB: {folder}"


def run_check(
    folder: Path,
    results: Path,
    operator: list[str],
    case: list[str],
    dtype: list[str],
    name: str,
    device: str,
    profile: list[str],
    conformance_json: Path | None,
) -> tuple[str, int]:
    """Judge results of vectors; the exit code is 0 if all are right, 1 if something is wrong or was not run."""
    origin = Origin(name, device, [Profile(each) for each in profile])
    checked = check(folder, results, Chosen(operator, case, dtype), origin, conformance_json)
    written = f"\nresults: {conformance_json}" if conformance_json else ""
    return f"{checked}{written}", 0 if checked.right else 1


def export_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``export``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write, made if missing; must be empty")
    _chosen(parser)


def check_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``check-vectors``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="vectors, as export writes them")
    parser.add_argument("results", type=Path, metavar="RESULTS", help="results, in files named like the vectors")
    _chosen(parser)
    parser.add_argument("--name", default=ELSEWHERE, help="name of the implementation; default: %(default)s")
    parser.add_argument("--device", default=ELSEWHERE, metavar="NAME", help="name of the device; default: %(default)s")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        choices=[profile.value for profile in Profile],
        help="the precision profile that is declared, for the dtypes that have it; may be repeated",
    )
    parser.add_argument(
        "--conformance-json", type=Path, metavar="FILE", help="write the results to this file, as JSON lines"
    )


def _chosen(parser: argparse.ArgumentParser) -> None:
    for option, value in (("--operator", "NAME"), ("--case", "GLOB"), ("--dtype", "NAME")):
        parser.add_argument(option, action="append", default=[], metavar=value, help="only these; may be repeated")
