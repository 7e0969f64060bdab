"""File of a paired comparison (``--json``): every round of every cell, as types of which its schema is made."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.paired.measure import Plan
from attention_conformance.bench.records import Amount, Kind, Positive


class Compared(msgspec.Struct, frozen=True):
    """One of the two: its name as it was given, its commit where it has one, and its libraries."""

    name: str
    commit: str
    versions: dict[str, str]


class Rule(msgspec.Struct, frozen=True):
    """A change is a ratio beyond ``least`` whose interval lies beyond ``margin``."""

    least: Positive
    margin: Positive


class PairedCell(msgspec.Struct, frozen=True):
    """Cell of a paired comparison; ``worker`` is whose fault it is that there is no time, if it is one's."""

    implementation: str
    device: str
    dtype: str
    workload: str
    outcome: Kind
    clause: str
    worker: Literal["base", "new", ""]
    reason: str
    #: New ÷ base, with its 95 % interval: value, low, high.
    ratio: tuple[Positive, Positive, Positive] | None
    verdict: Verdict | None
    #: Worst error ÷ bound.
    shares: dict[str, Amount]
    #: Seconds of every call, of base and new, by pair of processes and round.
    rounds: dict[str, list[list[list[Positive]]]] | None


class PairedFile(msgspec.Struct, frozen=True, tag_field="kind", tag="paired comparison"):
    """The file."""

    base: Compared
    new: Compared
    plan: Plan
    rule: Rule
    machine: dict[str, Any]
    cells: list[PairedCell]
    format: Literal[3] = 3
