"""Frames of records: what happened per implementation, per clause, per workload."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from attention_conformance.conformance.judging import outcomes
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.ledger import divergence as ledger
from attention_conformance.conformance.ledger.questions import Question
from attention_conformance.conformance.spec.clauses import BY_OPTION, Clause, Level
from attention_conformance.impls.contract import Profile
from attention_conformance.reports.input.records import Source

OUTCOMES = tuple(outcome.value for outcome in Outcome)
EXECUTED = tuple(outcome.value for outcome in outcomes.EXECUTED)

#: Symbols of a clause's cell in the matrix, by the most serious outcome of its cases.
SYMBOLS = {
    "failed": "✗",
    "known-deviation": "≠",
    "advisory": "!",
    "passed": "✓",
    "unsupported": "–",
    "not-applicable": "∅",
}
NOT_RUN = ""

#: Order of seriousness; the first that occurs decides the symbol.
_SERIOUS = ("failed", "known-deviation", "advisory")

WHO = ["implementation", "device"]

#: The operator whose questions need no name in front.
PLAIN = "sdpa"

#: Fields that name what is timed, by any implementation.
WHAT = ["workload", "device", "dtype"]


def conformance(results: Iterable[Result]) -> pd.DataFrame:
    """One row per result, in the order of the files; clauses and profiles met are joined by spaces."""
    names = [field.name for field in dataclasses.fields(Result)]
    frame = pd.DataFrame([_plain(result) for result in results], columns=names)
    frame["share"] = frame["share"].astype(float)
    return frame


def _plain(result: Result) -> dict[str, Any]:
    plain = dict(vars(result))
    plain |= {"clauses": " ".join(result.clauses), "meets": " ".join(result.meets), "outcome": result.outcome.value}
    plain |= {"sizes": " ".join(map(str, result.sizes)), "side_effects": "; ".join(result.side_effects)}
    return plain | {"failure": None if result.failure is None else result.failure.value}


def implementations(frame: pd.DataFrame) -> pd.DataFrame:
    """Per implementation and device: results by outcome, worst share, and the strictest profile met per dtype.

    Share and profiles are over the cases that passed: the differences cover the others.
    """
    counts = frame.groupby([*WHO, "outcome"], sort=False).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(OUTCOMES), fill_value=0)
    order = pd.MultiIndex.from_frame(frame[WHO].drop_duplicates())
    passed = frame[(frame["outcome"] == "passed") & frame["share"].notna()]
    counts["worst share"] = passed.groupby(WHO)["share"].max()
    counts["profiles met"] = pd.Series({key: _profiles(group) for key, group in passed.groupby(WHO)}, dtype=object)
    return counts.reindex(order).reset_index().rename_axis(columns=None)


def _profiles(group: pd.DataFrame) -> str:
    texts = []
    for dtype, rows in group.groupby("dtype", sort=False):
        met = set.intersection(*(set(text.split()) for text in rows["meets"]))
        strictest = next((profile.value for profile in Profile if profile.value in met), "none")
        texts.append(f"{dtype} {strictest}")
    return ", ".join(texts)


def judgements(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per result and clause that it says something about.

    A result that broke a clause counts only there: it says nothing about the other clauses of its case.
    """
    broken = frame["broken"].notna()
    of = frame["clauses"].str.split().where(~broken, frame["broken"].map(lambda one: [one]))
    return frame.assign(clause=of).explode("clause").dropna(subset="clause")


