"""Markdown page of some frames: a verdict first, then what it rests on."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attention_conformance.conformance.ledger import divergence
from attention_conformance.conformance.ledger.questions import DTYPE
from attention_conformance.reports.input.read import Records, Source, incomplete
from attention_conformance.reports.input.records import by_file, labels
from attention_conformance.reports.markdown import changes
from attention_conformance.reports.markdown.speed import speed
from attention_conformance.reports.model import faults, memory, tables
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.text import (
    NONE,
    code,
    inert,
    settings,
    share,
    shortened,
    table,
    words,
)


def page(model: Model) -> str:
    """The whole report."""
    records, cells = model.records, model.cells
    sections = ["# Attention: conformance and speed", verdict(model)]
    if model.since:
        sections += ["## What changed since the base run", *changes.sections(model.since)]
    if not model.results.empty:
        sections += ["## Divergence: where libraries disagree", _divergence(records)]
        sections += ["## Conformance", _implementations(model), matrix(model), differences(model)]
    if not cells.empty:
        sections += ["## Speed", *speed(cells, records.sources)]
    if model.memories:
        sections += [
            "## Memory",
            "Growth of memory with the sequence length; the number after a name is its exponent.",
            memory.by_growth(model.memories),
        ]
    if records.faults:
        sections += ["## Faults that the suite catches", *_faults(records)]
    sections += ["## Files and environments", *origins(records.sources)]
    return "\n\n".join(section for section in sections if section) + "\n"


def verdict(model: Model) -> str:
    """The first lines: what fails, how much was executed, what was timed, and whether a run was cut off."""
    records, frame, cells = model.records, model.results, model.cells
    lines = []
    cut = incomplete(records.sources)
    if cut:
        lines.append(
            f"**Incomplete run**: {_names(cut)} ends without a footer; this page has what was written until then."
        )
    if not frame.empty:
        lines.append(_conformance_verdict(frame))
    if not cells.empty:
        lines.append(f"**Speed**: {tables.timing_counts(cells, code)}")
    if model.machines:
        lines.append(f"**{inert(model.machines)}**")
    if model.since:
        lines.append(changes.verdict(model.since))
    if records.faults:
        lines.append(faults.verdict(records.faults, records.cases, inert))
    return "\n\n".join(lines) or "**Nothing was recorded.**"


def _conformance_verdict(frame: pd.DataFrame) -> str:
    counts = frame["outcome"].value_counts()
    executed = int(sum(counts.get(outcome, 0) for outcome in tables.EXECUTED))
    everyone = frame["implementation"].unique()
    failing = frame.loc[frame["outcome"] == "failed", "implementation"].unique()
    if not executed:
        return "**Conformance: unknown, as nothing was executed.**"
    if len(failing):
        start = (
            f"**Conformance: {len(failing)} of {_many(len(everyone), 'implementation')} failed**: {_names(failing)}."
        )
    elif counts.get("known-deviation", 0):
        deviating = frame.loc[frame["outcome"] == "known-deviation", "implementation"].unique()
        start = (
            f"**Conformance: no new failure in {_many(len(everyone), 'implementation')}**;"
            f" {len(deviating)} {'has' if len(deviating) == 1 else 'have'} known deviations: {_names(deviating)}."
        )
    else:
        start = f"**Conformance: {_many(len(everyone), 'implementation')}, no failure.**"
    of = counts.reindex(list(tables.OUTCOMES), fill_value=0).to_frame().T
    numbers = ", ".join(f"{of[outcome].sum()} {words(outcome)}" for outcome in tables.shown_outcomes(of))
    return f"{start} {_many(len(frame), 'result')}: {numbers}."


def _divergence(records: Records) -> str:
    found = divergence.answers(records.results)
    if not found:
        return "No case of these questions was run."
    note = (
        f"In {DTYPE}, one case per question (`conformance/ledger/questions.py`)."
        " Bold: differs from the spec; empty: not run."
    )
    return f"{divergence.markdown(found, {})}\n\n{note}"


def by_implementation(model: Model) -> pd.DataFrame:
    """The table of implementations for a page: without outcomes that did not occur, in a reader's words."""
    frame = model.implementations
    absent = [name for name in tables.OUTCOMES if name not in tables.shown_outcomes(frame)]
    frame = frame.drop(columns=absent).rename(columns=words)
    return frame.assign(**{"profiles met": frame["profiles met"].fillna(NONE)})


def _implementations(model: Model) -> str:
    frame = by_implementation(model)
    frame["worst share"] = frame["worst share"].map(share)
    note = (
        "*Worst share*: the largest error, as a share of its bound, over the cases that passed."
        " *Profiles met*: the strictest precision profile whose bounds all of these cases keep, by dtype."
    )
    return "\n\n".join([table(frame), note, *envelopes(model.records.sources)])


