"""Targets: what a run selects, and how often it asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.conformance import targets
from attention_conformance.impls import select


def test_keywords_need_no_second_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was selected without looking for envelopes is not examined again, which imports every library."""
    implementation = select.builtin()["numpy-eager"]
    asked: list[bool] = []

    def examine(*_: Any, probe: bool) -> targets.Selection:
        asked.append(probe)
        return targets.Selection((), {implementation.name: frozenset({"scale"})}, {}, {})

    monkeypatch.setattr(targets, "examine", examine)
    options = {"impl": [implementation.name], "device": [], "dtype": [], "quick": False, "in_process": True}
    config: Any = SimpleNamespace(
        stash=pytest.Stash(),
        getoption=options.get,
        add_cleanup=lambda _: None,
    )
    targets.selection(config, probe=False)
    assert targets.keywords(config, implementation) == {"scale"}
    assert asked == [False]
