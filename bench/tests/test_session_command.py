"""``pytest bench`` as a session: process runs, a stop rule, what a killed run leaves, and what is recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attention_conformance import bench
from attention_conformance.bench.tests.times_alone import TIMES_ALONE
from attention_conformance.bench.timing.checkpoint import SUFFIX
from attention_conformance.conformance.tests.interrupts import interruptible
from attention_conformance.impls.tests import commands

pytestmark = pytest.mark.slow(60)

ROOM = Path(bench.__file__).parent

PLUG_IN = """
import os, time
import numpy as np

def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v

def slow(q, k, v):
    time.sleep(0.004)
    return attention(q, k, v)

def wrong(q, k, v):
    return attention(q, k, v) + np.float32(0.01)

def dies(q, k, v, calls=[]):
    calls.append(1)
    if len(calls) > 8:
        os.abort()
    return attention(q, k, v)
"""

#: Two short workloads.
NAMES = ("prefill-b1h2d8s16", "prefill-b1h2d8s32")


def command(folder: Path, *options: str, plug_in: str = PLUG_IN) -> list[str]:
    """The command line of a short run in a folder with the plug-in."""
    (folder / "mine.py").write_text(plug_in)
    short = () if "--workload" in options else [text for name in NAMES for text in ("--workload", name)]
    start = [sys.executable, "-m", "pytest", str(ROOM), "-p", "no:cacheprovider", "--benchmark-json", "out.json"]
    return [*start, *short, *options]


def run(
    folder: Path, *options: str, first: str = TIMES_ALONE, plug_in: str = PLUG_IN
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    done = command(folder, "--bench-seconds", "0.01", *options, plug_in=plug_in)
    return commands.run(done, cwd=folder, timeout=600, first=first)


def written(folder: Path) -> dict[str, Any]:
    """The JSON of a run."""
    document: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return document


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """A run of two plug-ins in three process runs, and its JSON."""
    folder = tmp_path_factory.mktemp("three")
    options = (
        "--impl",
        "mine.py:attention",
        "--impl",
        "mine.py:slow",
        "--threads",
        "1",
        "--noise",
        "0.5",
        "--process-runs",
        "3",
    )
    done = run(folder, *options, first="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / f"out.json{SUFFIX}").exists()
    return done, written(folder)


def test_every_cell_has_three_process_runs_of_batches(three: tuple[Any, dict]) -> None:
    """The sizes of the batches add up to the raw samples, and the interval lies around their median."""
    for record in three[1]["benchmarks"]:
        info, stats = record["extra_info"], record["stats"]
        assert len(info["process_runs"]) == 3
        assert sum(map(sum, info["process_runs"])) == len(stats["data"])
        assert info["interval"][0] <= stats["median"] <= info["interval"][1]
        assert info["stopped"] in ("noise target", "time budget", "call limit")


def test_a_call_that_is_longer_than_a_batch_is_made_as_often_as_has_to_be(three: tuple[Any, dict]) -> None:
    """Three batches of one call in each of three process runs are the least for nine calls."""
    slow = [b for b in three[1]["benchmarks"] if b["extra_info"]["implementation"] == "mine.py:slow"]
    assert [b["extra_info"]["process_runs"] for b in slow] == [[[1, 1, 1]] * 3] * 2


def test_the_run_is_described(three: tuple[Any, dict]) -> None:
    """Recorded are plan, command, times, threads, how idle waiting processes were, and the cost of measuring."""
    ours = three[1]["attention_conformance"]
    assert ours["format"] == 4
    assert ours["command"].startswith("pytest ")
    assert "--noise 0.5" in ours["command"]
    assert ours["started"] <= ours["finished"]
    assert (ours["plan"]["process_runs"], ours["plan"]["seconds"], ours["plan"]["noise"]) == (3, 0.01, 0.5)
    assert ours["fingerprint"]["id"]
    assert ours["fingerprint"]["in_force"] == {"mine.py:attention": 1, "mine.py:slow": 1}
    assert three[1]["benchmarks"][0]["extra_info"]["threads"] == 1
    assert ours["overhead"]["ratio"] > 0
    assert ours["overhead"]["call_seconds"] > 0


def test_a_run_has_the_limits_of_its_machine(three: tuple[Any, dict]) -> None:
    """Peak and bandwidth of float32 are recorded, the share of them that each cell reaches, and its memory."""
    (roofline,) = three[1]["attention_conformance"]["peaks"]
    assert (roofline["dtype"], roofline["flops_by"], roofline["bytes_by"]) == ("float32", "numpy", "numpy")
    for record in three[1]["benchmarks"]:
        info = record["extra_info"]
        assert info["share_of_peak"] == pytest.approx(info["gflops"] * 1e9 / roofline["flops_per_second"])
        assert info["bound_by"] in ("compute", "bandwidth")
        assert info["memory_bytes"] is None or info["memory_method"] == "resident set"


def test_the_run_ends_with_a_table(three: tuple[Any, dict]) -> None:
    """Each workload is listed with its implementations, within a hundred columns."""
    lines = three[0].stdout.splitlines()
    start = lines.index("prefill-b1h2d8s16 cpu float32")
    assert [line.split()[0] for line in lines[start + 1 : start + 3]] == ["mine.py:attention", "mine.py:slow"]
    assert all(len(line) <= 100 for line in lines[start : start + 6])


def test_waiting_processes_are_idle(three: tuple[Any, dict]) -> None:
    """They take less than a hundredth of a core while others work."""
    idle = three[1]["attention_conformance"]["idle"]
    assert set(idle) == {"mine.py:attention", "mine.py:slow"}
    assert all(share < 0.01 for share in idle.values())


def test_a_worker_that_dies_takes_only_its_own_cell_with_it(tmp_path: Path) -> None:
    """The worker's other cells are opened again, and are complete."""
    done = run(tmp_path, "--impl", "mine.py:dies", "--impl", "mine.py:attention", "--process-runs", "1")
    assert done.returncode == 1
    assert "2 timed, 2 invalid, 0 skipped" in done.stdout
    assert "mine.py:dies cpu float32 prefill-b1h2d8s16: crashed: the process was killed by SIGABRT" in done.stdout


