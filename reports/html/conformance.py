"""Conformance on the page: the answers at the top, the clause matrix, the divergence of libraries, and accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.ledger import divergence as given
from attention_conformance.conformance.ledger.questions import DTYPE, Question
from attention_conformance.reports.html.views import (
    Answer,
    Cell,
    Column,
    Group,
    Table,
    columns,
    link,
    number,
    short_names,
)
from attention_conformance.reports.model import groups, tables
from attention_conformance.reports.text import NONE, share, shortened, words

#: The clause of each operator about the output of a fully masked row.
MASKED_ROWS = {"sdpa": "SDPA-15", "mha": "MHA-13", "sdpa_grad": "GRAD-8", "mha_grad": "GRAD-24"}

#: Beginning of the questions about such rows.
BEGINS = "fully masked row, "

_WRONG = [Outcome.FAILED.value, Outcome.KNOWN_DEVIATION.value, Outcome.ADVISORY.value]

Who = tuple[str, str]

#: Severity of outcomes: the order in which cells are sorted, and the words for their symbols.
WORDS = {
    "failed": "{0} of {1} cases failed",
    "known-deviation": "{0} of {1} cases are known deviations",
    "advisory": "{0} of {1} cases do not follow a SHOULD",
    "passed": "all {1} cases passed",
    "unsupported": "unsupported",
    "not-applicable": "not applicable inside its envelope",
}

RANK = {"failed": 4, "known-deviation": 3, "advisory": 2, "passed": 1, "unsupported": 0, "not-applicable": 0}

#: Titles of the parts of the spec.
PARTS = {"SDPA": "Attention", **groups.PARTS}

VERDICTS = {
    "failed": "fails",
    "known-deviation": "known deviations",
    "advisory": "conforms, with advisories",
    "passed": "conforms",
    "unsupported": "nothing executed",
    "not-applicable": "nothing executed",
}

#: Marks around an answer that is not the spec's.
BOLD = "**"

BY = ["implementation", "device", "dtype", "profile"]

#: Smaller shares are drawn here, also 0, which a logarithmic axis does not have: a ten thousandth of the bound is as
#: good as exact.
LEAST = 1e-4

#: The quantiles that a bar spans; the largest share has a mark of its own.
LOW, MIDDLE = 0.25, 0.5


def conforms(table: pd.DataFrame) -> Answer:
    """Implementations that fail, that have known deviations, and that have neither."""
    several = table["device"].nunique() > 1
    groups: dict[tuple[str, str], list[Cell]] = {}
    for row in table.to_dict("records"):
        executed = row["passed"] + row["failed"] + row["known-deviation"] + row["advisory"]
        counts = ", ".join(f"{row[outcome]} {words(outcome)}" for outcome in tables.shown_outcomes(table))
        item = Cell(_name((row["implementation"], row["device"]), several), tip=counts, link="#implementations")
        label = ("Nothing executed", "unsupported")
        if executed:
            label = ("No failure, no deviation", "passed")
            label = ("Known deviations", "known-deviation") if row["known-deviation"] else label
            label = ("Fails", "failed") if row["failed"] else label
        groups.setdefault(label, []).append(item)
    failing = len(groups.get(("Fails", "failed"), ()))
    conforming = len(groups.get(("No failure, no deviation", "passed"), ()))
    lead = f"{conforming} of {len(table)} implementations {_are(conforming, 'conforms', 'conform')}"
    lead += f"; {failing} {_are(failing, 'fails', 'fail')}." if failing else "; none has a new failure."
    order = ("failed", "known-deviation", "passed", "unsupported")
    found = tuple(
        Group(f"{label} ({len(items)})", look, tuple(items))
        for (label, look), items in sorted(groups.items(), key=lambda group: order.index(group[0][1]))
    )
    numbers = table[list(tables.shown_outcomes(table))].sum()
    counts = ", ".join(f"{number:,} {words(str(name))}" for name, number in numbers.items())
    note = f"{numbers.sum():,} results: {counts}."
    return Answer("conforms", "Which implementations conform to the spec?", lead, found, note, "conformance")


def masked_rows(frame: pd.DataFrame, results: Sequence[Result]) -> Answer | None:
    """Implementations that are right about fully masked rows: they break no such clause, and no such answer differs."""
    named = list(MASKED_ROWS.values())
    about = frame["clauses"].str.contains("|".join(rf"\b{name}\b" for name in named)) | frame["broken"].isin(named)
    judged = tables.judgements(frame[about & frame["outcome"].isin(tables.EXECUTED)])
    judged = judged[judged["clause"].isin(named)]
    answered = {each.operator: each for each in given.answers(results)}
    several = frame["device"].nunique() > 1
    found: list[Group] = []
    for operator, clause in MASKED_ROWS.items():
        of = judged[judged["clause"] == clause]
        found += _groups(operator, clause, of, answered.get(operator), several=several)
    if not found:
        return None
    sdpa = [group for group in found if group.label.startswith(given.OPERATORS["sdpa"])] or found
    right, wrong = (
        sum(len(group.items) for group in sdpa if group.look == look) for look in ("passed", "known-deviation")
    )
    lead = f"{right} of {right + wrong} that can mask a whole row {_are(right)} right"
    lead += f", {wrong} {_are(wrong)} wrong." if wrong else "."
    lead = lead if right or wrong else "No supported case here masks a whole row."
    note = "Right: a query without an allowed key gives zeros, however it is masked. Links open the cases."
    question = "Which implementations handle fully masked rows correctly?"
    fold = "Layers and gradients" if any(group.folded for group in found) else ""
    return Answer("empty-rows", question, lead, tuple(found), note, "divergence", fold)


def _are(number: int, one: str = "is", many: str = "are") -> str:
    return one if number == 1 else many


def _name(who: Who, several: bool) -> str:
    """Name of an implementation, with its device where there are several."""
    return " ".join(who) if several else who[0]


def _groups(
    operator: str, clause: str, judged: pd.DataFrame, answered: given.Answers | None, *, several: bool
) -> list[Group]:
    executed = dict.fromkeys(zip(judged["implementation"], judged["device"], strict=True))
    bad = judged[judged["outcome"].isin(_WRONG)].drop_duplicates(["implementation", "device"])
    wrong: dict[Who, Cell] = {}
    for row in bad.to_dict("records"):
        who = (row["implementation"], row["device"])
        tip = row["error_pattern"] or row["reason"]
        wrong[who] = Cell(_name(who, several), tip=tip, link=link("clause", clause, *who))
    silent: dict[Who, Cell] = {}
    for who, said in _answers_of(answered).items():
        otherwise = [(question, text) for question, text in said if text.startswith(BOLD)]
        if otherwise:
            wrong[who] = _differs(who, otherwise, several)
        elif who not in executed and said and all(text == given.UNSUPPORTED for _, text in said):
            tip = "it has no way to mask a whole row"
            silent[who] = Cell(_name(who, several), tip=tip, link=link("clause", clause, *who))
    right = {who: Cell(_name(who, several), link=link("clause", clause, *who)) for who in executed if who not in wrong}
    title = given.OPERATORS[operator]
    labels = (
        ("right", "passed", right),
        ("wrong", "known-deviation", wrong),
        ("unsupported", "unsupported", silent),
    )
    folded = operator != "sdpa"
    return [
        Group(f"{title}: {label} ({len(items)})", look, tuple(items.values()), folded)
        for label, look, items in labels
        if items
    ]


def _answers_of(answered: given.Answers | None) -> Mapping[Who, list[tuple[Question, str]]]:
    if answered is None:
        return {}
    at = [(number, question) for number, question in enumerate(answered.questions) if question.text.startswith(BEGINS)]
    return {who: [(question, row[number]) for number, question in at] for who, row in answered.answers.items()}


def _differs(who: Who, otherwise: Sequence[tuple[Question, Any]], several: bool) -> Cell:
    by_text: dict[str, list[str]] = {}
    for question, text in otherwise:
        by_text.setdefault(text.strip("*"), []).append(question.text.removeprefix(BEGINS))
    tip = "; ".join(f"{text} ({', '.join(ways)})" for text, ways in by_text.items())
    return Cell(_name(who, several), tip=tip, link=link("result", *who, DTYPE, otherwise[0][0].case))


def implementations(table: pd.DataFrame) -> Table:
    """One row per implementation and device: results by outcome, the largest share of the bound, profiles met."""
    shown = tables.shown_outcomes(table)
    rows = []
    for row in table.to_dict("records"):
        verdict = next((name for name in RANK if row[name]), "unsupported")
        counts = [Cell(str(row[name]), row[name], look=name if row[name] else "none") for name in shown]
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
    numbers = (*map(words, shown), "worst share")
    heads = columns("implementation", "device", "verdict", *numbers, "profiles met", numbers=numbers)
    note = (
        "Worst share: the largest error, as a share of its bound, over the cases that passed. Profiles met: the"
        " strictest precision profile whose bounds all of these cases keep, by dtype."
    )
    return Table("implementations", "Conformance by implementation", heads, tuple(rows), note)


def matrices(long: pd.DataFrame) -> list[Table]:
    """One table for each part of the spec: the clauses that were run × the implementations that ran them."""
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
        rows.append((head, *(_result_cell(cells.get((clause, *each))) for each in who)))
    short = short_names(name for name, _ in who)
    heads = [Column("clause"), *(Column(_name((short[name], device), several), narrow=True) for name, device in who)]
    return Table(f"matrix-{prefix.lower()}", f"{prefix}: {PARTS.get(prefix, prefix)}", tuple(heads), tuple(rows))


def _result_cell(row: Mapping[Any, Any] | None) -> Cell:
    if row is None:
        return Cell("", "", spoken="not run")
    worst = next((name for name in RANK if row[name]), "unsupported")
    executed = sum(row[name] for name in tables.EXECUTED)
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
                f"{tables.SYMBOLS[row['outcome']]} {words(row['outcome'])}{': ' * bool(row['kind'])}{row['kind']}",
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
    return Table("differences", "Differences from the spec", heads, rows)


def divergence(results: Iterable[Result]) -> list[Table]:
    """One table per operator: implementations that differ have a column; the others are named below it."""
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
    names = {who: _name(who, several) for who in found.answers}
    right = [f"{names[who]} ({_supported(row)})" for who, row in found.answers.items() if who not in others]
    note = f"In {DTYPE}, one case per question."
    if right:
        note += " Same as the spec on every question they support"
        note += f" (number supported, of {len(found.questions)}): {', '.join(right)}."
    title = given.OPERATORS.get(found.operator, found.operator)
    short = short_names(name for name, _ in found.answers)
    titles = [_name((short[name], device), several) for name, device in others]
    heads = (Column("question"), Column("spec"), *map(Column, titles))
    return Table(f"divergence-{found.operator}", title, heads, tuple(rows), note)


def answer(text: str, fragment: str = "") -> Cell:
    """One answer: tinted and marked where it is not what the spec says."""
    if text == given.NOT_ASKED:
        return Cell("", "", spoken="not run")
    if text == given.UNSUPPORTED:
        return Cell("–", text, tip=text, link=fragment, look="unsupported", spoken=text)
    if text.startswith(BOLD):
        plain = text.strip("*")
        return Cell(f"≠ {plain}", plain, link=fragment, look="known-deviation", spoken=f"differs: {plain}")
    return Cell(text, link=fragment, look="passed")


def _supported(row: tuple[str, ...]) -> int:
    return sum(cell not in (given.UNSUPPORTED, given.NOT_ASKED) for cell in row)


def shares(results: pd.DataFrame) -> pd.DataFrame:
    """One row per implementation, device, dtype and profile, over its passed cases that compared anything."""
    passed = results[(results["outcome"] == Outcome.PASSED.value) & results["share"].notna()]
    passed = passed.assign(profile=passed["profile"].fillna(""))
    groups = passed.groupby(BY, sort=False)["share"]
    found = pd.DataFrame({"low": groups.quantile(LOW), "median": groups.quantile(MIDDLE)})
    found = found.assign(worst=groups.max(), cases=groups.size())
    found["case"] = passed.loc[groups.idxmax(), "case"].to_numpy() if len(passed) else []
    return found.reset_index()


def share_marks(found: pd.DataFrame) -> pd.DataFrame:
    """The shares with the positions of the marks in the plot."""
    places = {f"{name}_at": found[name].astype(float).clip(lower=LEAST) for name in ("low", "median", "worst")}
    return found.assign(**places)


def accuracy(found: pd.DataFrame) -> Table:
    """The shares as a table."""
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
            Cell(row["case"], link=link("result", *(row[name] for name in (*BY[:3], "case")))),
        )
        for row in found.to_dict("records")
    )
    numbers = ("cases", "lower quartile", "median", "worst")
    heads = columns(*BY, *numbers, "worst case", numbers=numbers)
    return Table("accuracy", "Share of the bound", heads, rows, "Over the cases that passed; 1 is the bound.")
