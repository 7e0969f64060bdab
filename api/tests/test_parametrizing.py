"""``parametrize``: tests in a user's own suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance import parametrize
from attention_conformance.impls.contract import ImplementationError

KERNELS = """
import numpy as np


def attention(q, k, v, *, is_causal=False):
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool), {diagonal}), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True) @ v.astype(np.float64)).astype(q.dtype)


attention.dtypes = ("float32", "float16")
"""

TESTS = """
from attention_conformance import parametrize
from kernels import attention


@parametrize(attention, cases=["plain", "causal-more-keys", "causal-square", "causal-one-query-grouped"])
def test_attention(check):
    check()
"""


def run(folder: Path, diagonal: str) -> str:
    """The output of pytest in a foreign folder with a kernel and a test file of its own."""
    (folder / "kernels.py").write_text(KERNELS.format(diagonal=diagonal), encoding="utf-8")
    (folder / "test_kernels.py").write_text(TESTS, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_kernels.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_right_kernel_passes(tmp_path: Path) -> None:
    """A right kernel passes one test for each case and dtype; what it refuses is skipped with its reason."""
    printed = run(tmp_path, "0")
    assert "PASSED test_kernels.py::test_attention[float32-causal-square]" in printed
    assert "PASSED test_kernels.py::test_attention[float16-plain]" in printed
    assert "NotImplementedError: grouped heads" in printed
    assert " failed" not in printed.splitlines()[-1]


def test_a_wrong_kernel_fails(tmp_path: Path) -> None:
    """A wrong kernel fails with the clause and the diagnosis, and without a traceback of the suite."""
    printed = run(tmp_path, "scores.shape[-1] - scores.shape[-2]")
    assert "FAILED test_kernels.py::test_attention[float32-causal-more-keys]" in printed
    assert "PASSED test_kernels.py::test_attention[float32-causal-square]" in printed
    assert "SDPA-9 · Causal (MUST)" in printed
    assert "causal mask aligned bottom-right" in printed
    assert "parametrizing.py" not in printed


def test_what_does_not_fit_is_no_test() -> None:
    """Cases that need another keyword, dtype or width than a function declares are not collected."""

    def attention(q: object, k: object, v: object) -> object:
        raise AssertionError("called when tests are collected")

    attention.dtypes = ("bfloat16",)  # type: ignore[attr-defined]
    attention.head_widths = (64,)  # type: ignore[attr-defined]
    _, checks = parametrize(attention).mark.args
    assert len(checks) > 20
    assert {check.dtype for check in checks} == {"bfloat16"}
    assert not any("causal" in check.case for check in checks)


def test_a_misspelt_name_is_refused_at_once() -> None:
    """A misspelt name is refused when the tests are collected."""
    with pytest.raises(ImplementationError, match=r"^dtypes=float23: unknown"):
        parametrize(lambda q, k, v: v, dtypes=["float23"])


def test_a_packed_function_in_another_signature_is_known() -> None:
    """Keywords with other names are recognised as the operator's, as in ``check``."""

    def flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):  # type: ignore[no-untyped-def]
        """Nothing is called when tests are collected."""

    flash.dtypes = ("float32",)  # type: ignore[attr-defined]
    marked = parametrize(flash, framework="numpy", operator="varlen", cases="varlen-causal*")
    assert [each.case for each in marked.args[1]]
