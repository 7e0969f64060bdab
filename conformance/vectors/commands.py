"""The commands ``export`` and ``check``: their options, what they print, and how they end."""

from __future__ import annotations

import argparse
from pathlib import Path

from conformance.vectors.check import ELSEWHERE, Origin, check
from conformance.vectors.export import export
from conformance.vectors.index import Chosen
from impls.contract import Profile


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
    """Judge results of vectors: 0 if all are right, 1 if something is wrong or was not run."""
    origin = Origin(name, device, [Profile(each) for each in profile])
    checked = check(folder, results, Chosen(operator, case, dtype), origin, conformance_json)
    written = f"\nresults: {conformance_json}" if conformance_json else ""
    return f"{checked}{written}", 0 if checked.right else 1


def export_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``export``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write, made if missing; must be empty")
    _chosen(parser)


def check_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``check``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="vectors, as export writes them")
    parser.add_argument("results", type=Path, metavar="RESULTS", help="results, in files named as the vectors")
    _chosen(parser)
    parser.add_argument("--name", default=ELSEWHERE, help="of the implementation; default: %(default)s")
    parser.add_argument("--device", default=ELSEWHERE, metavar="NAME", help="of the device; default: %(default)s")
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
