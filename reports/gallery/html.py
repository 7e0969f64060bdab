"""The gallery as one HTML page: what each library does, where it fails, and what its documentation says about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.impls.gallery import Entry, Finding, Says
from attention_conformance.reports.gallery.view import BY_DESIGN, FAILED, PASSED, UNSUPPORTED, Cell, Row, View, group
from attention_conformance.reports.html import document

#: The scripts of the page in their order.
SCRIPTS = ("data.js", "gallery.js")

#: Names that an answer shows at once.
NAMED = 8

#: The look of what documentation says about a difference, in the order that a reader wants.
SAYS = {
    Says.CONTRADICTS: "failed",
    Says.UNDOCUMENTED: "known-deviation",
    Says.DOCUMENTED: "passed",
    Says.INHERITED: "unsupported",
    Says.BY_DESIGN: "advisory",
}

LOOKS = {FAILED: "failed", BY_DESIGN: "advisory", PASSED: "passed", UNSUPPORTED: "unsupported"}


def page(view: View) -> str:
    """The whole page.

    Parameters
    ----------
    view
        View of the gallery.

    Returns
    -------
    str
        HTML, whole in one file.
    """
    shown = {
        "view": view,
        "rows": [_row(row, view) for row in view.rows],
        "caused": [_causes(row) for row in view.rows if row.failed and row.diagnosis],
        "without_diagnosis": [row.entry.name for row in view.rows if row.failed and not row.diagnosis],
        "findings": sorted((_finding(*each) for each in view.findings), key=lambda one: one["rank"]),
        "named": NAMED,
        "uses": sorted({use.value for row in view.rows for use in row.entry.uses}),
        "counts": counts(view),
        "verdict": verdict(view),
        "data": document.packed({}, tables={}, failures={row.entry.name: _failures(row) for row in view.rows}),
    }
    return document.rendered("gallery.html.j2", SCRIPTS, None, shown)


def counts(view: View) -> dict[str, int]:
    """Numbers in the first sentences."""
    return {
        "ways": len(view.rows),
        "packages": view.packages,
        "right": sum(row.failed == 0 for row in view.rows),
        "wrong": sum(row.failed > 0 for row in view.rows),
        "cases": max(row.passed + row.failed + row.by_design + row.unsupported for row in view.rows),
    }


def verdict(view: View) -> str:
    """The verdict in one sentence.

    Parameters
    ----------
    view
        View of the gallery.

    Returns
    -------
    str
        A sentence with the numbers of ways and packages.
    """
    of = counts(view)
    ways, packages = (f"{of[name]} {name[:-1] if of[name] == 1 else name}" for name in ("ways", "packages"))
    conform, do = ("conforms" if of["right"] == 1 else "conform"), ("does" if of["wrong"] == 1 else "do")
    return (
        f"{ways} to call attention, from {packages}: {of['right']} {conform} to the spec in every supported call,"
        f" {of['wrong']} {do} not."
    )


def _row(row: Row, view: View) -> dict[str, Any]:
    entry = row.entry
    others = [each for each in row.record.versions if each not in (entry.package, "Python")]
    versions = ", ".join(f"{each} {row.record.versions[each].partition('+')[0]}" for each in others)
    return {
        "name": entry.name,
        "version": f"{entry.package} {row.version}",
        "others": versions,
        "uses": " ".join(use.value for use in entry.uses),
        "failed": row.failed,
        "by_design": row.by_design,
        "passed": row.passed,
        "unsupported": row.unsupported,
        "link": documentation(entry),
        "note": row.record.message,
        "cells": [_cell(entry.name, name, row.cells.get(name)) for name in view.groups],
    }


def _cell(name: str, of: str, cell: Cell | None) -> dict[str, Any]:
    """Text, look, words and link of a cell; the link is empty where there is nothing more to show."""
    if cell is None:
        return {"text": "", "look": "", "said": "", "link": ""}
    texts = {FAILED: str(cell.failed), BY_DESIGN: "◇", PASSED: "✓", UNSUPPORTED: "–"}
    said = {
        FAILED: f"{cell.failed} of {cell.executed} cases fail",
        BY_DESIGN: f"{cell.by_design} accepted by design",
        PASSED: f"all {cell.executed} cases pass",
        UNSUPPORTED: "not supported",
    }
    link = f"#{name}/{of.replace(' ', '-')}" if cell.worst in (FAILED, BY_DESIGN) else ""
    return {"text": texts[cell.worst], "look": LOOKS[cell.worst], "said": f"{of}: {said[cell.worst]}", "link": link}


def _causes(row: Row) -> dict[str, Any]:
    """The causes of a library's failures, as ``check`` words them, and the failures that are not explained."""
    return {
        "name": row.entry.name,
        "failed": row.failed,
        "explained": row.explained,
        "named": row.named,
        "left": row.left,
    }


def documentation(entry: Entry, finding: Finding | None = None) -> str:
    """The address where a finding, or all of an entry, is documented."""
    if finding is not None and finding.link:
        return finding.link
    return entry.documentation.get("*") or next(iter(entry.documentation.values()))


def _finding(entry: Entry, finding: Finding) -> dict[str, Any]:
    return {
        "name": entry.name,
        "what": finding.what,
        "says": finding.says.value,
        "look": SAYS[finding.says],
        "quote": finding.quote,
        "link": documentation(entry, finding),
        "rank": (not finding.is_grave, list(SAYS).index(finding.says)),
    }


def _failures(row: Row) -> list[Mapping[str, Any]]:
    """Details of each failure: case, message with its explanation, and the findings about it."""
    findings = row.entry.findings
    return [
        {
            "case": told.result.case,
            "group": group(told.result.broken or next(iter(told.result.clauses), "")),
            "reason": told.result.reason,
            "message": told.message,
            "found": [at for at, each in enumerate(findings) if (told.result.broken or "") in each.clauses],
        }
        for told in row.failures
    ] + ([{"findings": [_finding(row.entry, each) for each in findings]}] if findings else [])
