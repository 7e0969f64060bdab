"""Kill matrix: which cases catch which fault, and which cases are not needed.

A fault is plugged in as a user's function is, and judged on every case of its operator.  A fault that fails fewer than
two cases is a hole in the suite.  Conversely, a case must earn its place (tests/test_kill_matrix.py).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attention_conformance.conformance.cases import QUICK, AnyCase, every_case
from attention_conformance.conformance.faults.models.steps import has_effects, unchanged
from attention_conformance.conformance.faults.registry import FAULTS, Fault, link
from attention_conformance.conformance.faults.trials import trial, verdict
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.run_case import blank_of, run_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import Crashed, Pool
from attention_conformance.impls.select import plug_in

#: Number of cases that must catch a fault: a single one could do so by an accident of its data.
LEAST = 2


@dataclass(frozen=True)
class Kill:
    """A fault and the cases that catch it, smallest case first, each with the dtypes in which it does."""

    fault: str
    caught: Mapping[str, tuple[str, ...]]

    @property
    def smallest(self) -> str:
        """The smallest case that catches the fault, "" for a survivor."""
        return next(iter(self.caught), "")


def implementation(fault: Fault) -> Implementation:
    """The fault as a plug-in; all faults share one worker process."""
    plugged = plug_in(f"attention_conformance.conformance.faults:{fault.attribute}")
    return replace(plugged, name=fault.name, worker="faults", operator=fault.operator)


def judge_faults(pool: Pool, faults: Iterable[str] = ()) -> tuple[Kill, ...]:
    """Judge faults on every case and dtype of their operators, on the CPU.

    The order is case by case: what the faults of an operator have in common on a case is computed once
    (models/steps.py).

    Parameters
    ----------
    pool
        Processes to call the faults in.
    faults
        Names in FAULTS; all of them by default.

    Returns
    -------
    tuple of Kill
        The cases that catch each fault, in the order of ``faults``.
    """
    rows = [Row(FAULTS[name], pool) for name in faults or FAULTS]
    for case in sorted(every_case().values(), key=lambda case: case.size):
        for row in rows:
            if row.takes(case):
                row.judge(case, case.dtypes)
    return tuple(Kill(row.fault.name, row.caught) for row in rows)


class Row:
    """A fault that is judged on one case after the other."""

    def __init__(self, fault: Fault, pool: Pool) -> None:
        self.fault, self.plugged, self.pool = fault, implementation(fault), pool
        self.keywords = pool.call(self.plugged, "attention_conformance.impls.calls:describe", self.plugged).keywords
        self.caught: dict[str, tuple[str, ...]] = {}
        pool.call(self.plugged, "attention_conformance.conformance.faults:forget", fault.attribute)  # earlier calls

    def takes(self, case: AnyCase) -> bool:
        """Whether a case is of the fault's operator and needs no keyword that the fault lacks."""
        return self.fault.operator == case.operator and not case.keywords - self.keywords

    def judge(self, case: AnyCase, asked: Sequence[str]) -> None:
        """Record in which of the given dtypes the fault fails a case."""
        dtypes = tuple(dtype for dtype in asked if self.fails(case, dtype))
        if dtypes:
            self.caught[case.name] = dtypes

    def differs(self, case: AnyCase, dtype: str) -> bool:
        """Whether the fault may differ on a case from the correct model, which passes every case."""
        return unchanged(self.fault.make, case, dtype) is None

    def fails(self, case: AnyCase, dtype: str) -> bool:
        """Whether the fault fails a case in a dtype, plugged in as a user's function is."""
        make, profile = self.fault.make, self.plugged.profile(dtype)
        if not has_effects(make):  # type: ignore[arg-type]  # a class is hashable
            return trial(make, case, dtype, profile).verdict.outcome is Outcome.FAILED
        target = Target(self.plugged, "cpu", dtype)
        try:  # as a user's function, so that side effects are looked for
            reply = run_case(target, case, self.pool, timeout=None)
        except Crashed:
            return True
        return verdict(reply, case, blank_of(target, case)).outcome is Outcome.FAILED


def as_json(kills: Iterable[Kill]) -> dict[str, Any]:
    """The kill matrix as plain data, for the report."""
    return {
        "format": "attention-conformance faults 1",
        "cases": len(every_case()),
        "faults": [
            {
                "name": kill.fault,
                "operator": FAULTS[kill.fault].operator,
                "group": FAULTS[kill.fault].group,
                "clause": FAULTS[kill.fault].clause,
                "title": FAULTS[kill.fault].title,
                "when": FAULTS[kill.fault].when,
                "sources": {source: link(source) for source in FAULTS[kill.fault].sources},
                "smallest": kill.smallest,
                "caught": {name: " ".join(dtypes) for name, dtypes in kill.caught.items()},
            }
            for kill in kills
        ],
    }


def quick(caught: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Cases that together catch every fault in functions of any keywords and dtypes, and cover every clause, by name.

    A function runs only the cases whose keywords it has.  So a fault counts once for each smallest set of keywords
    that shows it, in each dtype: NaN in rows that a mask empties is shown to a function that has no bias, too.  Each
    case is the one that adds most to those before it; of several, it is the first in the spec's order.

    Parameters
    ----------
    caught
        Names of the cases that catch each fault, with the dtypes in which they do.

    Returns
    -------
    list of str
        The cases, the one that shows most first.
    """
    shows: dict[str, set[Hashable]] = {name: set(case.clauses) for name, case in every_case().items()}
    for fault, names in caught.items():
        for name, shown in shown_by(names).items():
            shows[name] |= {(fault, dtype, keywords) for dtype, keywords in shown}
    left, chosen = set().union(*shows.values()), []
    while left:
        best = max(shows, key=lambda name: len(shows[name] & left))
        chosen.append(best)
        left -= shows[best]
    return chosen


def shown_by(caught: Mapping[str, Sequence[str]]) -> dict[str, set[tuple[str, frozenset[str]]]]:
    """The dtypes in which each case catches a fault with one of the smallest sets of keywords, and that set.

    Parameters
    ----------
    caught
        Names of the cases that catch the fault, with the dtypes in which they do.

    Returns
    -------
    dict
        Pairs of a dtype and a set of keywords, none of which is a part of another in that dtype, by case.
    """
    found: dict[str, set[tuple[str, frozenset[str]]]] = {name: set() for name in caught}
    for dtype in {dtype for dtypes in caught.values() for dtype in dtypes}:
        sets = {name: frozenset(every_case()[name].keywords) for name, dtypes in caught.items() if dtype in dtypes}
        for name, keywords in sets.items():
            if not any(other < keywords for other in sets.values()):
                found[name].add((dtype, keywords))
    return found


def write(path: Path, choose_quick: bool = False) -> str:
    """Compute the kill matrix and write it to a file; returns how it went in one line.

    With ``choose_quick`` the cases of a quick run are chosen again, and written to their place in the checkout.
    """
    kills = judge_faults(Pool(in_process=True))  # faults are this project's own code, and do not crash
    if choose_quick:
        QUICK.write_text("\n".join(quick({kill.fault: kill.caught for kill in kills})) + "\n", encoding="utf-8")
    path.write_text(json.dumps(as_json(kills), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    survivors = [kill.fault for kill in kills if len(kill.caught) < LEAST]
    return f"{len(kills)} faults, {len(survivors)} caught by fewer than {LEAST} cases {' '.join(survivors)}: {path}"
