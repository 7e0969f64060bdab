"""How accurate each implementation is: error as a share of the bound, by dtype and precision profile."""

from __future__ import annotations

import pandas as pd

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.html.views import Cell, Table, columns, link, number
from attention_conformance.reports.markdown.text import share

KEYS = ["implementation", "device", "dtype", "profile"]

#: Where less is drawn, 0 among it, which a logarithmic axis has not: a ten thousandth of the bound is as good as exact.
LEAST = 1e-4

#: The quantiles that a bar spans, beside the largest share, which has a mark of its own.
LOW, MIDDLE = 0.25, 0.5


def frame(results: pd.DataFrame) -> pd.DataFrame:
    """One row per implementation, device, dtype and profile, over its passed cases in which anything was compared."""
    passed = results[(results["outcome"] == Outcome.PASSED.value) & results["share"].notna()]
    passed = passed.assign(profile=passed["profile"].fillna(""))
    groups = passed.groupby(KEYS, sort=False)["share"]
    found = pd.DataFrame({"low": groups.quantile(LOW), "median": groups.quantile(MIDDLE)})
    found = found.assign(worst=groups.max(), cases=groups.size())
    found["case"] = passed.loc[groups.idxmax(), "case"].to_numpy() if len(passed) else []
    return found.reset_index()


def drawn(found: pd.DataFrame) -> pd.DataFrame:
    """The same with the places at which the plot has its marks."""
    places = {f"{name}_at": found[name].astype(float).clip(lower=LEAST) for name in ("low", "median", "worst")}
    return found.assign(**places)


def accuracy(found: pd.DataFrame) -> Table:
    """The same as a table."""
    rows = tuple(
        (
            Cell(row["implementation"], look="name"),
            Cell(row["device"]),
            Cell(row["dtype"]),
            Cell(row["profile"]),
            Cell(str(row["cases"]), row["cases"]),
            number(row["low"]),
            number(row["median"]),
            number(row["worst"], share(row["worst"])),
            Cell(row["case"], link=link("result", *(row[name] for name in (*KEYS[:3], "case")))),
        )
        for row in found.to_dict("records")
    )
    numbers = ("cases", "lower quartile", "median", "worst")
    heads = columns(*KEYS, *numbers, "worst case", numbers=numbers)
    return Table("accuracy", "Share of the bound", heads, rows, "Over the cases that passed; 1 is the bound.")
