"""A run over an implementation that crashes, hangs and is right in turns: every case is counted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import Case, all_cases
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.results import read
from attention_conformance.conformance.tests.interrupts import interrupt, interruptible
from attention_conformance.conformance.tests.test_plugin import plug_in, run

pytestmark = pytest.mark.slow

#: Right, except for the inputs that have a number in a file: every tenth hangs, and every third of the others crashes.
#: A file is used because a process that died cannot count.
MIXED = """
import json, os, pathlib, time, zlib
import numpy as np

NUMBERS = json.loads((pathlib.Path(__file__).parent / "numbers.json").read_text())

def attention(q, k, v):
    number = NUMBERS.get(str(zlib.crc32(b"".join(a.tobytes() for a in (q, k, v)))), 0)
    if number % 10 == 9:
        time.sleep(1000)
    if number % 3 == 2:
        os.abort()
    s = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5
    p = np.exp(s - s.max(3, keepdims=True))
    return (p / p.sum(3, keepdims=True) @ v).astype(q.dtype)

attention.dtypes = ("float32",)
"""

#: Number of cases of one run.
CASES = 30


def plain_cases() -> list[Case]:
    """Cases that the function gets right: valid, without keywords, of finite numbers, with one call each."""
    found = [
        case
        for case in all_cases().values()
        if not case.keywords and not case.invalid and "float32" in case.dtypes
        if not case.after and case.repeats == 1 and case.memory == "contiguous" and case.shape.hq == case.shape.hkv
        if all(a.size and abs(a).max() < 100 for a in case.inputs("float32").arrays.values())
    ]
    return found[:CASES]


def mixed(folder: Path) -> list[str]:
    """Write the function and its file of numbers into a folder; return the options of a run."""
    from zlib import crc32

    cases = plain_cases()
    inputs = [b"".join(a.tobytes() for a in case.inputs("float32").arrays.values()) for case in cases]
    numbers = {str(crc32(each)): number for number, each in enumerate(inputs)}
    assert len(numbers) == CASES
    plug_in(folder, MIXED)
    (folder / "numbers.json").write_text(json.dumps(numbers))
    chosen = [option for case in cases for option in ("--case", case.name)]
    return ["--impl", "mykernels.py:attention", "--conformance-json", "o.jsonl", *chosen]


def test_crashes_and_hangs_are_counted_exactly(tmp_path: Path) -> None:
    """Of 30 cases the 3 that hang and the 9 others that crash fail in their way, and the 18 others pass."""
    done = run(tmp_path, *mixed(tmp_path), "--case-timeout", "1")
    assert done.returncode == 1
    found = read(tmp_path / "o.jsonl")
    assert found.complete
    assert Counter((r.outcome, r.failure) for r in found.results) == {
        (Outcome.FAILED, Failure.TIMEOUT): 3,
        (Outcome.FAILED, Failure.CRASHED): 9,
        (Outcome.PASSED, None): 18,
    }
    by_case = {result.case: result.failure for result in found.results}
    assert [by_case[case.name] for case in plain_cases()[:10]] == [
        *(None, None, Failure.CRASHED, None, None, Failure.CRASHED, None, None, Failure.CRASHED),
        Failure.TIMEOUT,
    ]
    assert "12 failed, 18 passed" in done.stdout


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    """Ctrl-C while a case hangs leaves a file with all results before it, and without a footer."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", *mixed(tmp_path)]
    with interruptible(command, tmp_path, stdout=subprocess.DEVNULL) as process:
        written = tmp_path / "o.jsonl"
        while not written.exists() or written.read_text().count("\n") < 10:  # the header and nine results
            assert process.poll() is None
            time.sleep(0.1)
        assert interrupt(process) == pytest.ExitCode.INTERRUPTED
    found = read(written)
    assert not found.complete
    assert [result.failure for result in found.results] == [*(None, None, Failure.CRASHED) * 3]


def test_an_interrupted_run_keeps_what_was_judged_beside(tmp_path: Path) -> None:
    """Results that wait behind a hanging case, as pytest reports in order, are in the file too."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", *mixed(tmp_path), "--impl", "numpy-eager"]
    with (
        (tmp_path / "printed").open("w") as file,
        interruptible([*command, "--parallel", "2"], tmp_path, stdout=file) as process,
    ):
        written = tmp_path / "o.jsonl"
        while not written.exists() or written.read_text().count("\n") < 10:
            assert process.poll() is None
            time.sleep(0.1)
        assert 'numpy-eager", "device' not in written.read_text()
        assert interrupt(process) == pytest.ExitCode.INTERRUPTED
    names = [result.implementation for result in read(written).results]
    assert names[:9] == ["mykernels.py:attention"] * 9
    assert set(names[9:]) == {"numpy-eager"}
    assert "\nnumpy-eager " in (tmp_path / "printed").read_text()


#: Right, but leaves NumPy's warnings off, from its first call in the adapter check on.
SILENT = MIXED.replace("    s = q", "    np.seterr(all='ignore')\n    s = q")


def test_what_the_adapter_check_left_changed_hides_nothing(tmp_path: Path) -> None:
    """A function that sets the same state in each call fails, though it was called before its first case."""
    (tmp_path / "numbers.json").write_text("{}")
    done = run(plug_in(tmp_path, SILENT), "--impl", "mykernels.py:attention", "--case", "plain")
    assert done.returncode == 1
    assert "case plain: wrong by changed state" in done.stdout
    assert "Changed:  error state of NumPy: " in done.stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("much", "much: expected a size such as 4GiB or 500MB"), ("0", "0: expected a size")],
)
def test_a_size_that_is_none_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """``--case-memory`` takes a size, and anything else is refused in one sentence."""
    done = run(tmp_path, "--impl", "numpy-eager", "--case", "plain", "--case-memory", text)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert sentence in done.stderr


def test_too_much_memory_is_an_outcome(tmp_path: Path) -> None:
    """A function that takes memory without end fails by memory, and the message gives the limit."""
    text = MIXED.replace(
        "    s = q", "    kept = [np.ones(1 << 24) for _ in range(100_000)] if q.shape[2] == 1 else []\n    s = q"
    )
    (tmp_path / "numbers.json").write_text("{}")
    options = ("--impl", "mykernels.py:attention", "--case", "one-query", "--case", "plain", "--case-memory", "500 MiB")
    done = run(plug_in(tmp_path, text), *options)
    assert done.returncode == 1
    assert "case one-query: wrong by memory" in done.stdout
    assert "Memory:   took more than 500 MiB" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
