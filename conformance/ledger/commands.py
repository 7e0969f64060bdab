"""Commands of the ledger: propose, stale, apply, list, issue and page.

A proposal has new records for the failures of a result file, as TOML to read, correct and paste.  It says no more than
the file shows: the cases and dtypes that failed in one way, the device that they failed on, and the series of the
version that was run.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec import to_builtins
from tabulate import tabulate

from attention_conformance.conformance import results
from attention_conformance.conformance.cases import asked_cases
from attention_conformance.conformance.judging.outcomes import STREAM_ORDER, Failure, Outcome, Result
from attention_conformance.conformance.ledger import issues, page
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.load import KEYS, LEDGER, Deviation, Ledger, dtypes, read
from attention_conformance.conformance.ledger.stale import Standing, stale
from attention_conformance.conformance.ledger.versions import series
from attention_conformance.conformance.results import Run
from attention_conformance.conformance.script import run_script
from attention_conformance.impls.checkout import writable
from attention_conformance.impls.select import builtin
from attention_conformance.impls.strict import plain

#: Width of a line of the ledger; a longer list of cases has one case per line.
WIDTH = 120

#: Description of a wrong value that looks like nothing known.
OTHER_VALUES = "other values"

#: Standings of the records that ``stale`` prints, worst first; records that hold are only counted.
REPORTED = (Standing.GONE, Standing.PARTLY_GONE, Standing.NOT_EXERCISED)

_ENDS = "Ends with {}, 2 if a file cannot be used."


@dataclass(frozen=True)
class Proposal:
    """Records for failures that no record covers, and why the other failures get none."""

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
    for (name, device, clause, failure, _), some_results in groups.items():
        package, version = _package(name, versions)
        if version is None:
            left.append(f"{name}: the file does not say which version of {package} was run")
            continue
        for some, cases in _by_dtypes(name, some_results):
            record = Deviation(
                id=_id(name, clause, failure, taken),
                implementations=(name,),
                package=package,
                versions=version,
                clause=clause,
                cases=tuple(cases),
                failure=failure,
                instead=_instead(some_results[0]),
                upstream="unreported",
                dtypes=some,
                devices=(device,),
            )
            taken.add(record.id)
            records.append(record)
    return Proposal(tuple(records), tuple(dict.fromkeys(left)))


def _unfit(result: Result, ledger: Ledger, versions: Mapping[str, str]) -> str | None:
    """Reason why a failure gets no record of its own, "" if it has one already, None if it gets one."""
    where = f"{result.implementation} in {result.dtype}, case {result.case}"
    if result.case not in asked_cases():
        return f"{where}: the ledger covers only the fixed cases"
    found = ledger.find(result.implementation, result.device, result.dtype, result.case, versions)
    if result.failure is Failure.STALE:
        return f"{where}: {result.reason}"
    if found is None:
        return None
    if found.shown_by(result):
        return ""
    said = f" if it says {found.says!r}" if found.failure is result.failure else ""
    failure = result.failure.value if result.failure else ""
    return f"{where}: fails by {failure}, and record {found.name} covers it{said}"


def _instead(result: Result) -> str:
    """Text on what the implementation does instead, as far as the result shows it."""
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
    """The cases of a group by the dtypes in which they fail; () where these are all their dtypes."""
    failing: dict[str, list[str]] = defaultdict(list)
    for result in results:
        failing[result.case].append(result.dtype)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for case, some in failing.items():
        possible = dtypes(name, case)
        groups[() if set(possible) <= set(some) else tuple(d for d in possible if d in some)].append(case)
    for key in [key for key in groups if key and groups.keys() == {(), key}]:
        if all(set(dtypes(name, case)) <= set(key) for case in groups[()]):  # one record covers both
            groups[key] += groups.pop(())
    for some_dtypes, cases in groups.items():
        yield some_dtypes, sorted(cases)


def _id(name: str, clause: str, failure: Failure, taken: Iterable[str]) -> str:
    """A name that no record has: implementation, clause and failure, and a number if needed."""
    short = name.rpartition("/")[2]
    plain = re.sub(r"[^a-z0-9]+", "-", f"{short}-{clause}-{failure.value}".lower()).strip("-")
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def toml(record: Deviation) -> str:
    """A record as it is written in a ledger file."""
    keys = [key for key in KEYS if getattr(record, key) != () and (key != "seen" or record.seen)]
    return "\n".join(["[[deviation]]", *(_line(key, getattr(record, key)) for key in keys)])


def _line(key: str, value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f"{key} = {_quoted(value)}"
    line = f"{key} = [{', '.join(map(_quoted, value))}]"
    return line if len(line) <= WIDTH else "\n".join([f"{key} = [", *(f"  {_quoted(each)}," for each in value), "]"])


def _quoted(text: str) -> str:
    """A TOML string: as in JSON, with the delete character escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def run_ledger(action: str, deviations: list[Path], results: list[Path], record: str = "") -> str | tuple[str, int]:
    """Run one of the commands.

    Parameters
    ----------
    action
        ``list``, ``issue``, ``propose``, ``stale``, ``apply`` or ``page``.
    deviations
        Ledgers in addition to the suite's own.
    results
        Result files of conformance.
    record
        The id of the record that ``issue`` is about, or the file that ``apply`` writes.

    Returns
    -------
    str | tuple[str, int]
        Text to print, with an exit status if the command may fail.

    Raises
    ------
    LedgerError
        For a ledger that cannot be used.
    ResultFileError
        For a result file that cannot be used.
    """
    ledger = read([LEDGER, *deviations])
    if action == "issue":
        return _issue(record, ledger)
    if action == "propose":
        return _propose(results, ledger)
    if action == "stale":
        return _stale(results, ledger)
    if action == "apply":
        return _apply(results[0], Path(record), ledger)
    return _list(ledger) if action == "list" else _page(results, ledger)


