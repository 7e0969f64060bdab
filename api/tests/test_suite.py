"""The main job in one command: its stages, its exit status, and the report that an interrupt leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from attention_conformance import suite
from attention_conformance.cli import INTERRUPTED
from attention_conformance.conformance.tests.interrupts import interruptible
from attention_conformance.suite import Stage, run

#: A wrong kernel that takes minutes to judge.
SLOW = """
import time

import numpy as np


def attention(q, k, v):
    time.sleep(0.2)
    return np.zeros(1)
"""


def staged(
    monkeypatch: pytest.MonkeyPatch, statuses: dict[str, int], interrupted: str = ""
) -> list[tuple[str, Sequence[str]]]:
    """The stages that a job runs: each writes an empty result, and one of them may be interrupted."""
    ran: list[tuple[str, Sequence[str]]] = []

    def stage(name: str, words: Sequence[str]) -> Stage:
        ran.append((name, words))
        for option in ("--conformance-json", "--benchmark-json"):
            if option in words:
                Path(words[words.index(option) + 1]).write_text("{}", encoding="utf-8")
        return Stage(name, statuses.get(name, 0), 60.0, 90.0, name == interrupted)

    monkeypatch.setattr(suite, "_stage", stage)
    return ran


def test_the_report_is_of_both_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job runs conformance, then the bench, then a report on what both wrote."""
    ran = staged(monkeypatch, {})
    text, status = run(["numpy-eager"], tmp_path, "quick", False)
    assert [name for name, _ in ran] == ["check", "bench", "report"]
    assert ran[2][1][:2] == (str(tmp_path / "conformance.jsonl"), str(tmp_path / "bench.json"))
    assert status == 0
    assert text.splitlines()[-1] == "all          180 s,     270 s of processor time"


@pytest.mark.parametrize("failing", ["check", "bench", "report"])
def test_a_stage_that_fails_fails_the_job_at_its_end(
    failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other stages still run, and the failed stage's exit status is printed."""
    ran = staged(monkeypatch, {failing: 3})
    text, status = run([], tmp_path, "quick", False)
    assert len(ran) == 3
    assert status == 1
    assert text.count("exit status 3") == 1


def test_a_bench_of_interpreted_kernels_fails_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that cannot be timed here can still be right; another stage with the same status is a failure."""
    staged(monkeypatch, {"bench": 5})
    text, status = run([], tmp_path, "quick", False)
    assert status == 0
    assert text.count("nothing was timed, for the reason above") == 1
    staged(monkeypatch, {"check": 5})
    assert run([], tmp_path, "quick", False)[1] == 1


def test_an_interrupt_goes_on_to_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After an interrupt the bench is left out, and the report has the results that exist."""
    ran = staged(monkeypatch, {"check": 2}, "check")
    text, status = run([], tmp_path, "quick", False)
    assert [name for name, _ in ran] == ["check", "report"]
    assert status == INTERRUPTED
    assert "interrupted" in text


def test_results_of_an_earlier_job_are_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results of the folder's last job are removed, even if a stage writes nothing."""
    (tmp_path / "bench.json").write_text("{}", encoding="utf-8")
    ran: list[str] = []

    def stage(name: str, words: Sequence[str]) -> Stage:
        ran.append(name)
        return Stage(name, 1, 1.0, 1.0)

    monkeypatch.setattr(suite, "_stage", stage)
    assert run([], tmp_path, "quick", False)[1] == 1
    assert ran == ["check", "bench"]


def test_a_bench_that_was_cut_off_is_begun_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last job's checkpoint is removed with its files: the bench refuses to write next to one."""
    checkpoint = tmp_path / "bench.json.checkpoint.jsonl"
    checkpoint.write_text("{}\n", encoding="utf-8")
    staged(monkeypatch, {})
    run([], tmp_path, "quick", False)
    assert not checkpoint.exists()


def waited(until: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether something becomes true."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if until():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow(15)
@pytest.mark.skipif(sys.platform == "win32", reason="a terminal's interrupt is POSIX")
def test_ctrl_c_leaves_a_report(tmp_path: Path) -> None:
    """An interrupt of the whole group, as from a terminal, leaves a report even while a case is being judged."""
    (tmp_path / "kernel.py").write_text(SLOW, encoding="utf-8")
    command = [sys.executable, "-m", "attention_conformance", "suite", "kernel.py:attention", "-o", "out"]
    results = tmp_path / "out" / "conformance.jsonl"
    with interruptible(command, tmp_path, start_new_session=True, stdout=subprocess.PIPE) as job:
        assert waited(lambda: results.is_file() and results.read_text(encoding="utf-8").count("\n") > 5)
        os.killpg(job.pid, signal.SIGINT)
        printed, _ = job.communicate(timeout=120)
    assert job.returncode == INTERRUPTED, printed
    assert (tmp_path / "out" / "report.html").is_file(), printed
    assert "interrupted" in printed.splitlines()[-3]
