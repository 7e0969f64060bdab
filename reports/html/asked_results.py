"""The questions at the top that conformance answers: who conforms, and who is right about fully masked rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.ledger import divergence as given
from attention_conformance.conformance.ledger.questions import DTYPE, Question
from attention_conformance.reports.html.answers import BOLD
from attention_conformance.reports.html.views import Answer, Cell, Group, link
from attention_conformance.reports.model import tables

#: The clause of each operator that says what a fully masked row gives.
EMPTY_ROWS = {"sdpa": "SDPA-15", "mha": "MHA-13", "sdpa_grad": "GRAD-8", "mha_grad": "GRAD-24"}

#: How the questions about such rows begin.
BEGINS = "fully masked row, "

_BAD = [Outcome.FAILED.value, Outcome.KNOWN_DEVIATION.value, Outcome.ADVISORY.value]

Who = tuple[str, str]


def conforms(table: pd.DataFrame) -> Answer:
    """Who fails, who deviates as recorded, and who does neither."""
    several = table["device"].nunique() > 1
    groups: dict[tuple[str, str], list[Cell]] = {}
    for row in table.to_dict("records"):
        executed = row["passed"] + row["failed"] + row["known-deviation"] + row["advisory"]
        counts = ", ".join(f"{row[outcome]} {outcome}" for outcome in tables.OUTCOMES)
        name = " ".join((row["implementation"], row["device"])) if several else row["implementation"]
        item = Cell(name, tip=counts, link="#implementations")
        label = ("Nothing executed", "unsupported")
        if executed:
            label = ("No failure, no deviation", "passed")
            label = ("Deviates as recorded", "known-deviation") if row["known-deviation"] else label
            label = ("Fails", "failed") if row["failed"] else label
        groups.setdefault(label, []).append(item)
    failing = len(groups.get(("Fails", "failed"), ()))
    lead = f"{len(groups.get(('No failure, no deviation', 'passed'), ()))} of {len(table)} implementations conform"
    lead += f"; {failing} fail." if failing else "; none has a new failure."
    order = ("failed", "known-deviation", "passed", "unsupported")
    found = tuple(
        Group(f"{label} ({len(items)})", look, tuple(items))
        for (label, look), items in sorted(groups.items(), key=lambda group: order.index(group[0][1]))
    )
    numbers = table[list(tables.OUTCOMES)].sum()
    note = f"{numbers.sum():,} results: {', '.join(f'{numbers[name]:,} {name}' for name in tables.OUTCOMES)}."
    return Answer("conforms", "Which implementations conform to the spec?", lead, found, note, "conformance")


def empty_rows(frame: pd.DataFrame, results: Sequence[Result]) -> Answer | None:
    """Who is right about fully masked rows: breaks no such clause, and answers no such question in another way."""
    named = list(EMPTY_ROWS.values())
    about = frame["clauses"].str.contains("|".join(rf"\b{name}\b" for name in named)) | frame["broken"].isin(named)
    judged = tables.judgements(frame[about & (frame["outcome"] != "unsupported")])
    judged = judged[judged["clause"].isin(named)]
    asked = {found.operator: found for found in given.answers(results)}
    groups: list[Group] = []
    for operator, clause in EMPTY_ROWS.items():
        groups += _groups(operator, clause, judged[judged["clause"] == clause], asked.get(operator))
    if not groups:
        return None
    sdpa = [group for group in groups if group.label.startswith(given.OPERATORS["sdpa"])] or groups
    count = {
        look: sum(len(group.items) for group in sdpa if group.look == look) for look in ("passed", "known-deviation")
    }
    lead = (
        f"{count['passed']} of {sum(count.values())} that can be asked are right, {count['known-deviation']} are not."
    )
    note = "Right: a query that no key may answer gives zeros, however it was masked. Links lead to the cases."
    question = "Which implementations are right about fully masked rows?"
    fold = "Layers and gradients" if any(group.folded for group in groups) else ""
    return Answer("empty-rows", question, lead, tuple(groups), note, "divergence", fold)


def _groups(operator: str, clause: str, judged: pd.DataFrame, asked: given.Answers | None) -> list[Group]:
    executed = dict.fromkeys(zip(judged["implementation"], judged["device"], strict=True))
    bad = judged[judged["outcome"].isin(_BAD)].drop_duplicates(["implementation", "device"])
    wrong: dict[Who, Cell] = {}
    for row in bad.to_dict("records"):
        who = (row["implementation"], row["device"])
        wrong[who] = Cell(who[0], tip=row["error_pattern"] or row["reason"], link=link("clause", clause, *who))
    silent: dict[Who, Cell] = {}
    for who, said in _said(asked).items():
        otherwise = [(question, text) for question, text in said if text.startswith(BOLD)]
        if otherwise:
            wrong[who] = _differs(who, otherwise)
        elif who not in executed and said and all(text == given.UNSUPPORTED for _, text in said):
            silent[who] = Cell(who[0], tip="has no way to mask a whole row", link=link("clause", clause, *who))
    right = {who: Cell(who[0], link=link("clause", clause, *who)) for who in executed if who not in wrong}
    title = given.OPERATORS[operator]
    labels = (
        ("right", "passed", right),
        ("wrong", "known-deviation", wrong),
        ("cannot be asked", "unsupported", silent),
    )
    folded = operator != "sdpa"
    return [
        Group(f"{title}: {label} ({len(items)})", look, tuple(items.values()), folded)
        for label, look, items in labels
        if items
    ]


def _said(asked: given.Answers | None) -> Mapping[Who, list[tuple[Question, str]]]:
    if asked is None:
        return {}
    at = [(number, question) for number, question in enumerate(asked.questions) if question.text.startswith(BEGINS)]
    return {who: [(question, row[number]) for number, question in at] for who, row in asked.answers.items()}


def _differs(who: Who, otherwise: Sequence[tuple[Question, Any]]) -> Cell:
    by_text: dict[str, list[str]] = {}
    for question, text in otherwise:
        by_text.setdefault(text.strip("*"), []).append(question.text.removeprefix(BEGINS))
    tip = "; ".join(f"{text} ({', '.join(ways)})" for text, ways in by_text.items())
    return Cell(who[0], tip=tip, link=link("result", *who, DTYPE, otherwise[0][0].case))
