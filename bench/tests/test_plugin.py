"""The bench's plugin in a run that has other tests as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from attention_conformance.bench import plugin
from attention_conformance.cli import main


class _Metafunc:
    """A stand-in for a pytest metafunc with these arguments; its run knows nothing of a bench."""

    def __init__(self, *names: str) -> None:
        self.fixturenames = names
        self.config = cast("Any", type("Config", (), {"stash": {}}))
        self.parametrized: list[str] = []

    def parametrize(self, name: str, *_: object, **__: object) -> None:
        self.parametrized.append(name)


def test_a_test_with_a_cell_of_its_own_is_left_alone() -> None:
    """A run of a whole checkout has other tests with an argument of that name."""
    own = _Metafunc("cell", "tmp_path")
    plugin.pytest_generate_tests(cast("pytest.Metafunc", own))
    assert own.parametrized == []


def test_a_test_of_the_bench_is_not_left_alone() -> None:
    """It needs the workloads of the run, which this one lacks."""
    with pytest.raises(KeyError):
        plugin.pytest_generate_tests(cast("pytest.Metafunc", _Metafunc("benchmark", "cell", "outcomes")))


def test_the_command_of_a_run_is_what_its_caller_wrote() -> None:
    """``attention-conformance bench`` runs pytest with settings and a folder that the user did not type."""
    with mock.patch("pytest.main", return_value=0) as called:
        assert main(["bench", "mine.py:attention", "--dtype", "float16", "--workload", "mha *"]) == 0
    assert plugin._command(tuple(called.call_args.args[0])) == (
        "attention-conformance bench --impl mine.py:attention --dtype float16 --workload 'mha *'"
    )


def test_the_command_of_a_run_of_pytest_is_pytest() -> None:
    """The command stays unchanged, also if the folder is named by its path."""
    folder = str(Path(plugin.__file__).parent)
    assert plugin._command(("bench", "--noise", "0.5")) == "pytest bench --noise 0.5"
    assert plugin._command(("-q", folder, "--noise", "0.5")) == f"pytest -q {folder} --noise 0.5"


class _Config:
    """A stand-in for a config of a run that is spread over processes, or is not."""

    def __init__(self, folder: Path, *args: str, dist: str = "load", source: str = "ARGS") -> None:
        self.args = list(args)
        self.args_source = pytest.Config.ArgsSource[source]
        self.invocation_params = SimpleNamespace(dir=folder)
        self._options = {"dist": dist}
        self.stash: dict[Any, Any] = {}

    def getoption(self, name: str, default: Any = None) -> Any:
        return self._options.get(name, default)

    def add_cleanup(self, close: Any) -> None:
        close()


@pytest.mark.parametrize("args", [("bench",), ("conformance", "bench/test_bench.py::test_forward"), (".",)])
def test_cells_are_not_timed_by_several_processes(args: tuple[str, ...]) -> None:
    """They would disturb each other, so a run that names them is refused if it is spread."""
    config = _Config(Path(plugin.__file__).parents[1], *args)
    with pytest.raises(pytest.UsageError, match="leave out -n"):
        plugin.pytest_configure(cast("pytest.Config", config))


@pytest.mark.parametrize(
    ("args", "dist", "source"),
    [(("bench",), "no", "ARGS"), (("bench/tests", "conformance"), "load", "ARGS"), (("bench",), "load", "TESTPATHS")],
)
def test_other_runs_are_spread_as_they_were(args: tuple[str, ...], dist: str, source: str) -> None:
    """Such runs time in one process, run other tests, or run all folders, which times nothing."""
    config = _Config(Path(plugin.__file__).parents[1], *args, dist=dist, source=source)
    plugin.pytest_configure(cast("pytest.Config", config))
    assert plugin._BENCH in config.stash
