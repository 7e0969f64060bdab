"""Kernels of devices, interpreted on this machine: what those that JAX ships are right about, as impls/PLUGINS.md says.

Each adapter of impls/kernels is judged in float32 as a user judges it, ``attention-conformance check …@pallas``.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.results import read
from studies.common import Measured, Study, libraries, markdown, sentence

#: Modules and functions of impls/kernels.
KERNELS = ("pallas_gpu:mha", "pallas_gpu:gqa", "pallas_tpu:flash_attention")
ADAPTER = "attention_conformance.impls.kernels.{}@pallas"


def judged(kernel: str) -> dict[str, Any]:
    """Counts of each outcome, and the cases that failed with the clause that each breaks."""
    command = [sys.executable, "-m", "attention_conformance", "check", ADAPTER.format(kernel), "--dtype", "float32"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--conformance-json", "out.jsonl"]
        subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603  (our own; it may fail)
        results = read(Path(folder) / "out.jsonl").results
    failed = {result.case: result.broken or result.clauses[0] for result in results if result.outcome is Outcome.FAILED}
    return {"outcomes": Counter(result.outcome.value for result in results), "failed": failed}


def measure() -> dict[str, Any]:
    """All of them."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "numpy")}
    return {"kernels": {kernel: judged(kernel) for kernel in KERNELS}, "versions": versions}


def table(found: Measured) -> str:
    """A row for each kernel, with the clauses that fail most first."""
    rows = []
    for kernel, one in found["kernels"].items():
        broken = Counter(one["failed"].values())
        most = ", ".join(f"{clause} ({count})" for clause, count in sorted(broken.items(), key=lambda x: (-x[1], x[0])))
        counts = [str(one["outcomes"].get(each.value, 0)) for each in (Outcome.PASSED, Outcome.FAILED)]
        rows.append([f"`{kernel}`", *counts, most])
    heads = ("kernel", "passed", "failed", "clauses that it breaks, and in how many cases")
    return f"{markdown(heads, rows, (0, 3))}\n\n{sentence(found, libraries(found))}"


STUDY = Study(
    "device_kernels",
    "what kernels of GPUs and TPUs that JAX ships are right about, interpreted",
    measure,
    {"impls/PLUGINS.md": table},
)