def _propose(paths: list[Path], ledger: Ledger) -> tuple[str, int]:
    """New records, and 0 if there is nothing to propose or report, else 1."""
    proposal = propose(results.read(paths[0]), ledger)
    return proposal.text() or "# every failure is in the ledger", 1 if proposal.records or proposal.left else 0


def _stale(paths: list[Path], ledger: Ledger) -> tuple[str, int]:
    """Verdicts on the records, and 1 if a record is out of date, else 0, even if some were not exercised."""
    runs = [results.read(path) for path in paths]
    verdicts = stale(runs, ledger)
    lines = [each.text() for standing in REPORTED for each in verdicts if each.standing is standing]
    counts = Counter(each.standing for each in verdicts)
    lines.append(
        f"{len(verdicts)} records: {', '.join(f'{standing.value} {counts[standing]}' for standing in Standing)}"
    )
    lines += [
        f"{path} was cut off: it has no footer" for path, run in zip(paths, runs, strict=True) if not run.complete
    ]
    return "\n".join(lines), 1 if counts[Standing.GONE] or counts[Standing.PARTLY_GONE] else 0


def _issue(id_: str, ledger: Ledger) -> str | tuple[str, int]:
    """The text of an upstream issue; for a record without one, the script of its first case."""
    found = issues.find(id_, ledger)
    if isinstance(found, issues.Issue):
        return issues.write(found)
    implementation, device, dtype, case = page.example(found)
    return run_script(implementation, case, dtype, device)


def _apply(file: Path, output: Path, ledger: Ledger) -> tuple[str, int]:
    """Write the results with a ledger applied, as new records say; 0 if no failure is left, else 1."""
    run = results.read(file)
    applied = list(judged_again(run, ledger))
    failing = {(each.implementation, each.device) for each in applied if each.outcome is Outcome.FAILED}
    # A run writes these even if they are empty; encoding omits defaults.
    always = {name: to_builtins(getattr(run.header, name)) for name in ("versions", "not_installed", "profiles")}
    header = to_builtins(run.header) | always | {"ledgers": [asdict(source) for source in ledger.sources]}
    with results.Writer(output, header) as writer:
        for each in applied:
            writer.write(each)
        left = [each for each in run.diagnoses if (each.implementation, each.device) in failing]
        writer.close(complete=run.complete, diagnoses=to_builtins(left))
    counts = Counter(each.outcome for each in applied)
    text = (
        f"{len(applied)} results, {counts[Outcome.KNOWN_DEVIATION]} known deviations, {counts[Outcome.FAILED]} failed"
    )
    return f"{text}: {output}", 1 if counts[Outcome.FAILED] else 0


