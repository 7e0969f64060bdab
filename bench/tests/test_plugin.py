"""The plugin of the bench in a run that has other tests as well."""

from __future__ import annotations

from typing import Any, cast

import pytest

from attention_conformance.bench import plugin


class _Metafunc:
    """What pytest hands over of a test, which has these arguments; its run knows nothing of a bench."""

    def __init__(self, *names: str) -> None:
        self.fixturenames = names
        self.config = cast("Any", type("Config", (), {"stash": {}}))
        self.parametrized: list[str] = []

    def parametrize(self, name: str, *_: object, **__: object) -> None:
        self.parametrized.append(name)


def test_a_test_with_a_cell_of_its_own_is_left_alone() -> None:
    """In a run of a whole checkout other tests have an argument of that name."""
    own = _Metafunc("cell", "tmp_path")
    plugin.pytest_generate_tests(cast("pytest.Metafunc", own))
    assert own.parametrized == []


def test_a_test_of_the_bench_is_not_left_alone() -> None:
    """It asks for the workloads of the run, which this one does not have."""
    with pytest.raises(KeyError):
        plugin.pytest_generate_tests(cast("pytest.Metafunc", _Metafunc("benchmark", "cell", "outcomes")))