def envelopes(sources: tuple[Source, ...]) -> list[str]:
    """Envelopes of implementations that do not take all calls, a line each; nothing where all do."""
    found = tables.envelopes(sources)
    if not found:
        return []
    lines = "\n".join(f"* {code(name)}: {inert(text)}" for name, text in found)
    return [f"Envelopes of the implementations that do not take every call:\n\n{lines}"]


def matrix(model: Model) -> str:
    """Implementations by clauses, a table for each family of clauses."""
    long = model.matrix
    devices = long["device"].nunique() > 1
    name = long["implementation"] + (" " + long["device"] if devices else "")
    parts = ["### Clause by clause", "Rows are implementations, columns the numbers of the clauses."]
    prefixes = long["clause"].str.rpartition("-")[0]
    for prefix in prefixes.unique():
        rows = long.assign(row=name, number=long["clause"].str.rpartition("-")[2])[prefixes == prefix]
        wide = rows.pivot(index="row", columns="number", values="cell")
        wide = wide.reindex(index=rows["row"].unique(), columns=rows["number"].unique()).fillna(tables.NOT_RUN)
        wide = wide[(wide != tables.NOT_RUN).any(axis=1)]  # the others are of another operator
        if wide.empty:
            continue
        parts.append(table(wide.rename_axis(f"{prefix}-", axis="columns").reset_index(names=f"{prefix}-"), left=1))
        named = rows.drop_duplicates("clause")
        titles = (f"{row.number} {row.title}{_should(row.level)}" for row in named.itertuples())
        parts.append(inert(f"{prefix}: {' · '.join(titles)}."))
    symbols = tables.SYMBOLS
    parts.append(
        f"{symbols['passed']} every executed case passed · {symbols['failed']}k/n k of n executed cases failed ·"
        f" {symbols['known-deviation']}k/n k known deviations · {symbols['advisory']}k/n k do not follow a SHOULD ·"
        f" {symbols['unsupported']} unsupported · {symbols['not-applicable']} not applicable inside the envelope ·"
        " empty: not run."
        " A case that fails counts at the clause it broke; the counts of all are in `matrix.csv`."
    )
    return "\n\n".join(parts)


def _should(level: str) -> str:
    return "" if level in ("MUST", "") else f" ({level})"


def differences(model: Model) -> str:
    """Failures, known deviations and advisories, clause by clause."""
    frame, clauses = model.differences.copy(), model.clauses
    if frame.empty:
        return "### Differences from the spec\n\nNo failures, known deviations or advisories."
    titles = [clauses[name].title if name in clauses else "" for name in frame["clause"]]
    frame["clause"] = [f"{name} {title}".strip() for name, title in zip(frame["clause"], titles, strict=True)]
    outcomes = frame["outcome"].map(words)
    frame["outcome"] = [f"{o}: {k}" if k else o for o, k in zip(outcomes, frame["kind"], strict=True)]
    frame["what it does"] = frame["what it does"].map(shortened)
    if frame["device"].nunique() == 1:
        frame = frame.drop(columns="device")
    return "### Differences from the spec\n\n" + table(frame.drop(columns="kind"))


def _faults(records: Records) -> list[str]:
    return [
        "Each fault changes a few lines of a correct attention, and is checked like a user's function"
        " (`conformance/faults`). *Cases*: how many cases catch it; *smallest*: the smallest of them."
        ' Every case of every fault is in `faults.csv`; "cf." marks a thread about the same mechanism in other code.',
        table(faults.groups(records.faults), left=2),
        "<details><summary>All faults</summary>",
        table(faults.table(records.faults), ready=True),
        "</details>",
    ]


def origins(sources: tuple[Source, ...]) -> list[str]:
    """Tables of the files that the page was made from: the counts of their records, and where they were made."""
    counts = by_file(sources)
    texts = {name: counts[name].map(inert) for name in ("file", "kind", "complete", "why refused") if len(counts)}
    counts = counts.assign(**texts)
    counts["complete"] = counts["complete"].replace("no: cut off", "**no: cut off**")
    parts = ["Records by file:", table(counts, ready=True), "Environments:"]
    environments = [
        f"* {code(label)}: {inert('; '.join(map(' '.join, settings(source.environment))))}"
        for source, label in zip(sources, labels(sources), strict=True)
    ]
    missing = sorted({name for source in sources for name in source.not_installed})
    parts.append("\n".join(environments))
    return [*parts, f"Not installed, so not run: {inert(', '.join(missing))}."] if missing else parts


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(names: Any) -> str:
    return ", ".join(map(code, names))
