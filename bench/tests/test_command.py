"""``pytest bench`` as a user runs it: in its own process, on a plug-in of a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance import bench
from attention_conformance.bench.tests.times_alone import TIMES_ALONE
from attention_conformance.impls.tests import commands

pytestmark = pytest.mark.slow(30)

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

def layer(x_q, w_q, w_k, w_v, *, heads, w_o, b_q, b_k, b_v, b_o=None):
    b, s, e = x_q.shape
    split = lambda x: x.reshape(b, s, heads, e // heads).swapaxes(1, 2)
    y = attention(split(x_q @ w_q + b_q), split(x_q @ w_k + b_k), split(x_q @ w_v + b_v))
    return y.swapaxes(1, 2).reshape(b, s, e) @ w_o

def wrong_layer(x_q, w_q, w_k, w_v, *, heads, w_o=None, b_q=None, b_k=None, b_v=None, b_o=None):
    return layer(x_q, w_q, w_k, w_v, heads=heads, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v)

def wrong_sublayer(x_q, w_q, w_k, w_v, *, heads, gamma, beta, epsilon, w_o=None, b_q=None, b_k=None, b_v=None, b_o=0):
    z = layer(x_q, w_q, w_k, w_v, heads=heads, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v) + b_o
    z = z - z.mean(-1, keepdims=True)
    return z / np.sqrt((z * z).mean(-1, keepdims=True) + np.float32(epsilon)) * gamma + beta

def wrong_gradients(q, k, v, grad_output):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    d = grad_output @ v.swapaxes(-1, -2)
    d = p * (d - (p * d).sum(-1, keepdims=True))
    return d @ k, d.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ grad_output

def half(q, k, v):
    return attention(q, k, v).astype(q.dtype)

half.dtypes = ("float16",)
wrong_layer.operator, wrong_sublayer.operator, wrong_gradients.operator = "mha", "sublayer", "sdpa_grad"
"""


