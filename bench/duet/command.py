"""``python -m bench duet``: the options, the table, the file of raw turns, and the exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from bench.duet import text
from bench.duet.document import Compared, PairedCell, PairedFile, PairedPlan, Rule
from bench.duet.measure import Duet
from bench.duet.played import BASE, LEAST, MARGIN, NEW, Part, Plan, Played
from bench.duet.sides import ready
from bench.duet.text import broken
from bench.machine import fingerprint
from bench.presets import PRESETS, select
from bench.statistics import Verdict
from conformance.targets import DEVICES
from impls.contract import DTYPES

#: Exit codes: nothing is worse, something is, and nothing can be said.
NOTHING_WORSE, WORSE, CANNOT_TELL = 0, 1, 2


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    side = "a git revision, '.' (the working tree), an environment's path, or REVISION@PATH"
    parser.add_argument("--base", required=True, metavar="SIDE", help=side)
    parser.add_argument("--new", default=".", metavar="SIDE", help="the same; default: the working tree")
    parser.add_argument("--impl", action="append", default=[], metavar="WHAT", help="as of pytest bench; repeatable")
    parser.add_argument("--workload", action="append", default=[], metavar="NAME|GLOB", help="as of pytest bench")
    parser.add_argument("--preset", default="", metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument("--device", default="cpu", choices=DEVICES, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="default: %(default)s")
    plan = Plan()
    parser.add_argument(
        "--pairs", type=_positive, default=plan.pairs, help="least number of them; default: %(default)s"
    )
    parser.add_argument("--most-pairs", type=_positive, default=plan.most, help="of processes; default: %(default)s")
    parser.add_argument(
        "--precision", type=float, default=plan.precision, metavar="SHARE", help="of the interval; default: %(default)s"
    )
    parser.add_argument("--turns", type=_positive, default=plan.turns, help="in each pair; default: %(default)s")
    parser.add_argument("--limit", type=float, default=plan.limit, metavar="SECONDS", help="a cell; default: 60")
    parser.add_argument(
        "--least", type=float, default=LEAST, metavar="RATIO", help="of a change that counts; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn of every cell")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a comment for a pull request")


def run(
    base: str,
    new: str,
    impl: list[str],
    workload: list[str],
    preset: str,
    device: str,
    dtype: str,
    pairs: int,
    most_pairs: int,
    precision: float,
    turns: int,
    limit: float,
    least: float,
    json: Path | None,
    markdown: Path | None,
) -> tuple[str, int]:
    """Play the duet; gives the table and the exit code.  Raises SideError and WorkloadError for unfit options."""
    plan = Plan(pairs, precision, max(pairs, most_pairs), turns, limit=limit)
    workloads = select(workload, preset)
    with ExitStack() as stack:
        duet = Duet(stack.enter_context(ready(base)), stack.enter_context(ready(new)), plan)
        casts = duet.casts(impl, device, dtype)
        names = dict.fromkeys(name for cast in casts.values() for name in (*cast["players"], *cast["not_installed"]))
        operators = {n: one["operator"] for cast in casts.values() for n, one in cast["players"].items()}
        parts = [Part(n, device, dtype, w) for w in workloads for n in names if operators.get(n) == w.operator]
        played = duet.play(parts, casts, _say)
    if json is not None:
        json.write_bytes(msgspec.json.encode(_document(duet, casts, played, least)))
    if markdown is not None:
        markdown.write_text(text.comment(duet, casts, played, least), encoding="utf-8")
    return text.terminal(duet, casts, played, least), exit_code(played, least)


def exit_code(played: Sequence[Played], least: float) -> int:
    """WORSE if a cell is slower or wrong on the new side alone; CANNOT_TELL if nothing was timed on both."""
    if any(one.verdict(least) is Verdict.SLOWER or broken(one) for one in played):
        return WORSE
    return NOTHING_WORSE if any(one.outcome == "timed" for one in played) else CANNOT_TELL


def _document(duet: Duet, casts: dict[str, Any], played: Sequence[Played], least: float) -> PairedFile:
    base, new = (
        Compared(duet.sides[name].name, duet.sides[name].commit, casts[name]["versions"]) for name in (BASE, NEW)
    )
    plan, machine = PairedPlan(**asdict(duet.plan)), fingerprint(casts[NEW]["versions"])
    return PairedFile(base, new, plan, Rule(least, MARGIN), machine, [_record(one, least) for one in played])


def _record(one: Played, least: float) -> PairedCell:
    part, ratio, verdict = one.part, one.ratio, one.verdict(least)
    named = (part.implementation, part.device, part.dtype, part.workload.name)
    return PairedCell(
        *named,
        outcome=one.outcome,  # type: ignore[arg-type]
        clause=one.clause,
        worker=one.side,  # type: ignore[arg-type]
        reason=one.reason,
        ratio=None if ratio is None else (ratio.value, ratio.low, ratio.high),
        verdict=verdict,
        shares=one.shares,
        rounds=one.turns if one.outcome == "timed" else None,
    )


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)


def _positive(given: str) -> int:
    number = int(given)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{given}: expected at least 1")
    return number
