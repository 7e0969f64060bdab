"""A paired comparison of two revisions of a user's kernel, as the user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.paired.measure import PairedComparison, Plan, Result, Task
from attention_conformance.bench.paired.revisions import ready
from attention_conformance.bench.tests.test_paired_revisions import git
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.cli import main

pytestmark = pytest.mark.slow(20)

RIGHT = """
import numpy as np

def attention(q, k, v, *, scale=None):
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
"""
TWICE = RIGHT.replace("    p = np", "    p = np.exp(s); p = np.exp(s); p = np.exp(s); p = np.exp(s)\n    p = np")
WRONG = RIGHT.replace("q.shape[-1] ** -0.5", "1.0")
CRASHES = RIGHT.replace("    p = np", "    import os; os.abort()\n    p = np")
REMEMBERS = RIGHT.replace(
    "    s = q", "    key = q[0, 0, 0].tobytes()\n    if key in KEPT:\n        return KEPT[key]\n    s = q"
)
REMEMBERS = "KEPT = {}\n" + REMEMBERS.replace(
    "    return p / p.sum(-1, keepdims=True) @ v",
    "    KEPT[key] = p / p.sum(-1, keepdims=True) @ v\n    return KEPT[key]",
)
#: REMEMBERS, but it returns zeros as fast for the first new inputs after the three input sets.
QUICK_ONCE = "import time\n" + REMEMBERS.replace(
    "    key = ",
    """    started, key = time.perf_counter(), q[0, 0, 0].tobytes()
    if len(KEPT) == 3 and key not in KEPT:
        KEPT[key] = np.zeros_like(v)
    while key in KEPT and time.perf_counter() < started + 3e-5:
        pass
    key = """,
)
#: Slow on arrays in no cache, like calls that do little more than read; it tracks when the caches are cleared.
READS = """
import time
from attention_conformance.bench.sampling import sampler

NEAR = []
sampler.buffer = lambda *where: NEAR.clear
""" + RIGHT.replace(
    "    s = q",
    "    key = q[0, 0, 0, 0]\n    if key not in NEAR:\n        time.sleep(0.02)\n        NEAR.append(key)\n    s = q",
)
#: Sets the stopwatch's clock back by the time of a call, until the next reading.
HIDES = RIGHT.replace("    s = q", "    real, started = stopwatch.perf_counter, stopwatch.perf_counter()\n    s = q")
HIDES = "from attention_conformance.bench.sampling import stopwatch\n" + HIDES.replace(
    "    return p / p.sum(-1, keepdims=True) @ v",
    """    output = p / p.sum(-1, keepdims=True) @ v
    while real() < started + 0.0005:
        pass
    hidden = real() - started - 1e-4

    def fake():
        stopwatch.perf_counter = real
        return real() - hidden
    stopwatch.perf_counter = fake
    return output""",
)
REPLACES = "import time\n" + RIGHT.replace("    s = q", "    time.perf_counter = lambda: 0.0\n    s = q")
LACKS = "def other(q, k, v):\n    return q\n"
REFUSES = RIGHT.replace("    p = np", "    raise NotImplementedError('no such kernel')\n    p = np")

WORKLOAD = "prefill-b1h2d16s128"
ARGUMENTS = [
    "compare-revisions",
    "--base",
    "HEAD",
    "--impl",
    "kernel.py:attention",
    "--workload",
    WORKLOAD,
    "--most-pairs",
    "3",
]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a committed, right kernel in the current folder."""
    git(tmp_path, "init", "--quiet")
    path = tmp_path / "kernel.py"
    path.write_text(RIGHT)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "right")
    monkeypatch.chdir(tmp_path)
    return path


