"""Thresholds and what to ignore, by pattern, from a small TOML file; a word it does not know is an error.

.. code-block:: toml

    [[rule]]
    implementation = "torch-*"     # globs; also device, dtype, workload, case
    workload = "decode-*"
    least = 1.15                   # the ratio from which a cell is slower or faster
    margin = 1.05                  # what its interval must exclude
    memory = 1.5                   # the factor from which more memory is worse
    accuracy = 4.0                 # the factor from which a larger share of the bound is worse
    ignore = ["slower"]            # what does not count: "slower", or the name of any change for the worse

Where several rules match, the last that sets a threshold decides it, and any of them may ignore.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention_conformance.bench.analysis.statistics import LEAST, MARGIN
from attention_conformance.reports.compare.changes import SLOWER, Kind
from attention_conformance.reports.input.records import ReportError

#: Allocators hand out whole pages and arenas: a tenth more is no finding.
MEMORY = 1.10

#: Rounding differs between two builds; twice the error on the same inputs is another algorithm.
ACCURACY = 2.0

#: Each run of the bench draws its own inputs and checks rows of its own, so the worst share of a cell scatters: 12-fold
#: in eight runs of one kernel.
CELL_ACCURACY = 8.0

#: What a rule can match, and the thresholds it can set, with their defaults.
PATTERNS = ("implementation", "device", "dtype", "workload", "case")
THRESHOLDS = {"least": LEAST, "margin": MARGIN, "memory": MEMORY, "accuracy": ACCURACY}

#: Defaults for cells of the bench that differ from those of cases.
CELL_THRESHOLDS = {"accuracy": CELL_ACCURACY}

#: What a rule can ignore.
IGNORABLE = (SLOWER, *(kind.value for kind in Kind))


@dataclass
class Rule:
    """One table of the file."""

    number: int
    patterns: Mapping[str, str]
    thresholds: Mapping[str, float]
    ignore: tuple[str, ...]
    #: Whether the rule ever matched: a rule that matches nothing is misspelt or out of date.
    matched: bool = False

    def matches(self, place: Mapping[str, str]) -> bool:
        """Whether all patterns of the rule match a place; a pattern never matches what the place does not have.

        Parameters
        ----------
        place
            Implementation, device, dtype and more, by the words of a rule.

        Returns
        -------
        bool
            Whether they match.
        """
        found = all(
            name in place and fnmatch.fnmatchcase(place[name], pattern) for name, pattern in self.patterns.items()
        )
        self.matched |= found
        return found


@dataclass
class Rules:
    """All rules, in order."""

    rules: list[Rule] = field(default_factory=list)
    #: The file of the rules, with their number, "" for none.
    name: str = ""

    def threshold(self, name: str, **place: str) -> float:
        """A threshold at a place: implementation, device, dtype, and workload or case.

        Parameters
        ----------
        name
            Name of the threshold.
        place
            Implementation, device, dtype, and workload or case.

        Returns
        -------
        float
            A factor.
        """
        values = [rule.thresholds[name] for rule in self.rules if rule.matches(place) and name in rule.thresholds]
        defaults = THRESHOLDS | CELL_THRESHOLDS if "workload" in place else THRESHOLDS
        return values[-1] if values else defaults[name]

    def ignored(self, what: str, **place: str) -> bool:
        """Whether a change for the worse does not count here.

        Parameters
        ----------
        what
            The kind of the change.
        place
            Implementation, device, dtype, and workload or case.

        Returns
        -------
        bool
            Whether a rule says so.
        """
        matching = [rule for rule in self.rules if rule.matches(place)]
        return any(what in rule.ignore for rule in matching)

    def consult(self, **place: str) -> None:
        """Mark the rules that match here, whether or not there is anything to decide.

        Parameters
        ----------
        place
            Implementation, device, dtype, and workload or case.
        """
        for rule in self.rules:
            if not rule.matched:
                rule.matches(place)

    @property
    def idle(self) -> list[str]:
        """A note on every rule that matched nothing."""
        return [f"rule {rule.number} matches nothing: {dict(rule.patterns)}" for rule in self.rules if not rule.matched]


def read(path: Path) -> Rules:
    """The rules of a file.

    Parameters
    ----------
    path
        Path of a TOML file.

    Returns
    -------
    Rules
        The rules in the file.

    Raises
    ------
    ReportError
        For the first mistake in it.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    _refuse_unknown(path, "the file", data, ("rule",))
    tables = data.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ReportError(f"{path}: rule is one table, expected [[rule]] in double brackets")
    found = [_rule(path, number, table) for number, table in enumerate(tables, 1)]
    return Rules(found, f"{path.name} ({len(found)} {'rule' if len(found) == 1 else 'rules'})")


def _rule(path: Path, number: int, table: Mapping[str, Any]) -> Rule:
    where = f"rule {number}"
    _refuse_unknown(path, where, table, (*PATTERNS, *THRESHOLDS, "ignore"))
    patterns = {name: table[name] for name in PATTERNS if name in table}
    if not all(isinstance(pattern, str) for pattern in patterns.values()):
        raise ReportError(f"{path}: {where} has a pattern that is not a string")
    thresholds = {name: table[name] for name in THRESHOLDS if name in table}
    for name, value in thresholds.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 < value < float("inf"):
            raise ReportError(f"{path}: {where} has {name} = {value!r}, expected a factor above 1")
    ignore = table.get("ignore", [])
    unknown = [one for one in ignore if one not in IGNORABLE] if isinstance(ignore, list) else [ignore]
    if unknown:
        raise ReportError(f"{path}: {where} ignores {unknown[0]!r}, expected some of {', '.join(IGNORABLE)}")
    if not thresholds and not ignore:
        raise ReportError(f"{path}: {where} has no effect: it sets no threshold and ignores nothing")
    return Rule(number, patterns, thresholds, tuple(ignore))


def _refuse_unknown(path: Path, where: str, table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise ReportError(f"{path}: {where} has the unknown key {unknown[0]!r}, expected {', '.join(names)}")
