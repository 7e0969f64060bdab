"""Command ``compare-revisions``: its options, table, pull request's comment and file, and the exit code."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec
from tabulate import tabulate

from attention_conformance.bench.analysis.statistics import LEAST_PROCESS_RUNS, TOO_FEW, Verdict
from attention_conformance.bench.machine.machine import describe
from attention_conformance.bench.options import DTYPE_ORDER, Renamed
from attention_conformance.bench.output.table import grid
from attention_conformance.bench.paired.measure import (
    BASE,
    FEWEST,
    LEAST,
    MARGIN,
    NEW,
    Offers,
    PairedComparison,
    Plan,
    Result,
    Task,
)
from attention_conformance.bench.paired.revisions import ready
from attention_conformance.bench.records import Amount, Kind, Positive
from attention_conformance.bench.timing.plan import drawn_seed
from attention_conformance.bench.validity.outcomes import MEASURED
from attention_conformance.bench.workloads.presets import PRESETS, select
from attention_conformance.conformance.targets import DEVICES
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.option_types import above, count, refuse_unwritable

#: Exit codes: nothing is worse, something is, and no verdict is possible.
NOTHING_WORSE, WORSE, CANNOT_TELL = 0, 1, 2

HEADS = ("workload", "implementation", "base ms", "new ms", "new ÷ base", "95 % interval", "pairs", "verdict")

#: Verdicts in capitals, as readers look for them.
CHANGES = (Verdict.SLOWER, Verdict.FASTER)


class Compared(msgspec.Struct, frozen=True):
    """One of the two: its name as given, its commit where it has one, and its libraries."""

    name: str
    commit: str
    versions: dict[str, str]


class Rule(msgspec.Struct, frozen=True):
    """A change is a ratio beyond ``least`` whose interval lies beyond ``margin``."""

    least: Positive
    margin: Positive


class PairedCell(msgspec.Struct, frozen=True):
    """Cell of a paired comparison; ``worker`` is the one at fault where there is no time, "" for neither."""

    implementation: str
    device: str
    dtype: str
    workload: str
    outcome: Kind
    clause: str
    worker: Literal["base", "new", ""]
    reason: str
    #: New ÷ base, with its 95 % interval: value, low, high; without ends for fewer than LEAST_PROCESS_RUNS pairs.
    ratio: tuple[Positive, Positive | None, Positive | None] | None
    verdict: Verdict | None
    #: Worst error ÷ bound.
    shares: dict[str, Amount]
    #: Seconds of every call, of base and new, by pair of processes and round.
    rounds: dict[str, list[list[list[Positive]]]] | None


class PairedFile(msgspec.Struct, frozen=True, tag_field="kind", tag="paired comparison"):
    """File of ``--json``: every round of every cell."""

    base: Compared
    new: Compared
    plan: Plan
    rule: Rule
    machine: dict[str, Any]
    cells: list[PairedCell]
    #: Seed of all inputs, which differ in each pair of processes.
    seed: int = 0
    format: Literal[3] = 3


def broken(one: Result) -> bool:
    """Whether new fails or lacks what base can do."""
    return one.worker == NEW and not one.excused


def terminal(comparison: PairedComparison, offers: Offers, results: Sequence[Result], least: float) -> str:
    """Base and new, the table, the cells that were not compared, and the counts."""
    lines = _revisions(comparison, offers, results)
    rows = [_row(one, least) for one in results if one.outcome == "timed"]
    if rows:
        lines += ["", *grid([HEADS, *rows], ("left", "left", *("right",) * 5, "left"))]
    others = [_other(one) for one in results if one.outcome != "timed"]
    ends = [f"{_counts(results, least)}; {_rule(least)}", *_too_few(results)]
    return "\n".join([*lines, *[""] * bool(others), *others, "", *ends])


def comment(comparison: PairedComparison, offers: Offers, results: Sequence[Result], least: float) -> str:
    """Markdown: the verdict first, then the changes, then everything, folded."""
    timed = [one for one in results if one.outcome == "timed"]
    changed = [one for one in timed if one.verdict(least) in CHANGES]
    broke = [one for one in results if broken(one)]
    lines = [f"**Speed: {_verdict(results, least)}**", ""]
    lines += [f"* {_escaped(_other(one))}" for one in broke] + [""] * bool(broke)
    if changed:
        lines += [_table(changed, least), ""]
    lines += [f"<details><summary>All {len(results)} cells: {_counts(results, least)}</summary>", ""]
    lines += [_table(timed, least), ""] if timed else []
    lines += [f"* {_escaped(_other(one))}" for one in results if one.outcome != "timed" and not broken(one)]
    lines += ["", *(f"{_escaped(line)}  " for line in _revisions(comparison, offers, results))]
    lines += ["", *(f"{line}." for line in [_rule(least), *_too_few(results)]), "", "</details>"]
    return "\n".join(lines) + "\n"


def _verdict(results: Sequence[Result], least: float) -> str:
    verdicts = [one.verdict(least) for one in results]
    found = {"broken": sum(map(broken, results))} | {verdict.value: verdicts.count(verdict) for verdict in CHANGES}
    parts = [f"{count} {name}" for name, count in found.items() if count]
    compared = sum(verdict is not None for verdict in verdicts)
    if not compared and not parts:
        return "nothing could be compared"
    return f"{', '.join(parts) or 'no change'}; {compared} of {len(results)} cells compared"


def _counts(results: Sequence[Result], least: float) -> str:
    verdicts = [one.verdict(least) for one in results]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    return f"{counts}, {verdicts.count(None)} not compared"


def _rule(least: float) -> str:
    return f"a change is a ratio beyond {least:g} whose interval lies beyond {MARGIN:g}"


def _too_few(results: Sequence[Result]) -> list[str]:
    """The line on cells without an interval, if there are any."""
    count = sum(one.ratio is not None and not one.ratio.known for one in results)
    reason = TOO_FEW.format(least=LEAST_PROCESS_RUNS, runs="pairs")
    return [f"{count} unclear because {reason}: --pairs {LEAST_PROCESS_RUNS} or more"] if count else []


def _revisions(comparison: PairedComparison, offers: Offers, results: Sequence[Result]) -> list[str]:
    lines = []
    for name, revision in comparison.revisions.items():
        at = f" at {revision.commit[:10]}" if revision.commit else ""
        versions = ", ".join(f"{package} {version}" for package, version in sorted(offers[name]["versions"].items()))
        lines.append(f"{name:4} {revision.name}{at}: {versions}")
    where = sorted({f"{one.task.dtype} on {one.task.device}" for one in results} - {"float32 on cpu"})
    return lines + ([f"both in {', '.join(where)}"] if where else [])


def _row(one: Result, least: float) -> tuple[str, ...]:
    ratio, verdict = one.ratio, one.verdict(least)
    assert ratio is not None
    assert verdict is not None
    middle = {
        name: statistics.median(s for rounds in pairs for batch in rounds for s in batch)
        for name, pairs in one.rounds.items()
    }
    numbers = (f"{middle[BASE] * 1e3:.3f}", f"{middle[NEW] * 1e3:.3f}", f"{ratio.value:.3f}")
    interval = f"{ratio.low:.3f} … {ratio.high:.3f}" if ratio.known else "unknown"
    word = verdict.value.upper() if verdict in CHANGES else verdict.value
    return one.task.workload.name, one.task.implementation, *numbers, interval, str(one.pairs), word


def _table(results: Sequence[Result], least: float) -> str:
    rows = [tuple(_escaped(text) for text in _row(one, least)) for one in results]
    return tabulate(rows, HEADS, "pipe", disable_numparse=True)


def _other(one: Result) -> str:
    why = ": ".join(filter(None, [one.clause, one.worker, one.reason]))
    return f"{one.outcome}: {one.task.workload.name} {one.task.implementation}: {why}"


def _escaped(text: str) -> str:
    """A name or a message so that Markdown shows it unchanged."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    what = "a git revision, '.' (the working tree), an environment's path, or REVISION@PATH"
    parser.add_argument("--base", required=True, metavar="REVISION", help=what)
    parser.add_argument("--new", default=".", metavar="REVISION", help="the same; default: the working tree")
    parser.add_argument("--impl", action="append", default=[], metavar="WHAT", help="as for pytest bench; repeatable")
    parser.add_argument("--workload", action="append", default=[], metavar="NAME|GLOB", help="as for pytest bench")
    parser.add_argument("--preset", default="", metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="default: %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, help=f"default: the first available of {', '.join(DTYPE_ORDER)}")
    plan = Plan()
    parser.add_argument(
        "--pairs",
        type=count(1),
        metavar="N",
        help=f"minimum number of pairs of worker processes; default: {plan.pairs}, or --most-pairs if less",
    )
    parser.add_argument(
        "--most-pairs",
        type=count(1),
        default=plan.most_pairs,
        metavar="N",
        help="maximum number of pairs of worker processes; default: %(default)s",
    )
    parser.add_argument(
        "--precision",
        type=above(0.0),
        default=plan.precision,
        metavar="SHARE",
        help="stop once the interval of the ratio is within this share; default: %(default)s",
    )
    parser.add_argument("--turns", action=Renamed, now="--rounds")
    parser.add_argument(
        "--rounds",
        type=count(FEWEST),
        default=plan.rounds,
        metavar="N",
        help="batches of each revision in a pair of processes; default: %(default)s",
    )
    parser.add_argument(
        "--limit",
        type=above(0.0),
        default=plan.limit,
        metavar="SECONDS",
        help="time limit for a cell; default: %(default)g",
    )
    parser.add_argument(
        "--least",
        type=above(1.0),
        default=LEAST,
        metavar="RATIO",
        help="smallest ratio that counts as a change; default: %(default)s",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round of every cell")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a comment for a pull request")


def run(
    base: str,
    new: str,
    impl: list[str],
    workload: list[str],
    preset: str,
    device: str,
    dtype: str | None,
    pairs: int | None,
    most_pairs: int,
    precision: float,
    rounds: int,
    limit: float,
    least: float,
    json: Path | None,
    markdown: Path | None,
) -> tuple[str, int]:
    """Make the comparison; returns the table and the exit code.

    Raises RevisionError, WorkloadError and InputError for unusable options.
    """
    for option, path in (("--json", json), ("--markdown", markdown)):
        refuse_unwritable(option, path)
    pairs = min(Plan.pairs, most_pairs) if pairs is None else pairs
    plan = Plan(pairs, precision, max(pairs, most_pairs), rounds, limit=limit)
    workloads = select(workload, preset)
    with ExitStack() as stack:
        comparison = PairedComparison(
            stack.enter_context(ready(base)), stack.enter_context(ready(new)), plan, drawn_seed()
        )
        dtype, offers = _offers(comparison, impl, device, dtype)
        names = dict.fromkeys(n for one in offers.values() for n in (*one["implementations"], *one["not_installed"]))
        operators = {n: has["operator"] for one in offers.values() for n, has in one["implementations"].items()}
        tasks = [Task(n, device, dtype, w) for w in workloads for n in names if operators.get(n) == w.operator]
        results = comparison.run(tasks, offers, _notify)
    if json is not None:
        json.write_bytes(msgspec.json.encode(_document(comparison, offers, results, least)))
    if markdown is not None:
        markdown.write_text(comment(comparison, offers, results, least), encoding="utf-8")
    return terminal(comparison, offers, results, least), exit_code(results, least)


def _offers(comparison: PairedComparison, impl: list[str], device: str, dtype: str | None) -> tuple[str, Offers]:
    """The dtype that is timed, and the offers of both in it; the first dtype tried if neither has any."""
    found = {}
    for each in (dtype,) if dtype else DTYPE_ORDER:
        found[each] = comparison.offers(impl, device, each)
        if any(one["implementations"] for one in found[each].values()):
            return each, found[each]
    return next(iter(found.items()))


def exit_code(results: Sequence[Result], least: float) -> int:
    """WORSE if a cell is slower, or wrong only in new; CANNOT_TELL if nothing was timed on both."""
    if any(one.verdict(least) is Verdict.SLOWER or broken(one) for one in results):
        return WORSE
    return NOTHING_WORSE if any(one.outcome == "timed" for one in results) else CANNOT_TELL


def _document(comparison: PairedComparison, offers: Offers, results: Sequence[Result], least: float) -> PairedFile:
    base, new = (Compared(one.name, one.commit, offers[name]["versions"]) for name, one in comparison.revisions.items())
    machine = describe(offers[NEW]["versions"])
    return PairedFile(
        base,
        new,
        comparison.plan,
        Rule(least, MARGIN),
        machine,
        [_record(one, least) for one in results],
        comparison.seed,
    )


def _record(one: Result, least: float) -> PairedCell:
    task, ratio, verdict = one.task, one.ratio, one.verdict(least)
    named = (task.implementation, task.device, task.dtype, task.workload.name)
    return PairedCell(
        *named,
        outcome=one.outcome,  # type: ignore[arg-type]
        clause=one.clause,
        worker=one.worker,  # type: ignore[arg-type]
        reason=one.reason,
        ratio=None if ratio is None else (ratio.value, *((ratio.low, ratio.high) if ratio.known else (None, None))),
        verdict=verdict,
        shares=one.shares,
        rounds=one.rounds if one.outcome in MEASURED else None,
    )


def _notify(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
