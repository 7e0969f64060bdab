"""What naming a folder of the checkout on pytest's command line runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from attention_conformance.conformance.plugin import HERE, pytest_ignore_collect

ROOT = HERE.parent


def ignored(folder: str, *words: str) -> bool:
    """Whether a run with these words leaves the folder out."""
    source = pytest.Config.ArgsSource.ARGS if words else pytest.Config.ArgsSource.TESTPATHS
    options = SimpleNamespace(dir=ROOT)
    config = SimpleNamespace(args_source=source, args=words, invocation_params=options, getoption=lambda _: None)
    return bool(pytest_ignore_collect(ROOT / folder, cast("Any", config)))


@pytest.mark.parametrize("room", ["conformance", "bench"])
def test_naming_what_judges_or_times_runs_no_test_of_its_code(room: str) -> None:
    """``pytest conformance`` is the suite, as users run it."""
    assert ignored(f"{room}/tests", room)
    assert not ignored(f"{room}/tests", f"{room}/tests")
    assert not ignored(f"{room}/tests")


@pytest.mark.parametrize("room", ["api", "impls", "reports", "studies"])
def test_naming_another_folder_runs_its_tests(room: str) -> None:
    """They have nothing else that pytest could run."""
    assert not ignored(f"{room}/tests", room)
