"""Text of a paired comparison: the table of a terminal, and a comment for a pull request."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.machine.machine import fingerprint
from attention_conformance.bench.output.table import grid
from attention_conformance.bench.paired.document import Compared, PairedCell, PairedFile, PairedPlan, Rule
from attention_conformance.bench.paired.measure import BASE, LEAST, MARGIN, NEW, Duet, Part, Plan, Played
from attention_conformance.bench.paired.sides import Side, ready
from attention_conformance.bench.workloads.presets import PRESETS, select
from attention_conformance.conformance.run.targets import DEVICES
from attention_conformance.impls.contract import DTYPES

HEADS = ("workload", "implementation", "base ms", "new ms", "new ÷ base", "95 % interval", "pairs", "verdict")

#: Verdicts that are shouted, as they are what a reader looks for.
CHANGES = (Verdict.SLOWER, Verdict.FASTER)


def broken(one: Played) -> bool:
    """Whether the new side fails or lacks what the base side can do."""
    return one.side == NEW


def terminal(duet: Duet, casts: dict[str, Any], played: Sequence[Played], least: float) -> str:
    """The sides, the table, what was not compared, and the counts."""
    lines = _sides(duet, casts)
    rows = [_row(one, least) for one in played if one.outcome == "timed"]
    if rows:
        lines += ["", *grid([HEADS, *rows], ("left", "left", *("right",) * 5, "left"))]
    others = [_other(one) for one in played if one.outcome != "timed"]
    return "\n".join([*lines, *[""] * bool(others), *others, "", f"{_counts(played, least)}; {_rule(least)}"])


def comment(duet: Duet, casts: dict[str, Any], played: Sequence[Played], least: float) -> str:
    """Markdown: the verdict first, then what changed, then everything, folded."""
    timed = [one for one in played if one.outcome == "timed"]
    changed = [one for one in timed if one.verdict(least) in CHANGES]
    broke = [one for one in played if broken(one)]
    lines = [f"**Speed: {_verdict(played, least)}**", ""]
    lines += [f"* {_escaped(_other(one))}" for one in broke] + [""] * bool(broke)
    if changed:
        lines += [_table(changed, least), ""]
    lines += [f"<details><summary>All {len(played)} cells: {_counts(played, least)}</summary>", ""]
    lines += [_table(timed, least), ""] if timed else []
    lines += [f"* {_escaped(_other(one))}" for one in played if one.outcome != "timed" and not broken(one)]
    lines += ["", *(f"{_escaped(line)}  " for line in _sides(duet, casts)), "", f"{_rule(least)}.", "", "</details>"]
    return "\n".join(lines) + "\n"


def _verdict(played: Sequence[Played], least: float) -> str:
    verdicts = [one.verdict(least) for one in played]
    found = {"broken": sum(map(broken, played))} | {verdict.value: verdicts.count(verdict) for verdict in CHANGES}
    parts = [f"{count} {name}" for name, count in found.items() if count]
    compared = sum(verdict is not None for verdict in verdicts)
    if not compared and not parts:
        return "nothing could be compared"
    return f"{', '.join(parts) or 'no change'}; {compared} of {len(played)} cells compared"


def _counts(played: Sequence[Played], least: float) -> str:
    verdicts = [one.verdict(least) for one in played]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    return f"{counts}, {verdicts.count(None)} not compared"


def _rule(least: float) -> str:
    return f"a change is a ratio beyond {least:g} whose interval lies beyond {MARGIN:g}"


def _sides(duet: Duet, casts: dict[str, Any]) -> list[str]:
    return [_side(name, duet.sides[name], casts[name]) for name in (BASE, NEW)]


def _side(name: str, side: Side, cast: dict[str, Any]) -> str:
    at = f" at {side.commit[:10]}" if side.commit else ""
    versions = ", ".join(f"{package} {version}" for package, version in sorted(cast["versions"].items()))
    return f"{name:4} {side.name}{at}: {versions}"


def _row(one: Played, least: float) -> tuple[str, ...]:
    ratio, verdict = one.ratio, one.verdict(least)
    assert ratio is not None
    assert verdict is not None
    middle = {
        name: statistics.median(s for turns in pairs for turn in turns for s in turn)
        for name, pairs in one.turns.items()
    }
    numbers = (f"{middle[BASE] * 1e3:.3f}", f"{middle[NEW] * 1e3:.3f}", f"{ratio.value:.3f}")
    interval = f"{ratio.low:.3f} … {ratio.high:.3f}"
    said = verdict.value.upper() if verdict in CHANGES else verdict.value
    return one.part.workload.name, one.part.implementation, *numbers, interval, str(one.pairs), said


def _table(played: Sequence[Played], least: float) -> str:
    rows = [tuple(_escaped(text) for text in _row(one, least)) for one in played]
    return tabulate(rows, HEADS, "pipe", disable_numparse=True)


def _other(one: Played) -> str:
    why = ": ".join(filter(None, [one.clause, one.side, one.reason]))
    return f"{one.outcome}: {one.part.workload.name} {one.part.implementation}: {why}"


def _escaped(text: str) -> str:
    """So that a name or a message is shown as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


# ``attention-conformance compare-revisions``: the options, the table, the file of raw turns, and the exit code.


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
        markdown.write_text(comment(duet, casts, played, least), encoding="utf-8")
    return terminal(duet, casts, played, least), exit_code(played, least)


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
