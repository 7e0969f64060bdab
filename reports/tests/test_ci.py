"""The recipes of CI.md and the workflow to call, run or read unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow(60)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "reports" / "CI.md"
WORKFLOW = ROOT / ".github" / "workflows" / "kernel.yml"

KERNEL = """
import numpy as np


def attention(q, k, v, *, is_causal=False):
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).astype(q.dtype)


attention.dtypes = ("float32",)
"""
#: The workload of the script, which the user chooses, and a shorter one with the fewest pairs.
WORKLOAD, FEWER = "'prefill-b1h8d64s512*'", "'prefill-b1h8d64s128*' --most-pairs 6"

#: Sees one key ahead.
WRONG = KERNEL.replace("dtype=bool)", "k=1, dtype=bool)")


def blocks(language: str) -> list[str]:
    """The blocks of code of a language on the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this checkout's suite and interpreter, in a folder without configuration."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    names = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "PATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The script of the page, run on a kernel that was right in the base and is wrong now."""
    folder = tmp_path_factory.mktemp("repository")
    (script,) = blocks("bash")
    script = script.replace(WORKLOAD, FEWER)
    assert FEWER in script
    for name, text in (("kernels.py", KERNEL), ("attention-check.sh", script), (".gitignore", "results\n")):
        (folder / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "right"]):
        done = call(folder, "git", *command)
        assert done.returncode == 0, done.stderr
    (folder / "kernels.py").write_text(WRONG)
    return call(folder, "bash", "attention-check.sh", "HEAD", "kernels.py:attention"), folder


def test_the_script_ends_with_1_where_the_kernel_broke(judged: tuple[Any, Path]) -> None:
    """A mistake that the base did not have is a failed job."""
    assert judged[0].returncode == 1


def test_the_comment_says_what_broke(judged: tuple[Any, Path]) -> None:
    """It names the failed cases that the base passed, and the cell that is no longer timed."""
    comment = (judged[1] / "results" / "comment.md").read_text(encoding="utf-8")
    assert "causal" in comment
    assert "**Speed: 1 broken" in comment
    assert "SDPA-25: new: " in comment


def test_the_script_leaves_report_and_badge(judged: tuple[Any, Path]) -> None:
    """The files that the page promises are there."""
    results = judged[1] / "results"
    for name in ("base.jsonl", "new.jsonl", "paired.json", "report.html", "summary.md"):
        assert (results / name).is_file(), judged[0].stderr
    assert list((results / "badges").glob("*.svg"))


def test_the_checkout_of_the_base_is_gone(judged: tuple[Any, Path]) -> None:
    """Nothing is left behind in the repository."""
    assert not (judged[1] / "base-branch").exists()
    assert len(call(judged[1], "git", "worktree", "list").stdout.splitlines()) == 1


def test_the_workflow_does_what_the_script_does() -> None:
    """It has the script's commands, with the inputs of the job for the names."""
    (script,) = blocks("bash")
    steps = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["kernel"]["steps"]
    text = "\n".join(step.get("run", "") for step in steps)
    for name, value in (("BASE", "base"), ("IMPL", "impl")):
        text = text.replace(f"${name}", f"${value}")
    text = text.replace('"$REQUIRE"', "core").replace('"$WORKLOAD"', "'prefill-b1h8d64s512*'")
    commands = re.compile(r"attention-conformance [a-z](?:[^\\\n|)]|\\\n)*")

    def plain(found: str) -> str:
        return " ".join(found.replace("\\\n", " ").split()).removesuffix(" ||")

    found = {plain(one) for one in commands.findall(script)}
    assert len(found) == 5  # check twice, compare, compare-revisions, report
    assert {plain(one) for one in commands.findall(text)} == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_every_step_of_the_workflow_is_shell() -> None:
    """Bash can read every script that a runner is given."""
    for step in yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["kernel"]["steps"]:
        if "run" in step:
            done = subprocess.run(["bash", "-n", "-c", step["run"]], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


def test_the_caller_gives_what_the_workflow_asks_for() -> None:
    """The job of the page names the required inputs, and none that does not exist."""
    caller, gitlab = map(yaml.safe_load, blocks("yaml"))
    asked = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))[True]["workflow_call"]["inputs"]  # "on" is a boolean
    given = caller["jobs"]["attention"]["with"]
    assert {name for name, one in asked.items() if one.get("required")} <= set(given) <= set(asked)
    assert "bash attention-check.sh" in gitlab["attention"]["script"][1]
