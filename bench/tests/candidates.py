"""Candidates: the cheats that the gate must reject and the honest kernels that it must accept, from their two files.

Each is the code of a file that a user could have, after a prelude with ``exact``, plain attention of its framework.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.bench.gate import command
from attention_conformance.bench.gate.verdict import Verdict

#: Every candidate is run with a small task, and with a variable of the parent that no candidate may see.
SHAPE, SECRET = "1,2,2,32,64,16", "GATE_SECRET"

PRELUDES = {
    "numpy": """import numpy as np


def exact(q, k, v):
    s = q @ k.swapaxes(-1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return p / p.sum(-1, keepdims=True) @ v


""",
    "torch": """import torch


def exact(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


""",
}

#: A problem file in KernelBench's form, in our own words, at a small size.
PROBLEM = """import torch
from torch import nn

B, H, S, D = 1, 2, 48, 16


class Model(nn.Module):
    def forward(self, Q, K, V):
        return torch.softmax(Q @ K.transpose(-2, -1) / D**0.5, dim=-1) @ V


def get_inputs():
    return [torch.rand(B, H, S, D) for _ in range(3)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Candidate:
    """One candidate: ``reason`` is part of the reason for rejecting it, "" for an honest one."""

    name: str
    what: str
    code: str
    source: str = ""
    reason: str = ""
    framework: str = "numpy"
    function: str = "attention"
    own_work: bool = False
    #: The candidate's task is a problem in KernelBench's form.
    problem: bool = False
    #: The cheat was not seen in this form: the source has a similar one.
    analogy: bool = False

    @property
    def text(self) -> str:
        """The text of its file."""
        return PRELUDES.get(self.framework, "") + self.code.lstrip("\n") + "\n"

    @property
    def key(self) -> str:
        """A hash of the code and of what the candidate is run with."""
        asked = f"{self.text}{self.framework}{self.function}{self.own_work}{self.problem}{self.reason}"
        return hashlib.sha256(asked.encode()).hexdigest()[:12]

    def options(self, folder: Path, **changes: Any) -> dict[str, Any]:
        """Write the files into a folder; the options of the command that decides on them."""
        folder.joinpath("candidate.py").write_text(self.text, encoding="utf-8")
        given: dict[str, Any] = {
            "candidate": f"{folder}/candidate.py:{self.function}@{self.framework}",
            "require": "", "shape": [SHAPE], "dtype": [], "profile": None, "device": "cpu",
            "own_work": self.own_work, "seed": None, "budget": 100.0, "json": None, "task": None,
        }  # fmt: skip
        if self.problem:
            folder.joinpath("problem.py").write_text(PROBLEM, encoding="utf-8")
            given |= {"shape": [], "require": None, "task": f"{folder}/problem.py"}
        return given | changes

    def decided(self, folder: Path, **changes: Any) -> Verdict:
        """The verdict on the candidate."""
        return command.decided(**self.options(folder, **changes))


def _read(name: str) -> tuple[Candidate, ...]:
    found = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    return tuple(Candidate(**each) for each in found[name])


CHEATS, HONEST = _read("cheats"), _read("honest")
