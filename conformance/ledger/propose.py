"""New records for the failures of a result file, as TOML to read, correct and paste; nothing is written.

A proposal says no more than the file shows: the cases and dtypes that failed in one way, the device that they failed
on, and the series of the version that was run.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.cases import every_case
from conformance.ledger.check import dtypes
from conformance.ledger.record import Deviation, Ledger
from conformance.ledger.versions import series
from conformance.outcomes import Failure, Outcome, Result
from conformance.results import Run
from conformance.strict import plain
from impls.select import builtin

#: Width of a line of the ledger; a list of cases that is longer stands one a line.
WIDTH = 120

#: What is said of a wrong value that looks like nothing known.
OTHER_VALUES = "other values"

#: The keys of a record as the ledger has them.
KEYS_IN_ORDER = (
    "id",
    "implementations",
    "package",
    "versions",
    "clause",
    "cases",
    "dtypes",
    "devices",
    "failure",
    "instead",
    "upstream",
)


@dataclass(frozen=True)
class Proposal:
    """Records for failures that no record speaks of, and why each of the other failures has none."""

    records: tuple[Deviation, ...]
    left: tuple[str, ...]

    def text(self) -> str:
        """The records as TOML, and the rest as comments."""
        return "\n\n".join(
            [*(toml(each) for each in self.records), *(f"# not proposed: {plain(why)}" for why in self.left)]
        )


def propose(run: Run, ledger: Ledger) -> Proposal:
    """Records for the failures of a file that the ledger does not cover yet."""
    versions = run.header.versions
    groups: dict[tuple[str, str, str, Failure, str], list[Result]] = defaultdict(list)
    left: list[str] = []
    for result in run.results:
        if result.outcome is not Outcome.FAILED or result.failure is None:
            continue
        why = _unfit(result, ledger, versions)
        if why is None:
            kind = re.sub(r"\d+", "#", _instead(result))  # sizes and addresses differ from case to case
            groups[result.implementation, result.device, result.broken or "", result.failure, kind].append(result)
        elif why:
            left.append(why)
    taken = {each.id for each in ledger.deviations}
    records: list[Deviation] = []
    for (name, device, clause, failure, _), results in groups.items():
        package, version = _package(name, versions)
        if version is None:
            left.append(f"{name}: the file does not say which version of {package} was run")
            continue
        for some, cases in _by_dtypes(name, results):
            record = Deviation(
                id=_id(name, clause, failure, taken),
                implementations=(name,),
                package=package,
                versions=version,
                clause=clause,
                cases=tuple(cases),
                failure=failure,
                instead=_instead(results[0]),
                upstream="unreported",
                dtypes=some,
                devices=(device,),
            )
            taken.add(record.id)
            records.append(record)
    return Proposal(tuple(records), tuple(dict.fromkeys(left)))


def _unfit(result: Result, ledger: Ledger, versions: Mapping[str, str]) -> str | None:
    """Why a failure gets no record of its own, "" if it has one already, None if it gets one."""
    where = f"{result.implementation} in {result.dtype}, case {result.case}"
    if result.case not in every_case():
        return f"{where}: the ledger is of the fixed cases"
    found = ledger.find(result.implementation, result.device, result.dtype, result.case, versions)
    if result.failure is Failure.STALE:
        return f"{where}: {result.reason}"
    if found is None:
        return None
    failure = result.failure.value if result.failure else ""
    return "" if found.failure is result.failure else f"{where}: fails by {failure}, and record {found.name} covers it"


def _instead(result: Result) -> str:
    """What it does instead, as far as the result shows it."""
    if result.failure is Failure.VALUE:
        return result.error_pattern or OTHER_VALUES
    return " ".join(result.reason.split())


def _package(name: str, versions: Mapping[str, str]) -> tuple[str, str | None]:
    """The package whose version decides, and the series of the version that was run."""
    known = builtin().get(name)
    wanted = known.requires if known else tuple(versions)
    package = next((each for each in wanted if each in versions), wanted[0] if wanted else "its package")
    try:
        return package, series(versions[package])
    except (KeyError, ValueError):
        return package, None


def _by_dtypes(name: str, results: Sequence[Result]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The cases of a group by the dtypes in which they fail; () where these are all that they are judged in."""
    failing: dict[str, list[str]] = defaultdict(list)
    for result in results:
        failing[result.case].append(result.dtype)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for case, some in failing.items():
        possible = dtypes(name, case)
        groups[() if set(possible) <= set(some) else tuple(d for d in possible if d in some)].append(case)
    for key in [key for key in groups if key and groups.keys() == {(), key}]:
        if all(set(dtypes(name, case)) <= set(key) for case in groups[()]):  # one record says both
            groups[key] += groups.pop(())
    for some_dtypes, cases in groups.items():
        yield some_dtypes, sorted(cases)


def _id(name: str, clause: str, failure: Failure, taken: Iterable[str]) -> str:
    """A name that no record has: implementation, clause and failure, and a number if need be."""
    short = name.rpartition("/")[2]
    plain = re.sub(r"[^a-z0-9]+", "-", f"{short}-{clause}-{failure.value}".lower()).strip("-")
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def toml(record: Deviation) -> str:
    """A record as it stands in a ledger file."""
    keys = [key for key in KEYS_IN_ORDER if getattr(record, key) != ()]
    return "\n".join(["[[deviation]]", *(_line(key, getattr(record, key)) for key in keys)])


def _line(key: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f"{key} = {_quoted(value)}"
    line = f"{key} = [{', '.join(map(_quoted, value))}]"
    return line if len(line) <= WIDTH else "\n".join([f"{key} = [", *(f"  {_quoted(each)}," for each in value), "]"])


def _quoted(text: str) -> str:
    """A TOML string: as in JSON, but that the delete character is escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
