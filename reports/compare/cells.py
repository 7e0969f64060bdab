"""What changed in the cells of the bench beside their times: which are there, their memory, their accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reports.cell import CELL, key_of
from reports.compare.changes import Change, Kind, Level
from reports.compare.results import counted, drift
from reports.compare.rules import Rules
from reports.records import Records

#: Bytes that a call may need more without it being said: what an allocator takes at once.
LEAST_BYTES = 1 << 20

TIMED, INVALID, SKIPPED = "timed", "invalid", "skipped"

#: What a step from one outcome to another is; what is equal or not here is no change.
STEPS = {
    (TIMED, None): (Kind.CELL, Level.WORSE),
    (TIMED, INVALID): (Kind.INVALID, Level.WORSE),
    (SKIPPED, INVALID): (Kind.INVALID, Level.WORSE),
    (None, INVALID): (Kind.INVALID, Level.WORSE),
    (TIMED, SKIPPED): (Kind.UNTIMED, Level.WORSE),
    (None, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (SKIPPED, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (INVALID, TIMED): (Kind.PASS, Level.BETTER),
}


def changes(base: Records, new: Records, rules: Rules) -> list[Change]:
    """Missing, new and invalid cells, more and less memory, and shares of the bound that moved."""
    before, after = ({key_of(cell): cell for cell in side.cells} for side in (base, new))
    found: list[Change] = []
    for key in dict.fromkeys((*before, *after)):
        old, now = before.get(key), after.get(key)
        step = STEPS.get((_outcome(old), _outcome(now)))
        if step:
            found.append(Change(*step, *key, _told(old), _told(now)))
        elif old and now and old["outcome"] == now["outcome"] == TIMED:
            found += _drifts(key, old, now, rules)
    return [counted(change, rules, workload=change.name) for change in found]


def _drifts(
    key: tuple[str, str, str, str], old: Mapping[str, Any], new: Mapping[str, Any], rules: Rules
) -> Iterable[Change]:
    place = dict(zip(CELL, key, strict=True))
    accuracy = drift(key, old.get("share"), new.get("share"), rules.threshold("accuracy", **place))
    if accuracy:
        yield accuracy
    before, after = (one.get("memory_bytes") for one in (old, new))
    if before is None or after is None or old.get("memory_method") != new.get("memory_method"):
        return
    factor = rules.threshold("memory", **place)
    texts = tuple(f"{number / 2**20:.1f} MiB" for number in (before, after))
    if after > factor * before and after - before >= LEAST_BYTES:
        yield Change(Kind.MEMORY, Level.WORSE, *key, *texts)
    elif before > factor * after and before - after >= LEAST_BYTES:
        yield Change(Kind.LESS_MEMORY, Level.BETTER, *key, *texts)


def _outcome(cell: Mapping[str, Any] | None) -> str | None:
    return None if cell is None else cell["outcome"]


def _told(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not there"
    why = " ".join(text for text in (cell["clause"], cell["reason"]) if text)
    return f"{cell['outcome']}: {why}" if why else cell["outcome"]
