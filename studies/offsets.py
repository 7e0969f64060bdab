"""Offsets beyond 32 bits in the Triton kernels of packages, interpreted: impls/KERNELS.md."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.results import read
from attention_conformance.conformance.run.offsets import NAME
from studies.common import Measured, Study, Unfit, markdown, sentence
from studies.device_kernels import KERNELS, Kernel, installed

#: Pattern of an array and its axis in the reason of a result.
PLACE = re.compile(r"\b(\w+) axis (\d)")


def judged(kernel: Kernel, folder: Path) -> dict[str, Any] | None:
    """Outcome and reason for a kernel; None for another operator."""
    file = folder / "result.jsonl"
    command = [sys.executable, "-m", "attention_conformance", "check", kernel.implementation, "--dtype", "float32"]
    command += ["-k", "test_offsets", "--conformance-json", str(file)]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603  (our own; it may fail)
    mine = [each for each in read(file).results if each.case == NAME] if file.exists() else []
    if not mine:
        return None
    version = importlib.metadata.version(kernel.distribution)
    return {"version": version, "outcome": mine[0].outcome.value, "reason": mine[0].reason}


def measure() -> dict[str, Any]:
    """All kernels of Triton whose package is installed.  Raises Unfit where there is none."""
    found: dict[str, Any] = {}
    for kernel in (each for each in KERNELS if each.framework == "triton"):
        with tempfile.TemporaryDirectory() as temporary:
            one = judged(kernel, Path(temporary)) if installed(kernel.distribution) else None
        found |= {kernel.name: one} if one else {}
    if not found:
        raise Unfit("no package with a kernel of Triton is installed")
    return {"kernels": found, "versions": {name: importlib.metadata.version(name) for name in ("torch", "triton")}}


def table(found: Measured) -> str:
    """Markdown: a line for each kernel."""
    rows = []
    for kernel in (each for each in KERNELS if each.name in found["kernels"]):
        one = found["kernels"][kernel.name]
        places = ", ".join(f"{name} {axis}" for name, axis in PLACE.findall(one["reason"]))
        wrong = places if one["outcome"] == Outcome.ADVISORY else ""
        rows.append((f"`{kernel.name}`", f"{kernel.distribution} {one['version']}", wrong or "nothing seen"))
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    heads = ("adapter", "package", "32-bit offsets: array and axis")
    return f"{markdown(heads, rows, (0, 1, 2))}\n\n{sentence(found, versions)}"


STUDY = Study("offsets", "which kernels have 32-bit offsets", measure, {"impls/KERNELS.md#offsets": table})
