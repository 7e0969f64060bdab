"""``attention-conformance script``: the standalone script of a failure, for a record of each framework."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.ledger.load import Deviation, read
from attention_conformance.conformance.ledger.page import example, script_command
from attention_conformance.conformance.ledger.versions import PROCESSOR, processor
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow


def of_each_framework() -> list[Deviation]:
    """The first record in force of each installed framework, without slow exports and without plug-ins."""
    found: dict[Framework, Deviation] = {}
    for record in read().deviations:
        implementation = builtin().get(example(record)[0])
        if implementation is None or implementation.missing() or "export" in implementation.name:
            continue
        if record.in_force({record.package: metadata.version(record.package), PROCESSOR: processor()}):
            found.setdefault(implementation.framework, record)
    return list(found.values())


@pytest.mark.parametrize("record", of_each_framework(), ids=lambda record: record.id)
def test_the_command_of_a_record_prints_a_script_that_fails(
    record: Deviation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The printed script runs by itself, without this suite, and ends with 1."""
    program, *arguments = script_command(record).split()
    assert program == "attention-conformance"
    assert main(arguments) == 0
    script = tmp_path / "script.py"
    script.write_text(capfd.readouterr().out, encoding="utf-8")
    assert script.read_text().startswith(f"# {example(record)[0]} (")
    assert not re.search(r"^\s*(import|from) attention_conformance\b", script.read_text(), re.MULTILINE)
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout


def test_a_case_that_passes_has_no_script(capfd: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1 and the output a comment, so that it is not taken for a script that fails."""
    assert main(["script", "--impl", "numpy-eager", "--case", "plain"]) == 1
    assert capfd.readouterr().out == ("# numpy-eager, case plain in float32: passed; there is no failure to show\n")


def test_an_unsupported_case_has_no_script(capfd: pytest.CaptureFixture[str]) -> None:
    """The reason why the case does not run is printed."""
    assert main(["script", "--impl", "numpy-tiled", "--case", "weights"]) == 1
    assert "numpy-tiled, case weights in float32: unsupported: no keyword return_weights" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--impl numpy-eager --case plan", "--case plan: no such case; did you mean plain"),
        ("--impl numpy-eeger --case plain", "unknown implementation 'numpy-eeger'; did you mean numpy-eager"),
        ("--impl numpy-* --case plain", "implementations, a script needs exactly one"),
        ("--impl numpy-eager --case mha-empty-row", "numpy-eager is of sdpa, case mha-empty-row of mha"),
        (
            "--impl numpy-eager --case empty-batch --dtype float16",
            "--dtype float16: case empty-batch exists only in float32",
        ),
        ("--impl numpy-eager --case plain --device cuda", "--impl numpy-eager: does not run on cuda"),
    ],
)
def test_a_choice_that_cannot_be_run_ends_with_2(arguments: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence says why, with the nearest name, and no script is printed."""
    assert main(["script", *arguments.split()]) == 2
    printed = capfd.readouterr()
    assert not printed.out
    (line,) = printed.err.splitlines()
    assert said in line


def test_a_plug_in_has_scripts_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A user's own function runs as in ``pytest conformance``."""
    (tmp_path / "mine.py").write_text("def attention(q, k, v):\n    return v\n")
    assert main(["script", "--impl", f"{tmp_path / 'mine.py'}:attention", "--case", "plain"]) == 0
    assert "a result of another shape" in " ".join(capfd.readouterr().out.replace("\n# ", " ").split())
