"""Text of a paired comparison: the table of a terminal, and a comment for a pull request."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from bench.duet.measure import Duet
from bench.duet.played import BASE, MARGIN, NEW, Played
from bench.duet.sides import Side
from bench.statistics import Verdict
from bench.table import grid

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
