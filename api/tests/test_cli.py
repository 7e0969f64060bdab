"""The command line: help with an example for every command, errors in one sentence, and options passed to pytest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import cli, pages
from attention_conformance.cli import COMMANDS, UNUSABLE, main, parser
from attention_conformance.conformance.ledger import page
from attention_conformance.impls import checkout
from attention_conformance.reports import publish


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has help, with an example that its own parser takes."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"attention-conformance {name}" in " ".join(capsys.readouterr().out.split())
    command, *words = shlex.split(COMMANDS[name].example)
    assert command == "attention-conformance"
    assert words[0] == name
    parser(words).parse_args(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name: str) -> None:
    """The functions that run a command and add its options can be imported."""
    assert callable(cli._load(COMMANDS[name].run))
    assert not COMMANDS[name].options or callable(cli._load(COMMANDS[name].options))


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments the help is printed, and the exit status says that nothing was done."""
    assert main([]) == UNUSABLE
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unusable file gives one sentence without a traceback, and the exit status of an unusable option."""
    assert main(["report", str(tmp_path / "none.json"), "-o", str(tmp_path / "out")]) == UNUSABLE
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_renamed_command_says_its_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    """An old command names its new name in one sentence, whatever follows it; the new one exists."""
    assert main(["duet", "--base", "main"]) == UNUSABLE
    assert capsys.readouterr().err == "error: duet is now compare-revisions\n"
    assert "compare-revisions" in COMMANDS
    assert not set(cli.RENAMED) & set(COMMANDS)


#: Commands that write into the package unless they are given another place.
WRITING = (
    ["publish"],
    ["pages"],
    ["pages", "examples"],
    ["ledger", "page", str(publish.FOLDER / "conformance.jsonl.zst")],
    ["kill-matrix", "--choose-quick", "-o", "OUT/faults.json"],
    ["evidence", "--cases"],
    ["gallery", "page"],
    ["gallery", "page", "OUT", "--publish"],
    ["schema", "--write"],
)


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_an_installed_package_is_not_written_to(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside a checkout these commands refuse in one sentence before they begin, and no file is touched."""

    def written(*_: Any, **__: Any) -> None:
        raise AssertionError("something was written")

    monkeypatch.setattr(checkout, "is_checkout", lambda: False)
    monkeypatch.setattr(Path, "write_text", written)
    monkeypatch.setattr(Path, "write_bytes", written)
    assert main([word.replace("OUT", str(tmp_path)) for word in words]) == UNUSABLE
    error = capsys.readouterr().err
    assert error.endswith(" is a part of the installed package: this command writes it in a checkout only\n")
    assert error.count("\n") == 1


def test_another_place_may_be_written_to_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files inside an installed package are refused; in a checkout nothing is."""
    assert checkout.writable(checkout.ROOT / "conformance") == checkout.ROOT / "conformance"
    assert not checkout.is_checkout(tmp_path)
    monkeypatch.setattr(checkout, "is_checkout", lambda: False)
    assert checkout.writable(tmp_path / "out") == tmp_path / "out"


def test_a_document_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown document is refused with the names of the known ones."""
    assert main(["pages", "exampels"]) == UNUSABLE
    assert capsys.readouterr().err == f"error: 'exampels' is not a document; known: {', '.join(pages.PAGES)}\n"


@pytest.mark.documents
def test_deviations_are_those_of_every_published_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pages deviations`` writes the page that is there, with the answers on a GPU."""
    there = page.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", tmp_path / page.PAGE.name)
    assert pages.run(["deviations"]) == str(page.PAGE)
    assert page.PAGE.read_text(encoding="utf-8") == there


@pytest.mark.parametrize("option", ["--case", "--require", "--conformance-json", "--scripts"])
def test_the_bench_takes_no_option_that_it_does_not_read(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The bench refuses an option that only judging reads, instead of ignoring it."""
    with pytest.raises(SystemExit):
        main(["bench", "numpy-eager", option, "causal"])
    assert f"unrecognized arguments: {option} causal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["k.py:f", "--dtype", "float32"], ["--impl", "k.py:f", "--dtype", "float32"]),
        (
            ["--case", "causal-*", "--in-process", "k.py:f", "-x"],
            ["--impl", "k.py:f", "--case", "causal-*", "--in-process", "-x"],
        ),
        (["a", "b", "-n", "2"], ["-p", "xdist.plugin", "--impl", "a", "--impl", "b", "-n", "2"]),
        ([], []),
    ],
)
def test_check_hands_its_options_to_pytest(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options reach pytest as they were written, after the settings that keep out the folder's tests and plugins."""
    given: list[list[str]] = []

    def ended(arguments: list[str]) -> int:
        given.append(arguments)
        return 0

    monkeypatch.setattr(pytest, "main", ended)
    for name in ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "before")
    assert main(["check", *words]) == 0
    (arguments,) = given
    folder = next(each for each in arguments if each.endswith("/conformance") and "--" not in each)
    handed: list[Any] = [each for each in arguments[arguments.index("no:cacheprovider") + 1 :] if each != folder]
    assert handed[:2] == ["-p", "attention_conformance.conformance.plugin"]
    assert handed[2:] == expected


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that needs more than the core says what to install."""

    def absent(reference: str) -> None:
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    monkeypatch.setattr(cli, "_load", absent)
    assert main(["report", "a.json", "-o", "out"]) == UNUSABLE
    assert capsys.readouterr().err == "error: report needs pandas: pip install 'attention-conformance[reports]'\n"
