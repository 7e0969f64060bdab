"""The kill matrix: which cases catch which known fault, from the file of ``attention-conformance kill-matrix``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pandas as pd

from attention_conformance.reports.text import inert

#: Characters that stay unchanged in the address of a link: not brackets, bars and spaces, which would end it.
IN_ADDRESS = "/:?#@!$&'*+,;=%~"


def frame(faults: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per fault and case that catches it, with the dtypes in which it does; smallest case first."""
    rows = [
        {
            "group": fault["group"],
            "fault": fault["name"],
            "clause": fault["clause"],
            "title": fault["title"],
            "case": case,
            "dtypes": dtypes,
        }
        for fault in faults
        for case, dtypes in fault["caught"].items()
    ]
    return pd.DataFrame(rows, columns=["group", "fault", "clause", "title", "case", "dtypes"])


def groups(faults: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per class of mistakes: the number of its faults, and the one that the fewest cases catch."""
    rows: dict[str, dict[str, Any]] = {}
    for fault in faults:
        row = rows.setdefault(fault["group"], {"class": fault["group"].replace("_", " "), "faults": 0})
        row["faults"] += 1
        if len(fault["caught"]) < row.get("caught by", float("inf")):
            row |= {"hardest to catch": fault["title"], "caught by": len(fault["caught"])}
    return pd.DataFrame(rows.values(), columns=["class", "hardest to catch", "faults", "caught by"])


def table(faults: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per fault: what it does, the clause it breaks, how many cases catch it, the smallest, and its sources.

    The texts are Markdown.
    """
    return pd.DataFrame(
        {
            "fault": inert(fault["title"]),
            "clause": inert(fault["clause"]),
            "cases": len(fault["caught"]),
            "smallest": inert(fault["smallest"] or "none"),
            "seen in": ", ".join(_linked(name, address) for name, address in fault["sources"].items()),
        }
        for fault in faults
    )


def _linked(name: str, address: str) -> str:
    """A source as Markdown: a link where it has the address of a page, quoted so that nothing ends the link early."""
    web = str(address).startswith(("https://", "http://"))
    return f"[{inert(name)}]({quote(str(address), safe=IN_ADDRESS)})" if web else inert(name)


def verdict(faults: Sequence[Mapping[str, Any]], cases: int, shown: Callable[[str], str] = str) -> str:
    """The first line: how many faults there are, and whether all are caught; ``shown`` formats a name."""
    survivors = [fault["name"] for fault in faults if len(fault["caught"]) < 2]
    start = f"**Faults: {len(faults)} known mistakes in attention, "
    if survivors:
        names = ", ".join(map(shown, survivors))
        return f"{start}{len(survivors)} of them caught by fewer than two of {cases} cases**: {names}."
    return f"{start}each caught by at least two of {cases} cases.**"
