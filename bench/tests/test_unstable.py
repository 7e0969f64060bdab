"""A result that is wrong in some of several equal calls: the bench says in how many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attention_conformance.bench.tests.test_session_command import run

pytestmark = pytest.mark.slow(40)

#: Right attention, but for the first call of a process, for one call in five, or for every call.
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
    """The first call of six; the first and the sixth; and all of them, which is no instability."""
    (tmp_path / "near.py").write_text(KERNELS)
    names = ("first", "fifth", "always")
    done = run(tmp_path, *(part for name in names for part in ("--impl", f"near.py:{name}")), "--dtype", "float32")
    assert done.returncode == 1
    said = dict(re.findall(r"^invalid: near\.py:(\w+) .*?SDPA-25: (.{50})", done.stdout, re.MULTILINE))
    assert said["first"].startswith("unstable: 1 of 6 calls on the same inputs are")
    assert said["fifth"].startswith("unstable: 2 of 6 calls on the same inputs are")
    assert "unstable" not in said["always"]