def test_a_slower_kernel_is_called_slower(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that computes its exponentials four times more often is SLOWER, and the command exits with 1."""
    kernel.write_text(TWICE)
    assert main([*ARGUMENTS, "--json", "comparison.json", "--markdown", "comparison.md"]) == 1
    text = capsys.readouterr().out
    assert "SLOWER" in text
    assert Path("comparison.md").read_text().startswith("**Speed: 1 slower; 1 of 1 cells compared**")
    assert f"base HEAD at {git(kernel.parent, 'rev-parse', 'HEAD')[:10]}: ml_dtypes" in text
    (cell,) = json.loads(Path("comparison.json").read_text())["cells"]
    assert cell["verdict"] == "slower"
    assert len(cell["rounds"]["base"]) == len(cell["rounds"]["new"]) == 3


def test_one_pair_gives_no_verdict(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slower kernel is unclear after a single pair, which has no interval, and the reason is said."""
    kernel.write_text(TWICE)
    assert main([*ARGUMENTS, "--most-pairs", "1", "--json", "comparison.json"]) == 0
    text = capsys.readouterr().out
    assert "unknown      1  unclear" in text
    assert "1 unclear because fewer than 3 pairs do not show how much processes differ: --pairs 3 or more" in text
    (cell,) = json.loads(Path("comparison.json").read_text())["cells"]
    assert (cell["ratio"][1:], cell["verdict"]) == ([None, None], "unclear")


def test_a_kernel_of_half_precision_is_compared_in_it(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--dtype`` the first dtype that base or new has is timed, and the table's head names it."""
    half = RIGHT + "\nattention.dtypes = ('float16',)\n"
    kernel.write_text(half)
    git(kernel.parent, "commit", "--quiet", "-am", "half")
    assert main(ARGUMENTS) == 0
    text = capsys.readouterr().out
    assert "both in float16 on cpu" in text
    assert "0 not compared" in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WRONG, "invalid: prefill-b1h2d16s128 kernel.py:attention: SDPA-25: new: "),
        (
            CRASHES,
            "invalid: prefill-b1h2d16s128 kernel.py:attention: crashed: new: the process was killed by SIGABRT",
        ),
        (
            REMEMBERS,
            "invalid: prefill-b1h2d16s128 kernel.py:attention: cached result: new: it returns what it computed",
        ),
        (
            QUICK_ONCE,
            "invalid: prefill-b1h2d16s128 kernel.py:attention: cached result: new: it returns what it computed",
        ),
        (HIDES, "invalid: prefill-b1h2d16s128 kernel.py:attention: clock: new: its clock and ours disagree"),
        (REPLACES, "invalid: prefill-b1h2d16s128 kernel.py:attention: clock: new: the clock was changed: time.perf"),
        (REFUSES, "skipped: prefill-b1h2d16s128 kernel.py:attention: new: unsupported: no such kernel"),
    ],
)
def test_a_new_side_that_breaks_is_worse(
    kernel: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    """A new side that is wrong, crashes or refuses is worse however fast it is, and has no ratio."""
    kernel.write_text(text)
    assert main(ARGUMENTS) == 1
    assert reason in capsys.readouterr().out


def test_a_kernel_that_is_slow_from_cold_caches_remembers_nothing(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cold caches distinguish cached results from warm caches: a kernel as slow on known inputs then is not invalid."""
    kernel.write_text(READS)
    reading = "cross-b1h8d64s1k2048"  # 4 MiB of keys
    assert main([reading if given == WORKLOAD else given for given in ARGUMENTS]) != 2
    assert "cached result" not in capsys.readouterr().out


def test_a_comment_shows_names_as_they_are(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comment shows what breaks, with markup in a message escaped."""
    kernel.write_text(RIGHT.replace("    p = np", "    raise ValueError('<b>|')\n    p = np"))
    assert main([*ARGUMENTS, "--markdown", "comparison.md"]) == 1
    comment = Path("comparison.md").read_text()
    assert comment.startswith("**Speed: 1 broken; 0 of 1 cells compared**")
    assert "error: new: ValueError: &lt;b>\\|" in comment


def test_a_base_side_that_is_wrong_says_nothing(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell whose base is wrong cannot be compared: the command exits with 2."""
    kernel.write_text(WRONG)
    assert main([*ARGUMENTS[:1], "--base", ".", "--new", "HEAD", *ARGUMENTS[3:]]) == 2
    assert "SDPA-25: base: " in capsys.readouterr().out


def test_a_side_without_the_function_is_an_error(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A revision that lacks the function is named."""
    kernel.write_text(LACKS)
    assert main(ARGUMENTS) == 2
    assert "error: new .: " in capsys.readouterr().err


def test_a_python_without_the_suite_s_packages_is_an_error(
    kernel: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An environment in which the suite cannot run is named with what is missing."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'numpy'\" >&2; exit 1\n")
    python.chmod(0o755)
    assert main([*ARGUMENTS[:1], "--base", "./python", *ARGUMENTS[3:]]) == 2
    assert "cannot run the suite: ModuleNotFoundError: No module named 'numpy'" in capsys.readouterr().err


def compared(kernel: Path, plan: Plan, slowdown: float = 0.0) -> Result:
    """Compare one cell of the working tree with itself."""
    with ready(".", kernel.parent) as side:
        comparison = PairedComparison(side, side, plan)
        task = Task("kernel.py:attention", "cpu", "float32", parse(WORKLOAD), slowdown)
        (result,) = comparison.run(
            [task], comparison.offers(["kernel.py:attention"], "cpu", "float32"), lambda text: None
        )
    return result


def test_an_injected_slowdown_is_in_the_ratio(kernel: Path) -> None:
    """Twice the time gives about twice the ratio, in every fresh pair of processes."""
    result = compared(kernel, Plan(pairs=3, most_pairs=3, rounds=10), slowdown=1.0)
    assert [len(rounds) for rounds in result.rounds["base"]] == [10, 10, 10]
    assert result.ratio is not None
    assert 1.5 < result.ratio.value < 2.7
    assert result.verdict() is Verdict.SLOWER


def test_a_time_beyond_the_peak_is_invalid(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the machine is one that computes next to nothing."""
    monkeypatch.setattr(PairedComparison, "_peak", lambda *_: 1e3)
    result = compared(kernel, Plan(pairs=1, most_pairs=1, rounds=3))
    assert (result.outcome, result.clause, result.worker) == ("invalid", "peak", "base")


def test_a_cell_that_takes_too_long_is_skipped(kernel: Path) -> None:
    """Fewer than four rounds would prove nothing, so nothing is timed."""
    result = compared(kernel, Plan(limit=1e-6))
    assert result.outcome == "skipped"
    assert "over the time budget" in result.reason