def run(folder: Path, *options: str, first: str = TIMES_ALONE) -> subprocess.CompletedProcess[str]:
    """Run the bench in a folder that has the plug-in, with one short workload unless the options name others."""
    (folder / "mine.py").write_text(PLUG_IN)
    short = () if {"--workload", "--preset"} & {*options} else ("--workload", "prefill-b1h2d8s16")
    command = [sys.executable, "-m", "pytest", str(ROOM), "-p", "no:cacheprovider", "--bench-seconds", "0.01"]
    return commands.run(
        [*command, *short, "--benchmark-json", "out.json", *options], cwd=folder, timeout=600, first=first
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    """A run with a right and a wrong implementation, and its JSON document."""
    folder = tmp_path_factory.mktemp("both")
    done = run(folder, "--impl", "mine.py:attention", "--impl", "mine.py:unscaled")
    return done, json.loads((folder / "out.json").read_text())


def test_a_wrong_implementation_fails_the_run(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The exit status is 1, and the invalid cell is named with its clause."""
    done, _ = both
    assert done.returncode == 1, done.stdout + done.stderr
    assert "invalid: mine.py:unscaled cpu float32 prefill-b1h2d8s16: SDPA-25" in done.stdout
    assert "1 timed, 1 invalid, 0 skipped" in done.stdout


def test_a_wrong_implementation_has_no_timing(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The JSON has statistics of only the right one, and the outcome of both."""
    _, written = both
    assert [b["extra_info"]["implementation"] for b in written["benchmarks"]] == ["mine.py:attention"]
    cells = written["attention_conformance"]["cells"]
    assert [(c["implementation"], c["outcome"], c["clause"]) for c in cells] == [
        ("mine.py:attention", "timed", ""),
        ("mine.py:unscaled", "invalid", "SDPA-25"),
    ]


def test_the_json_says_what_was_timed(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """A record has the workload's shape, operations and group, and the raw samples."""
    _, written = both
    record = written["benchmarks"][0]
    info = record["extra_info"]
    assert record["group"] == info["workload"] == "prefill-b1h2d8s16"
    assert record["params"] == {"cell": "mine.py:attention-cpu-float32-prefill-b1h2d8s16"}
    assert (info["B"], info["H"], info["S"], info["D"], info["dtype"]) == (1, 2, 16, 8, "float32")
    assert info["flops"] == 2 * 2 * 16 * 16 * 16
    assert info["gflops"] == info["flops"] / record["stats"]["median"] / 1e9
    assert len(record["stats"]["data"]) == record["stats"]["rounds"] >= 5
    assert (info["operator"], info["Hkv"], info["Sk"], info["Dv"]) == ("sdpa", 2, 16, 8)
    assert info["formula"] == written["attention_conformance"]["flops"]["sdpa"] == "2·B·H·pairs·(D + Dv)"
    assert info["tokens_per_second"] == 16 / record["stats"]["median"]
    assert info["share"] <= 1
    assert "numpy" in info["versions"]


def test_the_json_says_what_the_timing_depends_on(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The machine information has the cores in use, thread settings and library versions."""
    _, written = both
    machine = written["machine_info"]
    assert machine["usable_cores"] >= 1
    assert "OMP_NUM_THREADS" in machine["threads"]
    assert "numpy" in machine["libraries"]


def test_the_caches_are_warm_unless_asked_otherwise(both: tuple[subprocess.CompletedProcess[str], dict]) -> None:
    """The table's head and the JSON say so; nothing is copied before a call, and the host's clock is used."""
    done, written = both
    assert "\ncaches warm: the inputs rotate among three sets" in done.stdout
    assert written["attention_conformance"]["plan"]["cache"] == "warm"
    info = written["benchmarks"][0]["extra_info"]
    assert (info["clock"], info["host_seconds"], info["evicted_bytes"]) == ("wall", None, 0)
    assert written["attention_conformance"]["gpu_state"] == {}


def test_cold_caches_are_said_wherever_the_times_are(tmp_path: Path) -> None:
    """The bytes that were copied before every call, twice the last cache, are recorded too."""
    options = ("--workload", "prefill-b1h2d8s256", "--process-runs", "1", "--no-memory", "--cache", "cold")
    done = run(tmp_path, "--impl", "mine.py:attention", *options, "--bench-seconds", "0.2")  # enough if it is busy
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\ncaches cold: before every call a buffer of twice the last cache was copied" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["attention_conformance"]["plan"]["cache"] == "cold"
    assert written["benchmarks"][0]["extra_info"]["evicted_bytes"] >= 2**20


def test_what_is_unsupported_is_skipped_and_a_run_without_timing_fails(tmp_path: Path) -> None:
    """An implementation without ``is_causal`` is not timed on a causal workload; a run that times nothing fails."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--workload", "prefill-b1h2d8s16-causal")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 timed, 0 invalid, 1 skipped" in done.stdout
    assert "FAILED: nothing was timed\n  1 skipped: unsupported: no keyword is_causal" in done.stdout


def test_a_run_of_interpreted_kernels_alone_has_a_status_of_its_own(tmp_path: Path) -> None:
    """Nothing can be timed where there is no device for them, which is reported and is not a failure."""
    done = run(tmp_path, "--impl", "mine.py:attention@pallas", "--workload", "prefill-b1h2d8s16", "--no-memory")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    assert "\nnothing was timed\n  1 skipped: not timed: its kernels are interpreted" in done.stdout
    assert "FAILED" not in done.stdout


def test_workloads_of_other_operators_are_refused(tmp_path: Path) -> None:
    """There is nothing to run if no selected implementation has the operator of a workload."""
    done = run(tmp_path, "--impl", "numpy-layer")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "the workloads are of sdpa, and the selected implementations of mha" in done.stdout + done.stderr


def test_an_implementation_is_given_the_workloads_of_its_operator(tmp_path: Path) -> None:
    """Two implementations each run their own of three workloads."""
    names = ("prefill-b1h2d8s16", "mha-b1h2d8s16", "sublayer-b1h2d8s16")
    given = [text for name in names for text in ("--workload", name)]
    done = run(tmp_path, "--impl", "mine.py:attention", "--impl", "numpy-layer", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    benchmarks = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert [(b["extra_info"]["implementation"], b["extra_info"]["workload"]) for b in benchmarks] == [
        ("mine.py:attention", names[0]),
        ("numpy-layer", names[1]),
    ]


def test_a_wrong_implementation_of_any_operator_is_invalid(tmp_path: Path) -> None:
    """A layer without a bias, a sub-layer without its residual, and gradients without the scale are not timed."""
    wrong = {
        "wrong_layer": ("mha-b1h2d8s16", "MHA-18"),
        "wrong_sublayer": ("sublayer-b1h2d8s16", "SUB-9"),
        "wrong_gradients": ("prefill-b1h2d8s16-grad", "GRAD-9"),
    }
    given = [
        text for name, (workload, _) in wrong.items() for text in ("--impl", f"mine.py:{name}", "--workload", workload)
    ]
    done = run(tmp_path, *given)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 timed, 3 invalid, 0 skipped" in done.stdout
    for name, (workload, clause) in wrong.items():
        assert f"invalid: mine.py:{name} cpu float32 {workload}: {clause}" in done.stdout


def test_a_preset_is_a_set_of_workloads(tmp_path: Path) -> None:
    """The workloads of the implementation's operator are run."""
    options = ("--impl", "numpy-sublayer", "--preset", "quick", "--workload", "sublayer-b1h2d8s16")
    done = run(tmp_path, *options, "--bench-seconds", "2")  # with less, a busy machine skips one
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 timed, 0 invalid, 0 skipped" in done.stdout


def test_an_unknown_preset_is_a_usage_error(tmp_path: Path) -> None:
    """A misspelt preset ends the run at once."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--preset", "quik")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "did you mean quick" in done.stderr + done.stdout


def test_an_unknown_workload_is_a_usage_error(tmp_path: Path) -> None:
    """A misspelt name ends the run at once, with the nearest names."""
    done = run(tmp_path, "--impl", "mine.py:attention", "--workload", "prefil-b1h8d64s128")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "did you mean" in done.stderr + done.stdout


def test_a_run_that_times_nothing_leaves_no_checkpoint(tmp_path: Path) -> None:
    """All is known, so the next run, of a fixed function, need not choose to resume or to delete."""
    done = run(tmp_path, "--impl", "mine.py:unscaled")
    assert done.returncode == 1
    assert "FAILED: nothing was timed" in done.stdout
    assert "not complete" not in done.stdout
    assert not list(tmp_path.glob("*checkpoint*"))


def test_a_function_of_half_precision_is_timed_in_it(tmp_path: Path) -> None:
    """Without ``--dtype`` a function is timed in the first dtype that it takes."""
    done = run(tmp_path, "--impl", "mine.py:half")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mine.py:half-cpu-float16-prefill-b1h2d8s16" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--dtype", "float32"), "mine.py:half does not take float32, but --dtype float16"),
        (("--device", "cuda"), "mine.py:half is not on cuda, but on cpu"),
    ],
)
def test_a_run_with_nothing_to_time_says_why(tmp_path: Path, words: tuple[str, str], reason: str) -> None:
    """The status is pytest's for "no tests", and the reason names what would be timed."""
    done = run(tmp_path, "--impl", "mine.py:half", *words)
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"nothing was timed: {reason}" in done.stdout
