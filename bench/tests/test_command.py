"""``pytest bench`` as a user runs it: in a process of its own, on a plug-in of a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bench

ROOM = Path(bench.__file__).parent

PLUG_IN = """
import numpy as np

def attention(q, k, v, *, scale=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v

def unscaled(q, k, v):
    s = q @ k.swapaxes(-1, -2)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the bench in a folder that has the plug-in, one short workload unless the options name others."""
    (folder / "mine.py").write_text(PLUG_IN)
    short = () if "--workload" in options else ("--workload", "prefill-b1h2d8s16")
    command = [sys.executable, "-m", "pytest", str(ROOM), "-p", "no:cacheprovider", "--bench-seconds", "0.01"]
    return subprocess.run(  # noqa: S603  (our own command)
        [*command, *short, "--benchmark-json", "out.json", *options], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """A run with a right and a wrong implementation, and its JSON."""
    folder = tmp_path_factory.mktemp("both")
    done = run(folder, "--impl", "mine.py:attention", "--impl", "mine.py:unscaled")
    return done, json.loads((folder / "out.json").read_text())


def test_a_wrong_implementation_fails_the_run(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The exit status is 1, and the struck-out cell is named with its clause."""
    done, _ = both
    assert done.returncode == 1, done.stdout + done.stderr
    assert "struck out: mine.py:unscaled cpu float32 prefill-b1h2d8s16: SDPA-25" in done.stdout
    assert "1 timed, 1 struck out, 0 not timed" in done.stdout


def test_a_wrong_implementation_has_no_timing(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The JSON has statistics of the right one alone, and the outcome of both."""
    _, written = both
    assert [b["extra_info"]["implementation"] for b in written["benchmarks"]] == ["mine.py:attention"]
    cells = written["attention_conformance"]["cells"]
    assert [(c["implementation"], c["outcome"], c["clause"]) for c in cells] == [
        ("mine.py:attention", "timed", ""),
        ("mine.py:unscaled", "struck out", "SDPA-25"),
    ]


def test_the_json_says_what_was_timed(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """A record has the shape, the operations, the raw samples and the group of its workload."""
    _, written = both
    record = written["benchmarks"][0]
    info = record["extra_info"]
    assert record["group"] == info["workload"] == "prefill-b1h2d8s16"
    assert (info["B"], info["H"], info["S"], info["D"], info["dtype"]) == (1, 2, 16, 8, "float32")
    assert info["flops"] == 2 * 2 * 16 * 16 * 16
    assert info["gflops"] == info["flops"] / record["stats"]["median"] / 1e9
    assert len(record["stats"]["data"]) == record["stats"]["rounds"] >= 5
    assert info["share"] <= 1
    assert "numpy" in info["versions"]


def test_the_json_says_what_the_timing_depends_on(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """Machine information has cores in use, thread settings and library versions."""
    _, written = both
    machine = written["machine_info"]
    assert machine["usable_cores"] >= 1
    assert "OMP_NUM_THREADS" in machine["threads"]
    assert "numpy" in machine["libraries"]


def test_what_is_unsupported_is_skipped_and_a_run_without_timing_fails(tmp_path: Path) -> None:
    """An implementation without ``is_causal`` is not timed on a causal workload; nothing timed is not success."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--workload", "prefill-b1h2d8s16-causal")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 timed, 0 struck out, 1 not timed" in done.stdout
    assert "nothing was timed" in done.stdout


def test_layers_have_no_workloads(tmp_path: Path) -> None:
    """A selection of other operators alone is refused, as no cell is made of them."""
    done = run(tmp_path, "--impl", "numpy-layer")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "every workload is one of sdpa" in done.stdout + done.stderr


def test_an_unknown_workload_is_a_usage_error(tmp_path: Path) -> None:
    """A misspelt name ends the run at once, with the nearest names."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--workload", "prefil-b1h8d64s128")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "did you mean" in done.stderr + done.stdout
