"""The conformance matrix, clause × implementation; the implementations in a row each; what they do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from attention_conformance.reports.html.views import Cell, Column, Table, columns, link, number
from attention_conformance.reports.markdown.text import NONE, share, shortened
from attention_conformance.reports.model import tables

#: How serious an outcome is: the order in which cells are sorted, and the words for their symbols.
WORDS = {
    "failed": "{0} of {1} cases failed",
    "known-deviation": "{0} of {1} cases deviate as recorded",
    "advisory": "{0} of {1} cases do not follow a SHOULD",
    "passed": "all {1} cases passed",
    "unsupported": "unsupported",
}
RANK = {"failed": 4, "known-deviation": 3, "advisory": 2, "passed": 1, "unsupported": 0}

#: What the parts of the spec are called.
PARTS = {"SDPA": "Attention", "DEC": "Decoding", "MHA": "Multi-head layer", "SUB": "Sub-layer", "GRAD": "Gradients"}


def implementations(table: pd.DataFrame) -> Table:
    """One row per implementation and device: results by outcome, the largest share of the bound, profiles met."""
    rows = []
    for row in table.to_dict("records"):
        verdict = next((name for name in RANK if row[name]), "unsupported")
        counts = [Cell(str(row[name]), row[name], look=name if row[name] else "none") for name in tables.OUTCOMES]
        profiles = row["profiles met"]
        rows.append(
            (
                Cell(row["implementation"], look="name"),
                Cell(row["device"]),
                Cell(f"{tables.SYMBOLS[verdict]} {VERDICTS[verdict]}", RANK[verdict], look=verdict),
                *counts,
                number(row["worst share"], share(row["worst share"])),
                Cell(profiles if isinstance(profiles, str) else NONE),
            )
        )
    numbers = (*tables.OUTCOMES, "worst share")
    heads = columns("implementation", "device", "verdict", *numbers, "profiles met", numbers=numbers)
    note = (
        "Worst share: the largest error, as a share of its bound, over the cases that passed. Profiles met: the"
        " strictest precision profile whose bounds all of them keep, by dtype."
    )
    return Table("implementations", "Who conforms to what", heads, tuple(rows), note)


VERDICTS = {
    "failed": "fails",
    "known-deviation": "deviates as recorded",
    "advisory": "conforms, not to every SHOULD",
    "passed": "conforms",
    "unsupported": "nothing executed",
}


def matrices(long: pd.DataFrame) -> list[Table]:
    """One table for each part of the spec: clauses that somebody was asked × the implementations that were."""
    long = long[long["cell"] != tables.NOT_RUN]
    prefixes = long["clause"].str.rpartition("-")[0]
    return [_matrix(prefix, long[prefixes == prefix]) for prefix in prefixes.unique()]


def _matrix(prefix: str, long: pd.DataFrame) -> Table:
    who = list(dict.fromkeys(zip(long["implementation"], long["device"], strict=True)))
    several = long["device"].nunique() > 1
    cells = {(row["clause"], row["implementation"], row["device"]): row for row in long.to_dict("records")}
    rows = []
    ordered = long.drop_duplicates("clause").sort_values("clause", key=lambda c: c.map(tables.clause_order))
    for named in ordered.to_dict("records"):
        clause = named["clause"]
        should = "" if named["level"] in ("MUST", "") else f" ({named['level']})"
        head = Cell(f"{clause} {named['title']}{should}", tables.clause_order(clause)[1], link=link("clause", clause))
        rows.append((head, *(_judged(cells.get((clause, *each))) for each in who)))
    heads = [Column("clause"), *(Column(" ".join(each) if several else each[0], narrow=True) for each in who)]
    return Table(f"matrix-{prefix.lower()}", f"{prefix}: {PARTS.get(prefix, prefix)}", tuple(heads), tuple(rows))


def _judged(row: Mapping[Any, Any] | None) -> Cell:
    if row is None:
        return Cell("", "", spoken="not run")
    worst = next((name for name in RANK if row[name]), "unsupported")
    executed = sum(row[name] for name in RANK if name != "unsupported")
    words = WORDS[worst].format(row[worst], executed)
    return Cell(
        row["cell"],
        RANK[worst] + (row[worst] / executed if executed and worst != "passed" else 0),
        tip=words,
        link=link("clause", row["clause"], row["implementation"], row["device"]),
        look=worst,
        spoken=words,
    )


def differences(table: pd.DataFrame) -> Table:
    """Failures, deviations and advice: clause, implementation, what it does instead, number of cases."""
    rows = tuple(
        (
            Cell(row["clause"], "{0[0]} {0[1]:04}".format(tables.clause_order(row["clause"]))),
            Cell(row["implementation"], look="name"),
            Cell(row["device"]),
            Cell(
                f"{tables.SYMBOLS[row['outcome']]} {row['outcome']}{': ' * bool(row['kind'])}{row['kind']}",
                look=row["outcome"],
            ),
            Cell(
                shortened(row["what it does"]),
                row["what it does"],
                link=link("clause", row["clause"], row["implementation"], row["device"]),
            ),
            Cell(row["dtypes"]),
            Cell(str(row["cases"]), row["cases"]),
        )
        for row in table.to_dict("records")
    )
    heads = columns(
        "clause", "implementation", "device", "outcome", "what it does", "dtypes", "cases", numbers=("cases",)
    )
    return Table("differences", "How they differ from the spec", heads, rows)
