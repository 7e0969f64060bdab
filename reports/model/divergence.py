"""How the libraries answer the questions on which they disagree, as one table: implementation × question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.ledger import divergence as given
from attention_conformance.conformance.ledger.questions import QUESTIONS, Question

#: The operator whose questions need no name in front.
PLAIN = "sdpa"


def answers(results: Iterable[Result], questions: Sequence[Question] = QUESTIONS) -> pd.DataFrame:
    """One row per implementation and device, one column per question; what was not run is empty.

    An answer that the spec does not give is in bold.
    """
    columns: dict[str, dict[tuple[str, str], str]] = {}
    for table in given.answers(results, questions):
        for at, question in enumerate(table.questions):
            cells = {who: row[at] for who, row in table.answers.items()}
            columns[name(table.operator, question)] = cells
    who = dict.fromkeys(each for cells in columns.values() for each in cells)
    frame = pd.DataFrame({text: [cells.get(each, given.NOT_ASKED) for each in who] for text, cells in columns.items()})
    frame.index = pd.MultiIndex.from_tuples(list(who), names=["implementation", "device"]) if who else frame.index
    return frame


def name(operator: str, question: Question) -> str:
    """The heading of a column."""
    return question.text if operator == PLAIN else f"{operator}: {question.text}"
