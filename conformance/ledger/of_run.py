"""The ledger of a run: the suite's own, and those that ``--deviations FILE`` adds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from conformance.deviations import LEDGER, Ledger, read
from conformance.ledger.check import together
from conformance.targets import Selection

_LEDGER = pytest.StashKey[Ledger]()


def ledger(config: pytest.Config) -> Ledger:
    """The ledger in force, read once.  Raises LedgerError for the first thing wrong in it."""
    if _LEDGER not in config.stash:
        config.stash[_LEDGER] = read([LEDGER, *map(Path, config.getoption("deviations"))])
    return config.stash[_LEDGER]


def checked(config: pytest.Config, selection: Selection) -> Ledger:
    """The same, when it is known which plug-ins its globs meet.  Raises LedgerError if two records meet on a case."""
    found = ledger(config)
    together(found.deviations, {target.implementation.name for target in selection.targets})
    return found


def versions(found: Ledger, selection: Selection) -> dict[str, str]:
    """Versions of the packages that took part, and of those that records about what is judged name."""
    return {**found.installed({t.implementation.name for t in selection.targets}), **selection.versions}


def as_json(found: Ledger) -> list[dict[str, Any]]:
    """Which ledgers are in force, for a result file's header."""
    return [dataclasses.asdict(source) for source in found.sources]
