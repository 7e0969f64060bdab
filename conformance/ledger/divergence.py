"""Divergence of the libraries: their answers to the questions on which they disagree, from results only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.questions import DTYPE, QUESTIONS, Question

#: What a failure of a kind does instead; a wrong value is described by what it looks like.
INSTEAD = {
    Failure.VALUE: "other values",
    Failure.ERROR: "error",
    Failure.NO_ERROR: "accepted",
    Failure.STATE: "leaves state changed",
    Failure.CRASHED: "crash",
    Failure.TIMEOUT: "hangs",
    Failure.MEMORY: "out of memory",
}

UNSUPPORTED = "unsupported"
NOT_ASKED = ""

#: Names of the operators in headings.
OPERATORS = {
    "sdpa": "Attention",
    "sdpa_grad": "Gradients of attention",
    "mha": "The multi-head layer",
    "mha_grad": "Gradients of the multi-head layer",
    "merge": "Merging of partial results",
    "varlen": "Packed sequences",
    "paged": "Paged caches",
    "latent": "Latent attention",
}


@dataclass(frozen=True)
class Answers:
    """The answers of some implementations to the questions about one operator, by implementation and device."""

    operator: str
    questions: tuple[Question, ...]
    answers: Mapping[tuple[str, str], tuple[str, ...]]


def answers(results: Iterable[Result], questions: Sequence[Question] = QUESTIONS) -> list[Answers]:
    """One table for each operator with an answer.

    Questions that no implementation was asked are left out, and so are implementations that were asked none.  An answer
    that is not the spec's is in bold.

    Parameters
    ----------
    results
        Results of any implementations, devices and dtypes; only those in float32 are read.
    questions
        Questions, each with its case and the spec's answer.

    Returns
    -------
    list[Answers]
        Answers in the order of the questions' operators.
    """
    by_who: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        if result.dtype == DTYPE:
            by_who.setdefault((result.implementation, result.device), {})[result.case] = result
    found = []
    for operator in dict.fromkeys(every_case()[q.case].operator for q in questions):
        own = [q for q in questions if every_case()[q.case].operator == operator]
        asked = tuple(q for q in own if any(q.case in cases for cases in by_who.values()))
        table = {who: tuple(answer(cases.get(q.case), q) for q in asked) for who, cases in by_who.items()}
        table = {who: row for who, row in table.items() if any(cell != NOT_ASKED for cell in row)}
        if table:
            found.append(Answers(operator, asked, table))
    return found


def answer(result: Result | None, question: Question) -> str:
    """Answer of a result to a question of the ledger."""
    if result is None:
        return NOT_ASKED
    if result.outcome is Outcome.PASSED:
        return question.right
    if result.outcome is Outcome.UNSUPPORTED:
        return UNSUPPORTED
    failure = result.failure or Failure.VALUE
    return f"**{result.error_pattern or INSTEAD.get(failure, failure.value)}**"


def markdown(found: Sequence[Answers], versions: Mapping[str, str], heading: str = "###") -> str:
    """The tables as Markdown, each under its operator; below it, the implementations that always answer as the spec.

    Parameters
    ----------
    found
        The tables.
    versions
        Texts for a row with versions, by implementation; without any there is no such row.
    heading
        The mark of a heading of this level.

    Returns
    -------
    str
        Lines without a final line break.
    """
    devices = {device for each in found for _, device in each.answers}
    return "\n\n".join(_section(each, versions, heading, len(devices) > 1) for each in found)


def _section(found: Answers, versions: Mapping[str, str], heading: str, devices: bool) -> str:
    right = [who for who, row in found.answers.items() if not any(cell.startswith("**") for cell in row)]
    others = [who for who in found.answers if who not in right]
    parts = [f"{heading} {OPERATORS.get(found.operator, found.operator)}"]
    if others:
        head = ["question", "spec", *(_name(who, devices) for who in others)]
        rows = [["version", "", *(versions.get(name, "") for name, _ in others)]] if versions else []
        for at, question in enumerate(found.questions):
            row = [question.text, question.right, *(found.answers[who][at] for who in others)]
            rows.append([escaped(cell) for cell in row])
        parts.append(tabulate(rows, head, tablefmt="github", disable_numparse=True))
    if right:
        names = ", ".join(f"`{_name(who, devices).replace('`', '')}` {_supported(found.answers[who])}" for who in right)
        many = len(found.questions)
        parts.append(f"Same as the spec on every question they support (number supported, of {many}): {names}.")
    return "\n\n".join(parts)


def _supported(row: Sequence[str]) -> int:
    return sum(cell not in (UNSUPPORTED, NOT_ASKED) for cell in row)


def _name(who: tuple[str, str], devices: bool) -> str:
    return escaped(" ".join(who) if devices else who[0])


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table, from any source: no tags, links or images.

    Parameters
    ----------
    text
        Any lines of text.

    Returns
    -------
    str
        One line.
    """
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
