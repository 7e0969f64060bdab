"""How the libraries answer the questions on which they disagree: question × implementation, from results alone."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from conformance.outcomes import Failure, Outcome
from conformance.questions import QUESTIONS, Question

#: The dtype that the questions are asked in.
DTYPE = "float32"

#: What a failure of a kind does instead; a wrong value is told by what it looks like.
INSTEAD = {
    Failure.VALUE.value: "other values",
    Failure.ERROR.value: "error",
    Failure.NO_ERROR.value: "accepted",
    Failure.CRASHED.value: "crash",
    Failure.TIMEOUT.value: "hangs",
}

UNSUPPORTED = "unsupported"
NOT_ASKED = ""


def answers(frame: pd.DataFrame, questions: Sequence[Question] = QUESTIONS) -> pd.DataFrame:
    """One row per implementation and device, one column per question; what was not run is empty.

    ``frame`` is ``tables.conformance``.  An answer that the spec does not give is in bold.
    """
    asked = frame[frame["dtype"] == DTYPE]
    rows = {}
    for who, group in asked.groupby(["implementation", "device"], sort=False):
        by_case = {row.case: row for row in group.itertuples()}
        rows[who] = [answer(by_case.get(q.case), q) for q in questions]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[q.text for q in questions])
    table = table[(table != NOT_ASKED).any(axis=1)]
    table.index = pd.MultiIndex.from_tuples(table.index, names=["implementation", "device"])
    return table


def answer(result: object, question: Question) -> str:
    """What a result answers; ``result`` is a row of the frame, or None."""
    outcome, failure = getattr(result, "outcome", None), getattr(result, "failure", None)
    if outcome is None:
        return NOT_ASKED
    if outcome == Outcome.PASSED.value:
        return question.right
    if outcome == Outcome.UNSUPPORTED.value:
        return UNSUPPORTED
    looks = getattr(result, "looks", "")
    instead = looks or INSTEAD.get(str(failure), str(failure))
    return f"**{instead}**"
