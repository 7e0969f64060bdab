"""The short page for a CI job's summary: the verdict, the failures, and the tables, folded."""

from __future__ import annotations

import pandas as pd

from attention_conformance.bench.clocks import clocks
from attention_conformance.bench.workloads.titles import title
from attention_conformance.reports.markdown import changes
from attention_conformance.reports.markdown import page as markdown
from attention_conformance.reports.model import memory, tables
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.text import digits, fold, shortened, table

#: Rows of a table that is not folded.
SHOWN = 10

#: Characters.  GitHub takes 2²⁰ of a job's summary, and 2¹⁶ of a comment; this leaves room for the rest of one.
LONGEST = 50_000


def page(model: Model) -> str:
    """The whole summary, at most LONGEST characters: a sentence replaces a table that does not fit."""
    sections = ["## Attention: conformance and speed", markdown.verdict(model), _failures(model.results)]
    folded = changes.sections(model.since) if model.since else []
    if not model.results.empty:
        rows = table(markdown.by_implementation(model).drop(columns="worst share"))
        taken = markdown.envelopes(model.records.sources)
        folded.append(fold("Conformance by implementation", "\n\n".join([rows, *taken])))
        if len(model.differences):
            folded.append(fold("Differences from the spec", markdown.differences(model).partition("\n\n")[2]))
    if not model.cells.empty:
        timed = model.cells[model.cells["outcome"] == "timed"]
        said = clocks({str(name): value for name, value in row.items()} for row in timed.to_dict("records"))
        folded.append(fold("Milliseconds per call, fastest first", "\n\n".join([*said, table(_fastest(timed))])))
    if model.memories:
        folded.append(fold("Quadratic memory", memory.by_growth(model.memories)))
    folded.append(fold("Files and environments", "\n\n".join(markdown.origins(model.records.sources))))
    for part in folded:
        if sum(map(len, sections)) + len(part) > LONGEST:
            part = "A table is left out here to keep the summary short enough; the page has it."
        sections.append(part)
    return "\n\n".join(section for section in sections if section) + "\n"


def _failures(results: pd.DataFrame) -> str:
    failed = results[results["outcome"] == "failed"]
    if failed.empty:
        return ""
    rows = failed[["implementation", "device", "dtype", "case", "broken", "reason"]].head(SHOWN).fillna("")
    text = table(rows.assign(reason=rows["reason"].map(shortened)))
    more = len(failed) - len(rows)
    return text + (f"\n\n{more} more failed; all are in `conformance.csv`." if more else "")


def _fastest(timed: pd.DataFrame) -> pd.DataFrame:
    """One row per workload: the three fastest, with their times."""
    rows = []
    ordered = timed.sort_values("median_ms", kind="stable")
    for (workload, device, dtype), group in ordered.groupby(tables.WHAT, sort=False):
        first = group.head(3)
        names = [f"{who} {digits(ms)}" for who, ms in zip(first["implementation"], first["median_ms"], strict=True)]
        rows.append((title(str(workload)), workload, device, dtype, ", ".join(names), len(group)))
    columns = ["description", *tables.WHAT, "fastest, milliseconds", "timed"]
    return pd.DataFrame(rows, columns=columns).sort_values(tables.WHAT, ignore_index=True)
