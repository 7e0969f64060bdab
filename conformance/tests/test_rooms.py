"""The tests that run when a folder of the checkout is named on pytest's command line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from attention_conformance.conformance.plugin import HERE, pytest_ignore_collect

ROOT = HERE.parent


def ignored(folder: str, *words: str) -> bool:
    """Whether a run with these arguments leaves the folder out."""
    source = pytest.Config.ArgsSource.ARGS if words else pytest.Config.ArgsSource.TESTPATHS
    options = SimpleNamespace(dir=ROOT)
    config = SimpleNamespace(args_source=source, args=words, invocation_params=options, getoption=lambda _: None)
    return bool(pytest_ignore_collect(ROOT / folder, cast("Any", config)))


@pytest.mark.parametrize("room", ["conformance", "bench"])
def test_naming_what_judges_or_times_runs_no_test_of_its_code(room: str) -> None:
    """``pytest conformance`` is the suite as users run it, without the tests of its code."""
    assert ignored(f"{room}/tests", room)
    assert not ignored(f"{room}/tests", f"{room}/tests")
    assert not ignored(f"{room}/tests")


@pytest.mark.parametrize("room", ["api", "impls", "reports", "studies"])
def test_naming_another_folder_runs_its_tests(room: str) -> None:
    """Naming another folder runs its tests, the only ones there."""
    assert not ignored(f"{room}/tests", room)
