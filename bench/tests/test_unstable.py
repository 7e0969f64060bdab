"""A result that is wrong in some of several equal calls: bench, paired comparison and gate report the number."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attention_conformance.bench.paired.command import broken
from attention_conformance.bench.paired.measure import NEW, Result
from attention_conformance.bench.tests.test_gate import decided
from attention_conformance.bench.tests.test_paired import ARGUMENTS
from attention_conformance.bench.tests.test_paired_measure import TASK, add
from attention_conformance.bench.tests.test_paired_revisions import git
from attention_conformance.bench.tests.test_session_command import run
from attention_conformance.bench.validity.checks import Unstable
from attention_conformance.cli import main

pytestmark = pytest.mark.slow(40)

#: A line of the bench's output: outcome, function, reason.
LINE = re.compile(r"^(unstable|invalid): near\.py:(\w+) .*?SDPA-25: (.*)$", re.MULTILINE)

#: Right attention, except in a process's first call, in one call in five, or in every call.
KERNELS = """
import numpy as np

calls = 0


def near(q, k, v):
    global calls
    calls += 1
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def first(q, k, v):
    return near(q, k, v) + np.float32(0.01 * (calls == 1))


def fifth(q, k, v):
    return near(q, k, v) + np.float32(0.01 * (calls % 5 == 1))


def always(q, k, v):
    return near(q, k, v) + np.float32(0.01)
"""


def test_the_bench_says_of_how_many_calls_it_is_true(tmp_path: Path) -> None:
    """If only the first of six calls is wrong, it is timed separately; if two or all are, there are no times."""
    (tmp_path / "near.py").write_text(KERNELS)
    names = ("first", "fifth", "always")
    file = tmp_path / "times.json"
    given = ("--dtype", "float32", f"--benchmark-json={file}")
    done = run(tmp_path, *(part for name in names for part in ("--impl", f"near.py:{name}")), *given)
    assert done.returncode == 1
    said = {name: text for _, name, text in LINE.findall(done.stdout)}
    assert re.match(r"[\d.]+ ms \(.* to .*\) apart: 1 of 6 calls on the same inputs are", said["first"])
    assert said["first"].endswith("process runs")
    assert said["fifth"].startswith("unstable: 2 of 6 calls on the same inputs are")
    assert "unstable" not in said["always"]
    written = json.loads(file.read_text())
    cells = [one for one in written["attention_conformance"]["cells"] if one["outcome"] == "unstable"]
    assert [one["implementation"] for one in cells] == ["near.py:first"]  # the first workload: later ones are right
    assert cells[0]["calls"] >= 9
    ranked = {(one["extra_info"]["implementation"], one["extra_info"]["workload"]) for one in written["benchmarks"]}
    assert (cells[0]["implementation"], cells[0]["workload"]) not in ranked
    assert main(["report", str(file), "-o", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert "1 unstable" in page
    assert "ms apart: 1 of 6 calls" in page


@pytest.mark.parametrize("name", ["first", "always"])
def test_a_paired_comparison_calls_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If only new's first call is wrong, times are shown apart, without a verdict; no known cause means failure."""
    git(tmp_path, "init", "--quiet")
    path = tmp_path / "kernel.py"
    path.write_text(f"{KERNELS}\nattention = near\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "right")
    path.write_text(f"{KERNELS}\nattention = {name}\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "paired.json"
    assert main([*ARGUMENTS, "--json", str(file)]) == 1
    said = capsys.readouterr().out
    (cell,) = json.loads(file.read_text())["cells"]
    if name == "first":
        assert re.search(r"^unstable: .*SDPA-25: new: new ÷ base .* apart: 1 of 6 calls .*in 3 of 3 pairs", said, re.M)
        assert (cell["outcome"], cell["verdict"], cell["worker"]) == ("unstable", None, "new")
        assert cell["rounds"]
    else:
        assert (cell["outcome"], cell["rounds"]) == ("invalid", None)


def test_a_known_cause_in_one_pair_is_no_change() -> None:
    """It is a change in two pairs, or without a known cause."""
    found = {known: Unstable("SDPA-25", "1 of 6 calls", 0.1, known) for known in (True, False)}
    for known, pairs, excused in ((True, 1, True), (True, 2, False), (False, 1, False)):
        result = Result(TASK)
        add(result, [1.0] * 3)
        result.wrong_once = [(NEW, pair, found[known]) for pair in range(pairs)]
        result.end()
        assert (result.outcome, result.verdict(), broken(result)) == ("unstable", None, not excused)


GATED = """
import torch

calls = 0


def attention(q, k, v):
    global calls
    calls += 1
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v + 10.0 * (WRONG)
"""


@pytest.mark.parametrize(
    ("wrong", "verdict", "kind", "text"),
    [
        ("calls == 1", "cannot tell", "unstable", "1 of 6 calls on the same inputs are wrong"),
        ("calls in (1, 3)", "rejected", "value", "unstable: 2 of 6 calls on the same inputs are wrong"),
        ("calls == 9", "rejected", "value", "unstable: 1 of 6 calls on the same inputs are wrong"),
        ("1", "rejected", "value", ""),
    ],
)
def test_the_gate_calls_again(wrong: str, verdict: str, kind: str, text: str, tmp_path: Path) -> None:
    """If only torch's first call is wrong, the cause is known: no rejection, but no acceptance either."""
    pytest.importorskip("torch")
    code = GATED.replace("WRONG", wrong)
    found, _ = decided(tmp_path, code, candidate=f"{tmp_path}/candidate.py:attention@torch")
    assert found.verdict == verdict
    assert found.reasons[0].kind == kind
    assert found.reasons[0].text.startswith(text)
    assert ("pytorch 188792" in found.reasons[0].text) == (kind == "unstable" or "(1, 3)" in wrong)
    assert ("on the same inputs" in found.reasons[0].text) == bool(text)
