"""``attention-conformance pages``: regenerate every document of a checkout that is made from tracked data.

Nothing is judged or timed for them; documents that need a run have their own commands: ``kill-matrix``, ``evidence``,
``gallery run``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence

from attention_conformance.impls import checkout
from attention_conformance.impls.contract import InputError


def _examples() -> str:
    from attention_conformance.conformance.spec import examples

    return str(examples.write())


def _bounds() -> str:
    from attention_conformance.conformance.evidence import page

    return str(page.write())


def _coverage() -> str:
    from attention_conformance.conformance.faults.paths import coverage

    return coverage.write()


def _deviations() -> str:
    from attention_conformance.conformance.ledger.commands import run_ledger

    printed = run_ledger("page", [], [])
    assert isinstance(printed, str)
    return printed


def _schemas() -> str:
    from attention_conformance.conformance.results import parse
    from attention_conformance.reports import schemas

    parse.SCHEMA.write_text(parse.schema_text(), encoding="utf-8")
    return "\n".join(map(str, [parse.SCHEMA, *schemas.write()]))


def _gallery() -> str:
    from attention_conformance import gallery
    from attention_conformance.impls.gallery import MANIFEST

    printed = gallery.run("page", MANIFEST, work=None, output=None, publish=False, html=False)
    assert isinstance(printed, str)
    return printed


def _report() -> str:
    from attention_conformance.reports import publish

    return publish.run([], [], publish.FOLDER)


def _studies() -> str:
    words = [sys.executable, "-m", "studies", "--pages"]
    done = subprocess.run(words, cwd=checkout.ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise InputError(f"{' '.join(words[1:])} ended with {done.returncode}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout.rstrip()


#: The documents by name, each with the function that writes it and returns its path.
PAGES: dict[str, Callable[[], str]] = {
    "examples": _examples,
    "bounds": _bounds,
    "coverage": _coverage,
    "deviations": _deviations,
    "schemas": _schemas,
    "gallery": _gallery,
    "studies": _studies,
    "report": _report,
}


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``pages``.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAGES)}; default: all")


def run(names: Sequence[str]) -> str:
    """Regenerate documents.

    Parameters
    ----------
    names
        Pages to write, by their names in ``PAGES``; none for all.

    Returns
    -------
    str
        The paths that were written.

    Raises
    ------
    InputError
        For an unknown name, and outside a checkout.
    """
    for name in names:
        if name not in PAGES:
            raise InputError(f"{name!r} is not a document; known: {', '.join(PAGES)}")
    checkout.writable(checkout.ROOT)
    return "\n".join(PAGES[name]() for name in names or PAGES)
