"""The page about many machines: its recipes run as far as one machine can run them."""

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

from attention_conformance.cli import main, parser
from attention_conformance.conformance import results as result_file

PAGE = Path(__file__).parents[1].joinpath("FLEETS.md").read_text(encoding="utf-8")

#: Two implementations, one for each part, and one case.
WANTED = "numpy-eager numpy-tiled --dtype float32 --case causal-square"


def blocks(language: str) -> list[str]:
    """The blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def job() -> dict[str, Any]:
    """The job for Kubernetes, with its container."""
    found = yaml.safe_load(blocks("yaml")[0])
    assert isinstance(found, dict)
    return found


def run(script: str, folder: Path, **environment: str) -> int:
    """Run a script of the page in a folder, with this environment's command; returns its exit code."""
    place = shutil.which("attention-conformance", path=str(Path(sys.executable).parent))
    if place is None:
        pytest.skip("the command is not installed beside Python")
    path = f"{Path(place).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "IMPLEMENTATIONS": WANTED, **environment}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=given, check=False, capture_output=True).returncode


def whole(folder: Path) -> set[str]:
    """The implementations of the parts, joined as the page joins them."""
    parts = sorted(map(str, folder.glob("parts/*.jsonl")))
    assert main(["merge", str(folder / "conformance.jsonl"), *parts]) == 0
    return {one.implementation for one in result_file.read(folder / "conformance.jsonl").results}


@pytest.mark.slow(25)
def test_the_array_of_slurm_is_one_run(tmp_path: Path) -> None:
    """Two jobs with the variables that Slurm sets; their parts belong together."""
    (script,) = blocks("bash")
    for number in ("1", "2"):
        assert run(script, tmp_path, SLURM_ARRAY_TASK_ID=number, SLURM_ARRAY_TASK_COUNT="2") == 0
    assert whole(tmp_path) == {"numpy-eager", "numpy-tiled"}


@pytest.mark.slow(25)
def test_the_indexed_job_is_one_run(tmp_path: Path) -> None:
    """The indices of its parts begin with 0."""
    (script,) = job()["spec"]["template"]["spec"]["containers"][0]["args"]
    for number in ("0", "1"):
        assert run(script.replace('/8"', '/2"'), tmp_path, JOB_COMPLETION_INDEX=number) == 0
    assert whole(tmp_path) == {"numpy-eager", "numpy-tiled"}


def test_a_job_for_kubernetes_has_as_many_parts_as_its_shards() -> None:
    """Completions and the number after the slash agree; every mounted volume exists."""
    spec = job()["spec"]
    pod = spec["template"]["spec"]
    assert f'/{spec["completions"]}"' in pod["containers"][0]["args"][0]
    assert spec["completionMode"] == "Indexed"
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_a_matrix_of_github_has_as_many_parts_as_its_shards() -> None:
    """The parts are numbered from 1 to the number of shards, and the second job waits for them."""
    jobs = yaml.safe_load(blocks("yaml")[1])["jobs"]
    parts = jobs["part"]["strategy"]["matrix"]["part"]
    (check,) = [step["run"] for step in jobs["part"]["steps"] if "--shard" in step.get("run", "")]
    assert parts == list(range(1, len(parts) + 1))
    assert f'--shard "${{{{ matrix.part }}}}/{len(parts)}"' in check
    assert jobs["whole"]["needs"] == "part"


@pytest.mark.parametrize("line", re.findall(r"attention-conformance (?:history|report|merge) [^\n`']*", PAGE))
def test_every_command_of_the_page_is_one(line: str) -> None:
    """The command's options are known."""
    words = line.replace('"', "").split()[1:]
    assert parser(words).parse_args(words)