def test_only_the_selected_cells_are_measured(tmp_path: Path) -> None:
    """``-k`` leaves the other cells out of the session, not only out of the table."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--process-runs", "1", "-k", "s32")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [cell["workload"] for cell in written(tmp_path)["attention_conformance"]["cells"]] == [NAMES[1]]


def end(folder: Path, by: signal.Signals, *options: str) -> str:
    """The output of a run that gets a signal when some process runs are in its checkpoint."""
    log, checkpoint = folder / "log", folder / f"out.json{SUFFIX}"
    with log.open("w") as said, interruptible(command(folder, *options), folder, stdout=said, stderr=said) as started:
        deadline = time.monotonic() + 120
        while not (checkpoint.exists() and checkpoint.read_text().count("\n") >= 4):
            assert time.monotonic() < deadline, log.read_text()
            assert started.poll() is None, log.read_text()
            time.sleep(0.02)
        started.send_signal(by)
        started.wait(60)
    return log.read_text()


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C keeps the checkpoint, and names it."""
    said = end(tmp_path, signal.SIGINT, "--impl", "mine.py:slow", "--impl", "mine.py:attention", "--bench-seconds", "9")
    assert f"not complete: --resume continues from out.json{SUFFIX}" in said


def test_a_killed_run_is_resumed_and_keeps_what_it_measured(tmp_path: Path) -> None:
    """After SIGKILL and --resume the JSON is complete, with the same samples; then the checkpoint is removed."""
    options = ("--impl", "mine.py:slow", "--impl", "mine.py:attention", "--bench-seconds", "1", "--noise", "0")
    checkpoint = tmp_path / f"out.json{SUFFIX}"
    end(tmp_path, signal.SIGKILL, *options)
    kept = [json.loads(line) for line in checkpoint.read_text().splitlines(keepends=True)[1:] if line.endswith("\n")]
    assert not (tmp_path / "out.json").exists()

    again = run(tmp_path, *options)
    assert again.returncode == pytest.ExitCode.USAGE_ERROR
    assert "continue with --resume, or delete it" in again.stdout + again.stderr
    other = run(tmp_path, *options, "--resume", "--process-runs", "2")
    assert other.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is of another run: plan differs" in other.stdout + other.stderr
    cold = run(tmp_path, *options, "--resume", "--cache", "cold")
    assert cold.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is of another run: plan differs" in cold.stdout + cold.stderr

    done = run(tmp_path, *options, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not checkpoint.exists()
    kept_json = (tmp_path / "out.json").read_bytes()
    finished = run(tmp_path, *options, "--resume")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "out.json is finished: nothing is left to resume" in finished.stdout + finished.stderr
    assert (tmp_path / "out.json").read_bytes() == kept_json
    longer = run(tmp_path, *options, "--resume", "--process-runs", "2")
    assert longer.returncode == pytest.ExitCode.USAGE_ERROR
    assert "nothing to resume" in longer.stdout + longer.stderr
    by_name = {
        b["extra_info"]["implementation"] + b["extra_info"]["workload"]: b for b in written(tmp_path)["benchmarks"]
    }
    assert len(by_name) == 4
    for line in kept:
        name, workload = line["cell"].split("-cpu-float32-")
        record = by_name[name + workload]
        begin = sum(map(sum, record["extra_info"]["process_runs"][: line["process_run"]]))
        samples = [value for batch in line["measured"]["batches"] for value in batch]
        assert record["stats"]["data"][begin : begin + len(samples)] == samples
    assert all(len(record["extra_info"]["process_runs"]) == 5 for record in by_name.values())


def test_a_finished_run_that_failed_is_not_green_when_it_is_resumed(tmp_path: Path) -> None:
    """Nothing is left to run, but an invalid cell is still invalid."""
    options = ("--impl", "mine.py:attention", "--impl", "mine.py:wrong", "--process-runs", "1", "--no-memory")
    first = run(tmp_path, *options)
    assert first.returncode == pytest.ExitCode.TESTS_FAILED, first.stdout + first.stderr
    again = run(tmp_path, *options, "--resume")
    assert again.returncode == pytest.ExitCode.TESTS_FAILED
    assert "out.json is finished: nothing is left to resume, 2 invalid" in again.stdout + again.stderr


def test_a_run_that_writes_no_json_keeps_its_checkpoint(tmp_path: Path) -> None:
    """Pytest-benchmark writes no JSON when it is disabled; the measurements are kept, and --resume writes them."""
    options = ("--impl", "mine.py:attention", "--process-runs", "1", "--no-memory")
    disabled = run(tmp_path, *options, "--benchmark-disable")
    assert disabled.returncode == 0, disabled.stdout + disabled.stderr
    assert f"not complete: --resume continues from out.json{SUFFIX}" in disabled.stdout
    again = run(tmp_path, *options, "--resume", plug_in=PLUG_IN + "# another version")
    assert again.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is of another run: code differs" in again.stdout + again.stderr
    done = run(tmp_path, *options, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / f"out.json{SUFFIX}").exists()
    assert len(written(tmp_path)["benchmarks"]) == 2


def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    """Stopped workers, as all but one are, end with it too."""
    with subprocess.Popen(
        command(tmp_path, "--impl", "mine.py:slow", "--impl", "mine.py:attention", "--bench-seconds", "9"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    ) as started:
        deadline = time.monotonic() + 120
        while len(workers(started.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        left = workers(started.pid)
        started.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers(parent: int) -> list[str]:
    """The worker processes of a run."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not tell")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found += [folder.name] if "process/worker.py" in (folder / "cmdline").read_text() else []
        except OSError:  # it ended
            continue
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--process-runs", "0"), "--process-runs 0: expected 1 or more"),
        (("--noise", "-1"), "--noise -1: expected 0 or more"),
        (("--threads", "1000"), "--threads 1000: expected 1 to"),
        (("--cache", "tepid"), "--cache: invalid choice: 'tepid'"),
        (("--resume",), "nothing to resume"),
        (("-n", "2"), "bench times one call at a time: leave out -n"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """The run ends before anything is measured."""
    done = run(tmp_path, "--impl", "mine.py:attention", *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in done.stdout + done.stderr
