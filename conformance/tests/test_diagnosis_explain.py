"""Additions to the messages at the end of a run: a diagnosis, effects of an earlier call, scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_conformance.conformance.results import read
from attention_conformance.conformance.run.causes import UNEXPLAINED
from attention_conformance.conformance.tests.interrupts import interrupt, interruptible
from attention_conformance.conformance.tests.test_plugin import plug_in, run
from attention_conformance.conformance.tests.tile_kernels import TILE_KERNELS

pytestmark = pytest.mark.slow(20)

#: A correct function with a change to its output that is no known mistake.
KERNEL = """
import numpy as np
calls, shapes = 0, set()
def attention(q, k, v):
    global calls
    calls += 1
    shapes.add(q.shape)
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * k.shape[3] ** -0.5
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    output = p / p.sum(-1, keepdims=True) @ v
    CHANGE
    return output.astype(q.dtype)
"""

CASES = ("--dtype", "float32", "--case", "width-*", "--case", "plain*")


def judged(folder: Path, change: str, *options: str) -> str:
    """The output of a run."""
    plug_in(folder, KERNEL.replace("CHANGE", change))
    return run(folder, "--impl", "mykernels.py:attention", *CASES, *options).stdout


def test_what_stays_behind_is_said(tmp_path: Path) -> None:
    """A case that fails after others and passes alone says so."""
    printed = judged(tmp_path, "output += 0.37 * (len(shapes) > 3)")
    assert (
        "the case passes by itself in a fresh process, 20 times: an earlier call left something behind, or" in printed
    )


def test_what_fails_in_some_of_equal_calls_is_not_left_behind(tmp_path: Path) -> None:
    """A case that passes in a fresh process at first, and not in each of several equal calls, changes."""
    printed = judged(tmp_path, "output += 0.37 * (calls % 7 == 4)")
    assert "run again by itself, the result is different: it changes from call to call" in printed
    assert "an earlier call left something behind" not in printed


def test_a_right_second_call_is_no_other_path_where_equal_calls_differ(tmp_path: Path) -> None:
    """A call with lse that is right, where the plain call is wrong only sometimes, says that it changes."""
    change = "output += 0.37 * (calls % 7 == 4)\n    if return_lse: return output.astype(q.dtype), lse"
    kernel = KERNEL.replace("(q, k, v)", "(q, k, v, return_lse=False)").replace(
        "    output = p", "    lse = np.log(np.exp(s).sum(-1)).astype(np.float32)\n    output = p"
    )
    plug_in(tmp_path, kernel.replace("CHANGE", change))
    printed = run(tmp_path, "--impl", "mykernels.py:attention", *CASES).stdout
    assert "it changes from call to call (SDPA-29)" in printed
    assert "so it takes another path" not in printed
    plug_in(tmp_path, kernel.replace("CHANGE", change.replace("calls % 7 == 4", "not return_lse")))
    printed = run(tmp_path, "--impl", "mykernels.py:attention", *CASES).stdout
    assert "the output of that call is right, so it takes another path" in printed


def test_what_differs_from_call_to_call_is_said(tmp_path: Path) -> None:
    """A case that fails with other numbers each time says so."""
    printed = judged(tmp_path, "output += np.random.default_rng().standard_normal(output.shape)")
    assert "run again by itself, the result is different" in printed


def test_a_steady_mistake_says_neither(tmp_path: Path) -> None:
    """A case that fails in the same way each time, by no known mistake, gets no diagnosis."""
    printed = judged(tmp_path, "output = output + 0.37")
    assert "wrong by value" in printed
    assert "Diagnosis:" not in printed


def test_the_result_file_holds_the_diagnosis(tmp_path: Path) -> None:
    """The faults by name, and the cases that they explain."""
    run(
        tmp_path,
        "--impl",
        "attention_conformance.conformance.faults:scale_missing",
        *CASES,
        "--conformance-json",
        "out.jsonl",
    )
    assert read(tmp_path / "out.jsonl").complete
    footer = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    (diagnosis,) = footer["diagnoses"]
    (explanation,) = diagnosis["explanations"]
    assert explanation["faults"] == ["scale-missing"]
    assert {"plain", "width-64"} <= set(explanation["cases"])
    assert diagnosis["common_features"] == []


def test_results_outlive_a_diagnosis_that_breaks(tmp_path: Path) -> None:
    """If the end of a run raises, the result file is closed all the same."""
    (tmp_path / "breaks.py").write_text(
        "import attention_conformance.conformance.diagnosis.explain as e\ne.diagnose = lambda *_: 1 / 0\n"
    )
    printed = judged(tmp_path, "output = output + 0.37", "-p", "breaks", "--conformance-json", "out.jsonl")
    assert "results in" not in printed  # the diagnosis did raise: the table that follows it is missing
    assert read(tmp_path / "out.jsonl").complete


def test_scripts_go_where_they_are_asked_to(tmp_path: Path) -> None:
    """The folder of --scripts holds one script per failure, which fails by itself."""
    printed = judged(tmp_path, "output = output + 0.37", "--scripts", "proofs", "-vv")
    scripts = sorted((tmp_path / "proofs").glob("*.py"))
    assert len(scripts) == printed.count("\nScript:   proofs/") > 5
    done = subprocess.run([sys.executable, scripts[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_a_ci_job_shows_a_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pytest lists failures with their whole text, its list gives only the kind of failure and the clause."""
    monkeypatch.setenv("CI", "true")
    printed = judged(tmp_path, "output = output + 0.37", "-rf")
    assert printed.count(": wrong by value") == UNEXPLAINED
    assert re.search(r"^FAILED .*-float32-plain\] - wrong by value, SDPA-1$", printed, re.MULTILINE), printed


def test_the_script_of_a_cause_has_simpler_inputs(tmp_path: Path) -> None:
    """For a half-precision kernel only the script that the summary names gets simpler inputs."""
    (tmp_path / "tile.py").write_text(TILE_KERNELS, encoding="utf-8")
    done = run(
        tmp_path, "--impl", "tile.py:bias", "--case", "kernel-square-bias-1x1x1-*-float32", "--scripts", "proofs"
    )
    texts = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "proofs").glob("*.py")}
    simple = [path for path, text in texts.items() if "with simpler numbers" in text]
    assert len(texts) > 1
    assert [f"proofs/{path.name}" for path in simple] == re.findall(r"^  Script:   (.*)$", done.stdout, re.MULTILINE)
    assert subprocess.run([sys.executable, simple[0]], cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_a_right_function_writes_no_script(tmp_path: Path) -> None:
    """A run without failures makes no folder of scripts."""
    judged(tmp_path, "pass")
    assert not (tmp_path / "conformance-scripts").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_run_does_not_begin_to_examine(tmp_path: Path) -> None:
    """Ctrl-C ends a run with failures at once: the results so far are printed, without a diagnosis."""
    plug_in(tmp_path, KERNEL.replace("CHANGE", "output = 0 * output\n    if calls > 9: import time; time.sleep(60)"))
    command = [sys.executable, "-m", "pytest", "conformance", "-p", "no:cacheprovider", "-v", *CASES]
    command += ["--impl", "mykernels.py:attention", "--conformance-json", "out.jsonl"]
    with (tmp_path / "printed").open("w") as file, interruptible(command, tmp_path, stdout=file) as process:
        while not (tmp_path / "out.jsonl").exists() or (tmp_path / "out.jsonl").read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.05)
        assert interrupt(process) == pytest.ExitCode.INTERRUPTED
    printed = (tmp_path / "printed").read_text()
    assert "Diagnosis:" not in printed
    assert not read(tmp_path / "out.jsonl").complete
