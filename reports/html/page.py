"""The page of some records: each section comes from its module, and the templates assemble them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from attention_conformance.bench.workloads.titles import title
from attention_conformance.reports.compare import pages
from attention_conformance.reports.html import changes, conformance, document, files, overview, speed
from attention_conformance.reports.html import faults as kills
from attention_conformance.reports.html.views import Answer, extras
from attention_conformance.reports.input.read import incomplete
from attention_conformance.reports.model import faults, groups, tables
from attention_conformance.reports.model.model import Model

#: The scripts of the page in their order; each is small and its first line says what it is.
SCRIPTS = ("data.js", "tables.js", "details.js", "plots.js", "charts.js", "picture.js")

#: Columns of the results that the page needs; the times of single calls of a case are in the result file only.
RESULTS = (
    *("implementation", "device", "dtype", "case", "clauses", "outcome", "failure", "broken"),
    *("reason", "error_pattern", "message", "profile", "meets", "share"),
)

#: Template variable of a section that an answer links to, where its name differs.
SECTIONS = {"changes": "compared", "conformance": "implementations", "memory-of": "fastest", "speed": "bench"}

#: Digits of a share in the details.
SHARE = 3


def page(model: Model) -> str:
    """The whole page."""
    with document.Bundle() as bundle:
        return document.rendered("page.html.j2", SCRIPTS, bundle, _template_variables(model))


def _template_variables(model: Model) -> dict[str, Any]:
    """Variables of the template; sections without records are empty."""
    records = model.records
    found = speed.frame(model)
    shown: dict[str, Any] = {
        "cut": incomplete(records.sources),
        "machines": model.machines,
        "divergence": conformance.divergence(records.results),
        "fastest": speed.fastest(found) if len(speed.timed(found)) else None,
        "clock_note": speed.clock_note(found),
        "counts": tables.timing_counts(found) if len(found) else "",
        "bench": speed.every_cell(found) if len(found) else None,
        "memory": speed.memory_table(model.memories) if model.memories else None,
        "kills": [kills.groups(records.faults), kills.kill_matrix(records.faults)] if records.faults else [],
        "kill_verdict": faults.verdict(records.faults, records.cases).replace("**", "") if records.faults else "",
        "changes": changes.tables(model.since) if model.since else [],
        "compared": model.since is not None,
        "unclear": pages.unclear(model.since) if model.since else "",
        "notes": changes.notes(model.since) if model.since else [],
        "sources": records.sources,
        "files": files.table(records.sources),
        "envelopes": tables.envelopes(records.sources),
        "environments": files.environments(records.sources),
        "missing": sorted({name for source in records.sources for name in source.not_installed}),
    }
    shown |= _conformance(model)
    shown["questions"] = [_with_a_link_that_leads(answer, shown) for answer in _questions(model, found)]
    return shown | _data(model, found, shown)


def _with_a_link_that_leads(answer: Answer, shown: Mapping[str, Any]) -> Answer:
    """The answer, without its link where the page has no such section."""
    leads = not answer.more or shown[SECTIONS.get(answer.more, answer.more)]
    return answer if leads else replace(answer, more="")


def _conformance(model: Model) -> dict[str, Any]:
    if model.results.empty:
        return {"implementations": None, "matrices": [], "differences": None, "picture": None}
    return {
        "implementations": conformance.implementations(model.implementations),
        "matrices": conformance.matrices(model.matrix),
        "differences": conformance.differences(model.differences),
        "picture": overview.picture(model.results),
    }


def _questions(model: Model, found: pd.DataFrame) -> list[Answer]:
    """The answers at the top, the verdict first, in the order that a newcomer asks."""
    answers: list[Answer | None] = []
    at = speed.nearest_timing(found)
    if not model.results.empty:
        answers.append(conformance.conforms(model.implementations))
        answers.append(conformance.masked_rows(model.results, model.records.results))
    if not found.empty:
        answers += [speed.fastest_answer(found, at), speed.quadratic(model.memories, at)]
    answers.append(changes.worse(model.since))
    if not found.empty:
        answers.append(speed.memory_bound(found))
    return [answer for answer in answers if answer is not None]


def _data(model: Model, found: pd.DataFrame, given: dict[str, Any]) -> dict[str, Any]:
    """The data behind the views, and the table of accuracy, which is made from them."""
    records = model.records
    frames: dict[str, pd.DataFrame] = {}
    shown: dict[str, Any] = {"accuracy": None, "left_out": 0}
    if not model.results.empty:
        limited, shown["left_out"] = document.limited(model.results)
        shares = conformance.shares(model.results)
        limited = limited.assign(share=[float(f"{share:.{SHARE}g}") for share in limited["share"]])
        frames |= {"conformance": limited[list(RESULTS)], "accuracy": conformance.share_marks(shares)}
        shown["accuracy"] = conformance.accuracy(shares) if len(shares) else None
    if not found.empty:
        guides = speed.guides(found, speed.peaks(records))
        frames |= {"bench": found.drop(columns=list(speed.UNUSED), errors="ignore"), "guides": guides}
    if records.faults:
        frames["faults"] = model.faults
    clauses = {name: [clause.title, clause.level.value, clause.sentence] for name, clause in model.clauses.items()}
    details = kills.details(records.faults)
    more = {
        "picture": given["picture"].cells if given["picture"] else None,
        "groups": {name: groups.group(name) for name in clauses},
        "titles": _titles(found),
        "tables": extras([*given.values(), *shown.values()]),
    }
    return shown | {"data": document.packed(frames, clauses=clauses, faults=details, **more)}


def _titles(found: pd.DataFrame) -> dict[str, str]:
    """Titles of the workloads and families that were timed, where they differ from the name."""
    names = dict.fromkeys([*found["family"], *found["workload"]]) if not found.empty else ()
    return {name: title(name) for name in names if title(name) != name}
