"""Measure of the diagnosis on the gallery: which causes found by a person it names by itself, and how often wrongly.

The judgements are in the manifest: the words of the diagnosis that name a cause, or that say something else about its
failures.  They are compared with the published diagnoses, so that none is made up or out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from attention_conformance.conformance.ledger.divergence import escaped
from attention_conformance.conformance.results.parse import Explanation
from attention_conformance.impls.gallery import Cause, Entry, Says
from attention_conformance.reports.gallery.view import Row, View


class Verdict(Enum):
    """Verdict of the diagnosis on a cause."""

    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"


@dataclass(frozen=True)
class Judged:
    """A cause that a person found, what the diagnosis says about its failures, and whether that names it."""

    entry: Entry
    cause: Cause
    verdict: Verdict

    @property
    def said(self) -> str:
        """The words of the diagnosis, "" where it says nothing."""
        return self.cause.named or self.cause.misnamed


@dataclass(frozen=True)
class Measured:
    """All causes of the entries whose results have a diagnosis, and the number of its explanations."""

    causes: tuple[Judged, ...]
    #: Numbers of explanations that name a cause that was found, another true one, or a false one.
    naming: int
    true: int
    false: int
    #: Number of failed entries with a diagnosis, and names of those that were kept without one.
    entries: int
    without: tuple[str, ...]

    @property
    def explanations(self) -> int:
        """Number of explanations."""
        return self.naming + self.true + self.false

    def count(self, verdict: Verdict) -> int:
        """Number of causes with a verdict."""
        return sum(each.verdict is verdict for each in self.causes)


def measured(view: View) -> Measured:
    """Verdicts of the diagnosis on the gallery's causes.

    A finding that is a choice is no failure, and one whose clauses no case breaks is not visible: neither is counted.

    Parameters
    ----------
    view
        View of the published results.

    Returns
    -------
    Measured
        Verdicts and counts.
    """
    rows = [row for row in view.rows if row.failed and row.diagnosis]
    judged = tuple(each for row in rows for each in _judged(row))
    kinds = Counter(kind for row in rows for kind in _kinds(row))
    without = tuple(row.entry.name for row in view.rows if row.failed and not row.diagnosis)
    return Measured(judged, kinds["naming"], kinds["true"], kinds["false"], len(rows), without)


def _judged(row: Row) -> Iterator[Judged]:
    for cause in _causes(row):
        verdict = Verdict.RIGHT if cause.named else Verdict.WRONG if cause.misnamed else Verdict.NONE
        yield Judged(row.entry, cause, verdict)


def _causes(row: Row) -> list[Cause]:
    """The causes of a row that are counted."""
    broken = {told.result.broken for told in row.failures}
    some = (cause for each in row.entry.findings if each.says is not Says.BY_DESIGN for cause in each.causes)
    return [cause for cause in some if broken.intersection(cause.clauses)]


def _explanations(row: Row) -> Sequence[Explanation]:
    """Explanations of failures that are no choice."""
    counted = {told.result.case for told in row.failures if told.explanation}
    return [each for each in (row.diagnosis.explanations if row.diagnosis else ()) if counted.intersection(each.cases)]


def _kinds(row: Row) -> Iterator[str]:
    named = [cause.named for cause in _causes(row) if cause.named]
    true = [each.says for each in row.entry.asides if each.is_true]
    for each in _explanations(row):
        if any(words in each.title for words in named):
            yield "naming"
        else:
            yield "true" if any(words in each.title for words in true) else "false"


def problems(view: View) -> list[str]:
    """Judgements of the manifest that the published diagnoses do not support, a sentence each.

    These are words that are in no diagnosis of the cause's failures, and diagnoses that were not judged.

    Parameters
    ----------
    view
        View of the published results.

    Returns
    -------
    list[str]
        Empty where all is well.
    """
    return [text for row in view.rows for text in _problems(row)]


def _problems(row: Row) -> Iterator[str]:
    name, explanations = row.entry.name, _explanations(row)
    broken = {told.result.case: told.result.broken for told in row.failures}
    counted = _causes(row) if row.diagnosis else []
    for cause in (cause for each in row.entry.findings for cause in each.causes):
        said = cause.named or cause.misnamed
        if said and cause not in counted:
            yield f"{name}: {cause.what}: it fails no case, or its diagnosis is not published"
        about = [each for each in explanations if any(broken.get(case) in cause.clauses for case in each.cases)]
        if said and not any(said in each.title for each in about):
            yield f"{name}: {cause.what}: no diagnosis of its failures says “{said}”"
    words = [cause.named or cause.misnamed for cause in counted] + [each.says for each in row.entry.asides]
    for each in explanations:
        if not any(said in each.title for said in words if said):
            yield f"{name}: nobody has judged the diagnosis {each.title}"
    titles = [each.title for each in explanations]
    for aside in row.entry.asides:
        if not any(aside.says in title for title in titles):
            yield f"{name}: no diagnosis says “{aside.says}”"


def table(of: Measured) -> str:
    """The measure as Markdown: the totals, and the causes that are not named.

    Parameters
    ----------
    of
        Everything that was measured.

    Returns
    -------
    str
        Two tables and a sentence.
    """
    causes, said = len(of.causes), of.explanations
    right, wrong, none = (of.count(verdict) for verdict in Verdict)
    lines = [
        "|  | number | of |  |",
        "| --- | ---: | ---: | ---: |",
        f"| causes that the diagnosis names | {right} | {causes} | {_share(right, causes)} |",
        f"| causes whose failures it explains wrongly | {wrong} | {causes} | {_share(wrong, causes)} |",
        f"| causes that it does not name | {none} | {causes} | {_share(none, causes)} |",
        f"| explanations that name a cause that was found | {of.naming} | {said} | {_share(of.naming, said)} |",
        f"| explanations that name another cause, found in its source | {of.true} | {said} | {_share(of.true, said)} |",
        f"| explanations that are wrong | {of.false} | {said} | {_share(of.false, said)} |",
        "",
        "| library | cause that is not named | what the diagnosis says |  |",
        "| --- | --- | --- | --- |",
    ]
    for each in of.causes:
        if each.verdict is not Verdict.RIGHT:
            said_words = f"“{escaped(each.said)}”" if each.said else "–"
            lines.append(f"| {each.entry.name} | {escaped(each.cause.what)} | {said_words} | {each.verdict.value} |")
    without = f"; judged before diagnoses were recorded: {', '.join(of.without)}" if of.without else ""
    return "\n".join([*lines, "", f"{of.entries} ways of calling a library that failed{without}."])


def _share(some: int, of: int) -> str:
    return f"{100 * some / of:.0f}%" if of else "–"
