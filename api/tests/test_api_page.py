"""API.md: its examples print the output shown below them, and it names every public function."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attention_conformance

pytestmark = [pytest.mark.slow(20), pytest.mark.documents]

PAGE = (Path(__file__).parents[1] / "API.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_prints_what_stands_below(tmp_path: Path) -> None:
    """The example, a notebook cell, prints the output shown below it when it is run as a script."""
    pytest.importorskip("torch")
    _, example, *_ = blocks("python")
    path = tmp_path / "cell.py"
    path.write_text(f"if __name__ == '__main__':\n{re.sub('^', '    ', example, flags=re.MULTILINE)}", encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks("text")[0]


def told(text: str) -> list[list[str]]:
    """The lines of a report without its numbers, its verdicts and what a busy machine adds."""
    lines = [line for line in text.splitlines() if not line.startswith("unstable:")]
    left_out = re.compile(r"\b(faster|slower|same|unclear|s|ms|µs)\b|-?[\d.]+(e[+-]?\d+)?%?|-{2,}")
    return [left_out.sub(" ", line).split() for line in lines]


def test_the_timing_prints_what_stands_below(tmp_path: Path) -> None:
    """The example prints the report shown, except its numbers, as inputs are new in each run; the clause is in full."""
    pytest.importorskip("torch")
    example, shown = blocks("python")[-1], blocks("text")[-1]
    path = tmp_path / "cell.py"
    path.write_text(f"if __name__ == '__main__':\n{re.sub('^', '    ', example, flags=re.MULTILINE)}", encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == told(shown)
    quoted = [text.partition("\nSDPA-25")[2] for text in (done.stdout, shown)]
    assert quoted[0] == quoted[1] != ""


def test_the_tests_of_the_page_run(tmp_path: Path) -> None:
    """The right cases pass, and the mistake of the example is found."""
    pytest.importorskip("torch")
    _, example, tests, *_ = blocks("python")
    kernels = example.partition("report =")[0].replace("from attention_conformance import check\n", "")
    (tmp_path / "kernels.py").write_text(kernels, encoding="utf-8")
    (tmp_path / "test_kernels.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "causal-square or causal-one-key"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "FAILED test_kernels.py::test_attention[float32-causal-one-key]" in done.stdout


def measured(text: str) -> list[str]:
    """Lines without the digits that depend on the processor, and without the seconds."""
    return [re.sub(r"-?\d\.\d+(e[+-]\d+)?|in [\d.]+s", "…", line).rstrip() for line in text.splitlines()]


def test_a_repository_of_ones_own(tmp_path: Path) -> None:
    """The two files of the page's repository give the pytest output that it shows."""
    for block in blocks("python"):
        if name := re.match(r"# (kernels\.py|tests/test_kernels\.py)\n", block):
            path = tmp_path / name[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.partition("\n")[2], encoding="utf-8")
    (tmp_path / "conftest.py").touch()
    (shown,) = blocks("console")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    theirs = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}  # shortens less
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**theirs, "COLUMNS": "80"}
    )
    assert measured(done.stdout) == measured(shown.partition("\n")[2])


def test_every_public_function_is_named() -> None:
    """Functions must be named; classes come with the functions that return them."""
    functions = [name for name in attention_conformance.__all__ if name.islower()]
    assert functions
    assert [name for name in functions if f"`{name}" not in PAGE] == []
