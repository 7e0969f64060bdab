"""``python -m bench duet``: the options, the table, the file of raw turns, and the exit code."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench.duet.measure import BASE, LEAST, MARGIN, NEW, Duet, Part, Plan, Played
from bench.duet.sides import Side, ready
from bench.machine import fingerprint
from bench.presets import PRESETS, select
from bench.statistics import Verdict
from conformance.targets import DEVICES
from impls.contract import DTYPES

#: Kind and version of the file that ``--json`` writes; reports know it by the kind.
KIND, FORMAT = "duet", 1

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
    parser.add_argument("--pairs", type=_positive, default=plan.pairs, help="fresh processes; default: %(default)s")
    parser.add_argument("--turns", type=_positive, default=plan.turns, help="in each pair; default: %(default)s")
    parser.add_argument("--limit", type=float, default=plan.limit, metavar="SECONDS", help="a cell; default: 60")
    parser.add_argument(
        "--least", type=float, default=LEAST, metavar="RATIO", help="of a change that counts; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn of every cell")


def run(
    base: str,
    new: str,
    impl: list[str],
    workload: list[str],
    preset: str,
    device: str,
    dtype: str,
    pairs: int,
    turns: int,
    limit: float,
    least: float,
    json: Path | None,
) -> tuple[str, int]:
    """Play the duet; gives the table and the exit code.  Raises SideError and WorkloadError for unfit options."""
    plan = Plan(pairs=pairs, turns=turns, limit=limit)
    workloads = select(workload, preset)
    with ExitStack() as stack:
        duet = Duet(stack.enter_context(ready(base)), stack.enter_context(ready(new)), plan)
        casts = duet.casts(impl, device, dtype)
        names = dict.fromkeys(name for cast in casts.values() for name in (*cast["players"], *cast["not_installed"]))
        operators = {n: one["operator"] for cast in casts.values() for n, one in cast["players"].items()}
        parts = [Part(n, device, dtype, w) for w in workloads for n in names if operators.get(n) == w.operator]
        played = duet.play(parts, casts, _say)
    if json is not None:
        json.write_text(_document(duet, casts, played, least), encoding="utf-8")
    return _text(duet, casts, played, least), exit_code(played, least)


def exit_code(played: Sequence[Played], least: float) -> int:
    """WORSE if a cell is slower or wrong on the new side alone; CANNOT_TELL if nothing was timed on both."""
    if any(one.verdict(least) is Verdict.SLOWER or _broken(one) for one in played):
        return WORSE
    return NOTHING_WORSE if any(one.outcome == "timed" for one in played) else CANNOT_TELL


def _broken(one: Played) -> bool:
    """Whether the new side fails or lacks what the base side can do."""
    return one.outcome != "timed" and one.reason.startswith(f"{NEW}:")


def _text(duet: Duet, casts: dict[str, Any], played: Sequence[Played], least: float) -> str:
    rows = [_row(one, least) for one in played if one.outcome == "timed"]
    heads = ("workload", "implementation", "base ms", "new ms", "new ÷ base", "95 % interval", "")
    lines = [_described(name, duet.sides[name], casts[name]) for name in (BASE, NEW)]
    if rows:
        lines += ["", tabulate(rows, heads, floatfmt=".3f", disable_numparse=True, stralign="right")]
    others = [one for one in played if one.outcome != "timed"]
    lines += [""] * bool(others) + [f"{one.outcome}: {_cell(one)}: {_why(one)}" for one in others]
    verdicts = [one.verdict(least) for one in played]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    rule = f"a change is a ratio beyond {least:g} whose interval lies beyond {MARGIN:g}"
    return "\n".join([*lines, "", f"{counts}, {len(others)} not compared; {rule}"])


def _described(name: str, side: Side, cast: dict[str, Any]) -> str:
    at = f" at {side.commit[:10]}" if side.commit else ""
    versions = ", ".join(f"{package} {version}" for package, version in sorted(cast["versions"].items()))
    return f"{name:4} {side.name}{at}: {versions}"


def _row(one: Played, least: float) -> tuple[str, ...]:
    ratio, verdict = one.ratio, one.verdict(least)
    assert ratio is not None
    assert verdict is not None
    middle = {name: statistics.median(s for turn in turns for s in turn) for name, turns in one.turns.items()}
    said = verdict.value.upper() if verdict in (Verdict.SLOWER, Verdict.FASTER) else verdict.value
    numbers = (f"{middle[BASE] * 1e3:.3f}", f"{middle[NEW] * 1e3:.3f}", f"{ratio.value:.3f}")
    interval = f"{ratio.low:.3f} … {ratio.high:.3f}"
    return one.part.workload.name, one.part.implementation, *numbers, interval, said


def _cell(one: Played) -> str:
    return f"{one.part.workload.name} {one.part.implementation}"


def _why(one: Played) -> str:
    return f"{one.clause}: {one.reason}" if one.clause else one.reason


def _document(duet: Duet, casts: dict[str, Any], played: Sequence[Played], least: float) -> str:
    sides = {
        name: {"name": side.name, "commit": side.commit, "versions": casts[name]["versions"]}
        for name, side in duet.sides.items()
    }
    rule = {"least": least, "margin": MARGIN}
    cells = [_record(one, least) for one in played]
    head = {"kind": KIND, "format": FORMAT, **sides, "plan": asdict(duet.plan), "rule": rule}
    return json.dumps({**head, "machine": fingerprint(casts[NEW]["versions"]), "cells": cells})


def _record(one: Played, least: float) -> dict[str, Any]:
    part, ratio, verdict = one.part, one.ratio, one.verdict(least)
    return {
        "implementation": part.implementation,
        "device": part.device,
        "dtype": part.dtype,
        "workload": part.workload.name,
        "outcome": one.outcome,
        "clause": one.clause,
        "reason": one.reason,
        "ratio": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "verdict": None if verdict is None else verdict.value,
        "shares": one.shares,
        "turns": one.turns if one.outcome == "timed" else None,
    }


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return number
