"""The semantic divergence matrix: questions on which libraries disagree × implementations."""

from __future__ import annotations

from collections.abc import Iterable

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.ledger import divergence as given
from attention_conformance.conformance.ledger.questions import DTYPE
from attention_conformance.reports.html.views import Cell, Column, Table, link

#: What frames an answer that is not the spec's.
BOLD = "**"


def divergence(results: Iterable[Result]) -> list[Table]:
    """One table per operator: who differs has a column; who answers as the spec says is named below it."""
    found = given.answers(results)
    several = len({device for each in found for _, device in each.answers}) > 1
    return [_table(each, several) for each in found]


def _table(found: given.Answers, several: bool) -> Table:
    others = [who for who, row in found.answers.items() if any(cell.startswith(BOLD) for cell in row)]
    rows = []
    for at, question in enumerate(found.questions):
        head = (Cell(question.text, at), Cell(question.right))
        cells = (answer(found.answers[who][at], link("result", *who, DTYPE, question.case)) for who in others)
        rows.append((*head, *cells))
    names = {who: " ".join(who) if several else who[0] for who in found.answers}
    right = [f"{names[who]} ({_answered(row)})" for who, row in found.answers.items() if who not in others]
    note = f"Asked in {DTYPE}, by one case each."
    if right:
        note += f" As the spec says wherever they answer, of {len(found.questions)} questions: {', '.join(right)}."
    title = given.OPERATORS.get(found.operator, found.operator)
    heads = (Column("question"), Column("the spec"), *(Column(names[who]) for who in others))
    return Table(f"answers-{found.operator}", title, heads, tuple(rows), note)


def answer(text: str, fragment: str = "") -> Cell:
    """One answer: tinted and marked where it is not what the spec says."""
    if text == given.NOT_ASKED:
        return Cell("", "", spoken="not asked")
    if text == given.UNSUPPORTED:
        return Cell("–", text, tip=text, link=fragment, look="unsupported", spoken=text)
    if text.startswith(BOLD):
        plain = text.strip("*")
        return Cell(f"≠ {plain}", plain, link=fragment, look="known-deviation", spoken=f"differs: {plain}")
    return Cell(text, link=fragment, look="passed")


def _answered(row: tuple[str, ...]) -> int:
    return sum(cell not in (given.UNSUPPORTED, given.NOT_ASKED) for cell in row)
