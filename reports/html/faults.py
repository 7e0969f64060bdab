"""The kill matrix: faults, and how many cases catch each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.reports.html.views import Cell, Table, columns, link
from attention_conformance.reports.model import faults


def kill_matrix(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row per fault: what it does, its class, the clause it breaks, how many cases catch it, the smallest case."""
    rows = tuple(
        (
            Cell(fault["title"], link=link("fault", fault["name"])),
            Cell(fault["group"].replace("_", " ")),
            Cell(fault["clause"], link=link("clause", fault["clause"])),
            Cell(str(len(fault["caught"])), len(fault["caught"]), look="" if len(fault["caught"]) > 1 else "failed"),
            Cell(fault["smallest"] or "none"),
            Cell(", ".join(fault["sources"])),
        )
        for fault in found
    )
    heads = columns("fault", "class", "clause", "caught by", "smallest case", "seen in", numbers=("caught by",))
    return Table("faults", "Faults: known mistakes in attention, and the number of cases that catch each", heads, rows)


def groups(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row per class of mistakes, with the fault that the fewest cases catch."""
    frame = faults.groups(found)
    rows = tuple(
        (
            Cell(row["class"]),
            Cell(str(row["faults"]), row["faults"]),
            Cell(row["hardest to catch"]),
            Cell(str(row["caught by"]), row["caught by"], look="" if row["caught by"] > 1 else "failed"),
        )
        for row in frame.to_dict("records")
    )
    heads = columns("class", "faults", "hardest to catch", "caught by", numbers=("faults", "caught by"))
    return Table("fault-classes", "Faults by class, and the number of cases that catch the hardest", heads, rows)


def details(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Details of each fault except its cases; only web addresses become links."""
    return {
        fault["name"]: {
            "title": fault["title"],
            "clause": fault["clause"],
            "when": fault.get("when", ""),
            "sources": {
                name: address if str(address).startswith(("https://", "http://")) else ""
                for name, address in fault["sources"].items()
            },
        }
        for fault in found
    }
