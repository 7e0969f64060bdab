"""The plugin of every run: which arguments name the suite; nothing else loads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance import pytest_entry
from attention_conformance.bench import options as bench_options
from attention_conformance.conformance import options
from attention_conformance.pytest_entry import suite_arguments

ROOT = Path("/suite")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has no folder of our names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("arguments", "unknown", "named"),
    [
        (["conformance"], [], {0: "/suite/conformance"}),
        (["-q", "bench"], [], {1: "/suite/bench"}),
        (["conformance/test_x.py"], [], {}),
        (["conformance::test_sdpa"], [], {0: "/suite/conformance::test_sdpa"}),
        (["tests", "-k", "case"], [], {}),
        (["reports"], [], {}),
        (["--impl", "x", "conformance"], ["--impl"], {2: "/suite/conformance"}),
        (["--in-process", "conformance"], ["--in-process"], {1: "/suite/conformance"}),
        (["--quick", "conformance/"], ["--quick"], {1: "/suite/conformance"}),
        (["--suite", "conformance", "tests"], ["--suite"], {}),
    ],
)
def test_a_name_counts_where_it_is_no_value(arguments: list[str], unknown: list[str], named: dict[int, str]) -> None:
    """A room's name means our folder, unless it may be the value of an option that another conftest adds."""
    assert suite_arguments(arguments, unknown, ROOT) == named


def test_every_option_without_a_value_is_known() -> None:
    """FLAGS has all options without a value: the plugin cannot look them up, as it imports nothing of the suite."""
    flags = []

    def add(name: str, *, action: str = "store", **_: object) -> None:
        if action in ("store_true", "store_false"):
            flags.append(name)

    options.add(add)
    options.add_fuzz(add)
    bench_options.add(add)
    assert sorted(flags) == sorted(pytest_entry.FLAGS)


def test_a_folder_of_theirs_is_theirs(elsewhere: Path) -> None:
    """``pytest bench`` runs their bench if they have one, else ours."""
    (elsewhere / "bench").mkdir()
    assert suite_arguments(["bench", "conformance"], [], ROOT) == {1: "/suite/conformance"}


def test_a_path_into_the_suite_names_it(elsewhere: Path) -> None:
    """A path into the suite names it, as the command ``check`` gives it."""
    (elsewhere / "conformance").mkdir()
    path = str(elsewhere / "conformance")
    assert suite_arguments([path], [], elsewhere) == {0: path}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is named in one sentence, with what to install."""
    monkeypatch.setitem(pytest_entry.NEEDS, "bench", ("pytest", "no_such_package"))
    assert pytest_entry.lacking("bench") == "bench needs no_such_package: pip install 'attention-conformance[bench]'"
    assert pytest_entry.lacking("conformance") == ""
