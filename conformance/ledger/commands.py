"""The commands ``ledger propose``, ``stale``, ``list`` and ``page``: their options, what they print, how they end."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tabulate import tabulate

from conformance import results
from conformance.deviations import LEDGER, Ledger, read
from conformance.ledger import page
from conformance.ledger.propose import propose
from conformance.ledger.stale import Standing, stale

#: What ``stale`` prints of the records, worst first; those that hold are counted only.
REPORTED = (Standing.GONE, Standing.PARTLY_GONE, Standing.NOT_EXERCISED)

_ENDS = "Ends with {}, 2 if a file cannot be used."


def run_ledger(action: str, deviations: list[Path], results: list[Path]) -> str | tuple[str, int]:
    """One of the commands.  Raises LedgerError or ResultFileError for a file that cannot be used."""
    ledger = read([LEDGER, *deviations])
    if action == "propose":
        return _propose(results, ledger)
    if action == "stale":
        return _stale(results, ledger)
    return _list(ledger) if action == "list" else _page(results, ledger)


def _propose(paths: list[Path], ledger: Ledger) -> tuple[str, int]:
    """New records: 0 if there is nothing to propose or to say, 1 if there is."""
    proposal = propose(results.read(paths[0]), ledger)
    return proposal.text() or "# every failure is in the ledger", 1 if proposal.records or proposal.left else 0


def _stale(paths: list[Path], ledger: Ledger) -> tuple[str, int]:
    """Records that are out of date: 0 if none is, whether or not it was exercised, and 1 if one is."""
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


def _list(ledger: Ledger) -> str:
    """All records, one a row."""
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
    """Write DEVIATIONS.md anew, and say where."""
    page.PAGE.write_text(page.render(ledger, results.read(paths[0])), encoding="utf-8")
    return str(page.PAGE)


def ledger_options(parser: argparse.ArgumentParser) -> None:
    """The four commands with their options."""
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
    list_ = actions.add_parser("list", help="print all records as a table", epilog=_ENDS.format("0"))
    list_.set_defaults(results=[])
    page_ = actions.add_parser("page", help="write DEVIATIONS.md anew", epilog=_ENDS.format("0"))
    page_.set_defaults(deviations=[])
    page_.add_argument(
        "results", nargs="?", type=lambda name: [Path(name)], default=[page.PUBLISHED], metavar="RESULT.jsonl",
        help="of pytest conformance; default: the published one",
    )  # fmt: skip
    for each in (propose_, stale_, list_):
        each.add_argument(
            "--deviations",
            action="append",
            default=[],
            type=Path,
            metavar="FILE",
            help="a ledger beside the suite's own",
        )
