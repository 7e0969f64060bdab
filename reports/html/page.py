"""From records to the page: each section from its module, put together by the templates."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.clauses import Clause
from reports import faults, tables
from reports.html import accuracy, cells, charts, files, kills, matrix, memory, payload, speed
from reports.html import changes as since
from reports.html.answers import divergence
from reports.html.asked_results import conforms, empty_rows
from reports.html.asked_speed import asked, fastest, memory_bound, quadratic
from reports.html.bundle import Bundle
from reports.html.changes import Change
from reports.html.views import Answer
from reports.reading import Records, incomplete

TEMPLATES = Path(__file__).with_name("templates")

#: The scripts of the page in their order; each is small and its first line says what it is.
SCRIPTS = ("data.js", "tables.js", "details.js", "charts.js")

#: Columns of the results that the page needs; the times of single calls of a case are in the result file alone.
RESULTS = (
    *("implementation", "device", "dtype", "case", "clauses", "outcome", "failure", "broken"),
    *("reason", "looks", "message", "profile", "meets", "share"),
)


def page(records: Records, clauses: Mapping[str, Clause], changes: Sequence[Change] | None = None) -> str:
    """The whole page.  ``changes`` are those since a base run, None if there is none."""
    with Bundle() as bundle:
        results = tables.conformance(records.results)
        found = cells.frame(records)
        shown = _shown(records, results, found, clauses, changes)
        scripts = [Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in SCRIPTS]  # noqa: S704 (our own)
        scripts.insert(0, Markup(bundle.text()))  # noqa: S704 (that of vl_convert)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))  # noqa: S704 (our own)
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    template = environment.get_template("page.html.j2")
    return template.render(**shown, style=style, scripts=scripts, hashes=Markup(hashes))  # noqa: S704 (base64)


def _shown(
    records: Records,
    results: pd.DataFrame,
    found: pd.DataFrame,
    clauses: Mapping[str, Clause],
    changes: Sequence[Change] | None,
) -> dict[str, Any]:
    """What the template fills in; sections without records are empty."""
    growths = memory.growths(found, cells.fits(records))
    shares = accuracy.frame(results) if not results.empty else pd.DataFrame()
    limited, left_out = payload.limited(results) if not results.empty else (results, 0)
    return {
        "cut": incomplete(records.sources),
        "questions": _questions(records, results, found, growths, changes),
        "implementations": matrix.implementations(results) if not results.empty else None,
        "matrices": matrix.matrices(results, clauses) if not results.empty else [],
        "differences": matrix.differences(results) if not results.empty else None,
        "divergence": divergence(records.results),
        "accuracy": accuracy.table(shares) if len(shares) else None,
        "fastest": speed.fastest(found) if len(cells.timed(found)) else None,
        "counts": speed.counts(found) if not found.empty else "",
        "bench": speed.every_cell(found) if not found.empty else None,
        "memory": memory.table(growths) if growths else None,
        "kills": [kills.groups(records.faults), kills.table(records.faults)] if records.faults else [],
        "kill_verdict": faults.verdict(records.faults, records.cases).replace("**", "") if records.faults else "",
        "changes": since.table(changes) if changes else None,
        "sources": records.sources,
        "files": files.table(records.sources),
        "environments": files.environments(records.sources),
        "missing": sorted({name for source in records.sources for name in source.not_installed}),
        "left_out": left_out,
        "data": payload.packed(
            _frames(records, limited, found, shares),
            clauses={name: [c.title, c.level.value, c.sentence] for name, c in clauses.items()},
            faults=kills.details(records.faults),
            charts=charts.charts(),
        ),
    }


def _questions(
    records: Records,
    results: pd.DataFrame,
    found: pd.DataFrame,
    growths: Sequence[memory.Memory],
    changes: Sequence[Change] | None,
) -> list[Answer]:
    answers: list[Answer | None] = []
    if not results.empty:
        answers += [empty_rows(results, records.results)]
    if not found.empty:
        at = asked(found)
        answers += [fastest(found, at), quadratic(growths, at)]
    answers += [since.worse(changes)]
    if not results.empty:
        answers += [conforms(results)]
    if not found.empty:
        answers += [memory_bound(found)]
    return [answer for answer in answers if answer is not None]


def _frames(
    records: Records, results: pd.DataFrame, found: pd.DataFrame, shares: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    frames = {}
    if not results.empty:
        frames["conformance"] = results[list(RESULTS)]
        frames["accuracy"] = accuracy.drawn(shares)
    if not found.empty:
        frames["bench"] = found
        frames["points"] = charts.drawn(found)
        frames["guides"] = charts.guides(found, cells.peaks(cells.roofs(records)))
    if records.faults:
        frames["faults"] = faults.frame(records.faults)
    return frames


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
