"""Gate's transcripts: what the command prints for four candidates, as bench/GATE.md shows it.

Each contains its seed, so that the same questions can be asked again; times are of the run.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from pathlib import Path
from typing import Any

from attention_conformance.bench.gate import command
from attention_conformance.bench.gate.verdict import text
from attention_conformance.bench.tests.candidates import CHEATS, HONEST, Candidate
from attention_conformance.impls.process.threads import usable_cores
from studies.common import Measured, Study

#: The parts of the page, and the candidate of each.
SHOWN = {"honest": "numpy", "mean": "mean-of-v", "clock": "patched-clock", "module": "kernelbench"}


def candidate(name: str) -> Candidate:
    """The candidate of this name."""
    return next(one for one in (*HONEST, *CHEATS) if one.name == name)


def printed(name: str, seed: int) -> str:
    """Output of the command for a candidate, with its files named as by a user."""
    one = candidate(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        options = one.options(Path("."), seed=seed, budget=240.0)
        options["candidate"] = f"candidate.py:{one.function}"
        options["task"] = "problem.py" if one.problem else None
        return text(command.decided(**options))


def measure() -> dict[str, Any]:
    """The transcripts by part."""
    found = {}
    for part, name in SHOWN.items():
        seed = secrets.randbits(60)
        found[part] = {"candidate": name, "seed": seed, "text": printed(name, seed)}
    return {"transcripts": found, "threads": usable_cores()}


def table(part: str) -> Any:
    """The block of a part."""

    def block(found: Measured) -> str:
        return f"```text\n{found['transcripts'][part]['text']}\n```"

    return block


STUDY = Study(
    "gate_transcripts",
    "what the gate prints for an honest kernel, for cheats and for a module",
    measure,
    {f"bench/GATE.md#{part}": table(part) for part in SHOWN},
)
