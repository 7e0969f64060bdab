"""Helpers for tests of models and programs: a call by the text of ``--impl``, and the whole command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.impls import calls
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.select import select, with_attributes
from attention_conformance.impls.tests import commands


def implementation(text: str) -> Implementation:
    """The implementation that a text of ``--impl`` names, with what it declares."""
    (found,) = select([text])
    return with_attributes(found, calls.describe(found).attributes)


def keywords(text: str) -> set[str]:
    """The keywords that the implementation takes."""
    (found,) = select([text])
    return set(calls.describe(found).keywords)


def qkv(dtype: Any = np.float32, queries: int = 3, keys: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random q, k and v with two batches, two heads and four columns."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 2, n, 4)).astype(dtype) for n in (queries, keys, keys))
    return q, k, v


def ask(text: str, arrays: tuple[np.ndarray, ...] | None = None, **options: Any) -> calls.Reply:
    """The reply to one call."""
    return calls.call(implementation(text), calls.Request.qkv("cpu", *(arrays or qkv()), keywords=options))


def judge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``pytest conformance`` in a folder."""
    command = [sys.executable, "-m", "pytest", "conformance", "-q", "-p", "no:cacheprovider", *arguments]
    return commands.run(command, cwd=folder)