def matrix(frame: pd.DataFrame, clauses: Mapping[str, Clause]) -> pd.DataFrame:
    """One row per implementation, device and clause: title, level, cases by outcome, and the symbol of the cell."""
    counts = judgements(frame).groupby([*WHO, "clause", "outcome"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(OUTCOMES), fill_value=0)
    tested = [name for name, clause in clauses.items() if clause.level is not Level.FREE and name not in BY_OPTION]
    tested += [name for name in dict.fromkeys(counts.index.get_level_values("clause")) if name not in clauses]
    who = frame[WHO].drop_duplicates().itertuples(index=False)
    keys = [(*one, clause) for one in who for clause in tested]
    counts = counts.reindex(pd.MultiIndex.from_tuples(keys, names=[*WHO, "clause"]), fill_value=0)
    table = counts.reset_index().rename_axis(columns=None)
    table.insert(3, "title", [clauses[name].title if name in clauses else "" for name in table["clause"]])
    table.insert(4, "level", [clauses[name].level.value if name in clauses else "" for name in table["clause"]])
    table["cell"] = [symbol(row) for row in table[list(OUTCOMES)].to_dict("records")]
    return table


def symbol(counts: Mapping[Any, int]) -> str:
    """The cell of a clause: "✗2/9" if 2 of 9 executed cases failed, and so on; ``counts`` by outcome."""
    executed = sum(counts[outcome] for outcome in EXECUTED)
    for outcome in _SERIOUS:
        if counts[outcome]:
            return f"{SYMBOLS[outcome]}{counts[outcome]}/{executed}"
    if executed:
        return SYMBOLS["passed"]
    return next((SYMBOLS[outcome] for outcome in ("unsupported", "not-applicable") if counts[outcome]), NOT_RUN)


def shown_outcomes(counts: pd.DataFrame) -> tuple[str, ...]:
    """The outcomes that a table with a column for each shows: "not applicable" only where there is any."""
    return tuple(name for name in OUTCOMES if name != Outcome.NOT_APPLICABLE or counts[name].any())


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Failures, deviations and advice, grouped: clause, implementation, what it does instead, number of cases.

    Failures of one kind are one row, with the first reason and the number of others.
    """
    rows = judgements(frame)
    rows = rows[rows["outcome"].isin(_SERIOUS)].copy()
    rows["failure"] = rows["failure"].fillna("")
    rows["ledger"] = rows["reason"].where(rows["outcome"] == "known-deviation", "")
    keys = ["clause", "implementation", "device", "outcome", "failure", "ledger"]
    found = []
    for key, group in rows.groupby(keys, sort=False):
        clause, implementation, device, outcome, failure, _ = key
        reasons = list(dict.fromkeys(group["reason"]))
        instead = reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
        dtypes = " ".join(dict.fromkeys(group["dtype"]))
        found.append((clause, implementation, device, outcome, failure, instead, dtypes, len(group)))
    columns = ["clause", "implementation", "device", "outcome", "kind", "what it does", "dtypes", "cases"]
    table = pd.DataFrame(found, columns=columns)
    return table.sort_values("clause", key=lambda column: column.map(clause_order), kind="stable", ignore_index=True)


def clause_order(name: str) -> tuple[str, int]:
    """Sorts SDPA-9 before SDPA-10."""
    operator, _, number = name.rpartition("-")
    return operator, int(number) if number.isdigit() else 0


def divergence(results: Iterable[Result]) -> pd.DataFrame:
    """One row per implementation and device, one column per question; what was not run is empty.

    An answer that differs from the spec is in bold.
    """
    columns: dict[str, dict[tuple[str, str], str]] = {}
    for table in ledger.answers(results):
        for at, question in enumerate(table.questions):
            cells = {who: row[at] for who, row in table.answers.items()}
            columns[_heading(table.operator, question)] = cells
    who = dict.fromkeys(each for cells in columns.values() for each in cells)
    frame = pd.DataFrame({text: [cells.get(each, ledger.NOT_ASKED) for each in who] for text, cells in columns.items()})
    frame.index = pd.MultiIndex.from_tuples(list(who), names=["implementation", "device"]) if who else frame.index
    return frame


def _heading(operator: str, question: Question) -> str:
    """The heading of a column."""
    return question.text if operator == PLAIN else f"{operator}: {question.text}"


def bench(cells: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per cell; times in seconds, ``median_ms`` in milliseconds, NaN where the cell has no timing."""
    frame = pd.DataFrame(list(cells))
    if "median" not in frame:
        frame["median"] = frame["gflops"] = frame["prepare_seconds"] = frame["first_call_seconds"] = float("nan")
    frame["median_ms"] = frame["median"] * 1e3
    return frame


def timing_counts(cells: pd.DataFrame, shown: Callable[[str], str] = str) -> str:
    """Number of cells that have a time, and of the others by outcome, with the names of those that are wrong.

    Parameters
    ----------
    cells
        Cells as ``bench`` gives them.
    shown
        Formats a name.

    Returns
    -------
    str
        Sentences.
    """
    counts = cells["outcome"].value_counts()

    def names(outcome: str) -> str:
        of = cells.loc[cells["outcome"] == outcome, "implementation"].unique()
        return f" ({', '.join(map(shown, of))})." if len(of) else "."

    timed = counts.get("timed", 0)
    text = f"{timed} {'cell' if timed == 1 else 'cells'} timed, {counts.get('skipped', 0)} skipped,"
    text += f" {counts.get('invalid', 0)} invalid{names('invalid')}"
    several = "s" if counts.get("known-deviation", 0) != 1 else ""
    for outcome, said in (
        ("unstable", "unstable, timed but not ranked"),
        ("known-deviation", f"known deviation{several}"),
    ):
        text += f" {counts[outcome]} {said}{names(outcome)}" if outcome in counts else ""
    return text


def by_length(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """One value of the cells of one family, device and dtype: implementation × S, best at the longest length first."""
    table = frame.pivot(index="implementation", columns="S", values=value)
    speed = frame.pivot(index="implementation", columns="S", values="median_ms")
    order = speed.sort_values(by=list(speed.columns[::-1]), na_position="last").index
    return table.reindex(order)


def envelopes(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Implementations that do not take every call: the name, and one line on the calls taken, with disagreements.

    For an implementation in several files, the first one counts.
    """
    found: dict[str, str] = {}
    for source in sources:
        given = source.environment.get("envelopes", ())
        for each in given if isinstance(given, (list, tuple)) else ():
            if isinstance(each, Mapping) and {"implementation", "text"} <= each.keys():
                besides = each.get("disagreements", ())
                besides = map(str, besides if isinstance(besides, (list, tuple)) else ())
                text = "; ".join([str(each["text"]), *besides])
                source_of = f" ({each['source']})" if each.get("source") else ""
                found.setdefault(str(each["implementation"]), text + source_of)
    return list(found.items())


def untimed(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells without a timing, one row for each family and kind of reason, with the first reason."""
    rows = frame[frame["outcome"] != "timed"].copy()
    if rows.empty:
        return rows
    apart = rows["outcome"] == "unstable"
    if apart.any():
        times = [f"{1e3 * seconds:.3g} ms apart: " for seconds in rows.loc[apart, "seconds"]]
        rows.loc[apart, "reason"] = times + rows.loc[apart, "reason"]
    rows["kind"] = rows["reason"].str.partition(":")[0]
    keys = ["implementation", "device", "dtype", "family", "outcome", "clause", "kind"]
    groups = rows.groupby(keys, sort=False)
    table = groups.agg(S=("S", lambda lengths: ", ".join(map(str, lengths))), reason=("reason", "first"))
    return table.reset_index().drop(columns="kind")