def judged_again(run: Run, ledger: Ledger) -> Iterator[Result]:
    """Results of a run with a ledger applied to them; results that a record changed before stay changed.

    Parameters
    ----------
    run
        Results of conformance, judged without these records.
    ledger
        Records, including those proposed for its failures.

    Yields
    ------
    Result
        Each result as a run today would have it.
    """
    known = asked_cases()
    for result in run.results:
        case = known.get("plain" if result.case == STREAM_ORDER else result.case)
        changed = result.outcome is Outcome.KNOWN_DEVIATION or result.failure is Failure.STALE
        yield result if changed or case is None else apply(ledger, result, case, run.header.versions)


def _list(ledger: Ledger) -> str:
    """A table of all records, one per row."""
    rows = [
        (
            d.name,
            ", ".join(d.implementations),
            f"{d.package} {d.versions}",
            d.clause,
            d.failure.value,
            len(d.cases),
            d.upstream,
        )
        for d in ledger.deviations
    ]
    head = ("record", "implementations", "versions", "clause", "failure", "cases", "upstream")
    return tabulate(rows, head, tablefmt="simple", disable_numparse=True)


def _page(paths: list[Path], ledger: Ledger) -> str:
    """Regenerate DEVIATIONS.md; returns its path."""
    plugged = [] if paths else [results.read(page.PUBLISHED_KERNELS)]
    runs = [results.read(path) for path in paths or (page.PUBLISHED, page.PUBLISHED_GPU)]
    writable(page.PAGE).write_text(page.render(ledger, runs, plugged), encoding="utf-8")
    return str(page.PAGE)


def ledger_options(parser: argparse.ArgumentParser) -> None:
    """The six commands with their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    propose_ = actions.add_parser(
        "propose",
        help="print records, as TOML, for the failures of a result file that the ledger lacks; writes nothing",
        epilog=_ENDS.format("0 if every failure is in the ledger, 1 if records were printed or a failure is left"),
    )
    propose_.add_argument("results", nargs=1, type=Path, metavar="RESULT.jsonl", help="of pytest conformance")
    stale_ = actions.add_parser(
        "stale",
        help="print the records that result files show to be gone, in whole or in part, or do not exercise",
        epilog=_ENDS.format("0 if no exercised record is out of date, 1 if one is gone in whole or in part"),
    )
    stale_.add_argument("results", nargs="+", type=Path, metavar="RESULT.jsonl", help="of pytest conformance")
    apply_ = actions.add_parser(
        "apply",
        help="apply today's records to a result file and write the result, without running anything",
        epilog=_ENDS.format("0 if every failure is a known deviation, 1 if one is left"),
    )
    apply_.add_argument("results", nargs=1, type=Path, metavar="RESULT.jsonl", help="of pytest conformance")
    apply_.add_argument("record", metavar="OUT.jsonl", help="the result file to write")
    list_ = actions.add_parser("list", help="print all records as a table", epilog=_ENDS.format("0"))
    list_.set_defaults(results=[])
    issue_ = actions.add_parser(
        "issue",
        help="write the text of an upstream issue for a record: title, script, actual and promised results",
        epilog=_ENDS.format("0 if it printed a text, 1 if the script is right with the versions installed here"),
    )
    issue_.add_argument("record", metavar="ID", help="of a record")
    issue_.set_defaults(results=[])
    page_ = actions.add_parser("page", help="regenerate DEVIATIONS.md", epilog=_ENDS.format("0"))
    page_.set_defaults(deviations=[])
    page_.add_argument(
        "results", nargs="*", type=Path, default=[], metavar="RESULT.jsonl",
        help="result files of pytest conformance; default: the published ones",
    )  # fmt: skip
    for each in (propose_, stale_, apply_, list_, issue_):
        each.add_argument(
            "--deviations",
            action="append",
            default=[],
            type=Path,
            metavar="FILE",
            help="another ledger, in addition to the suite's own",
        )
