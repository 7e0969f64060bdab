"""Main job: time to judge and to time all built-in implementations, with empty and then with full caches.

``attention-conformance suite`` runs twice.  The output of XLA, Inductor and the exporter is kept between the two, in a
folder of its own; the user's caches are not used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.common import ROOT, Measured, Study, Unfit, markdown, sentence

#: Variables that name another place for a cache.
CACHES = ("ATTENTION_CONFORMANCE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")

#: A stage of the job as printed at its end, and an implementation's row with the time of judging.
_STAGE = re.compile(r"^(check|bench|report|all) +(\d+) s, +(\d+) s of processor time(.*)$", re.MULTILINE)
_SPENT = re.compile(r"^([a-z][\w-]+) +(\d+) +[\d.e+-]+ +([\d.]+) +[\d.]+$", re.MULTILINE)

#: Kinds of implementations that cases spend time in, by patterns of names; the first match counts.
KINDS = {
    "XLA, which compiles every form: `jax-*`": r"jax-",
    "Dynamo and Inductor, which trace and compile: flex attention, `torch-compile*`": r"torch-.*(flex|compile)",
    "torch's exporter: `onnx-export*`": r"onnx-export",
    "all others": r"",
}


def measure(suite: str) -> dict[str, Any]:
    """Both runs.  Raises Unfit where one of them has a stage that failed."""
    with tempfile.TemporaryDirectory() as folder:
        return {"runs": {name: run(Path(folder), name, suite.split()) for name in ("cold", "warm")}}


def run(folder: Path, name: str, more: list[str]) -> dict[str, Any]:
    """Stages and kinds of one run."""
    environment = {key: value for key, value in os.environ.items() if key not in CACHES}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    words = [sys.executable, "-m", "attention_conformance", "suite", "-o", str(folder / name), *more]
    print(f"{name}: {' '.join(words[2:])}", file=sys.stderr, flush=True)
    done = subprocess.run(  # noqa: S603  (our own command)
        words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, check=False
    )
    return read(done.stdout)


def read(text: str) -> dict[str, Any]:
    """Seconds and processor seconds of each stage; results and processor seconds of each kind.

    Raises Unfit for a stage that failed, and for one that is not printed.
    """
    stages = {name: [int(seconds), int(processor)] for name, seconds, processor, _ in _STAGE.findall(text)}
    failed = [f"{name}{rest}" for name, _, _, rest in _STAGE.findall(text) if rest]
    if failed or len(stages) < 4:
        raise Unfit(f"the job did not end well: {'; '.join(failed) or text[-500:]}")
    kinds: dict[str, list[float]] = {kind: [0, 0.0] for kind in KINDS}
    for name, results, seconds in _SPENT.findall(text):
        if name != "all":
            kind = next(kind for kind, words in KINDS.items() if re.match(words, name))
            kinds[kind][0] += int(results)
            kinds[kind][1] += float(seconds)
    return {"stages": stages, "kinds": kinds}


def table(found: Measured) -> str:
    """Markdown: minutes of each stage, and the processor time of judging by kind."""
    runs: Mapping[str, Any] = found["runs"]
    stages = [
        [name, *(each for run in runs.values() for each in map(_minutes, run["stages"][name]))]
        for name in ("check", "bench", "report", "all")
    ]
    heads = [f"{run}{of}" for run in runs for of in (", minutes", ": of the processor")]
    first = markdown(["stage", *heads], stages)
    kinds = [
        [kind, f"{runs['cold']['kinds'][kind][0]:,}", *(f"{run['kinds'][kind][1]:.0f}" for run in runs.values())]
        for kind in KINDS
    ]
    second = markdown(
        ["`check` by kind of implementation", "results", *(f"{run}, processor seconds" for run in runs)], kinds
    )
    return "\n\n".join([first, second, sentence(found)])


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


STUDY = Study(
    "main_job",
    "how long the main job takes, with empty and with full caches",
    measure,
    {"conformance/README.md": table},
    {"--suite": {"default": "", "help": "more words for the suite, such as numpy-eager"}},
)
