"""``check``: the verdict, the failures of a report, and the forms that a report has."""

from __future__ import annotations

import html
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_conformance
from attention_conformance import Report, check
from attention_conformance.checking import suite
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.results.parse import read
from attention_conformance.conformance.run import offsets, streams
from attention_conformance.conformance.run_case import blank_of
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.invariant_kernels import split_by_batch
from attention_conformance.conformance.tests.tile_kernels import TILE_KERNELS
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.process import limits

CASES = ["plain", "causal*", "scale*"]

#: The kernels with mistakes, and one of them as a function at the top level of the file.
TILE_FILE = f"""{TILE_KERNELS}

def biased(q, k, v, *, bias=None):
    return kernel("bias", q, k, v, bias=bias)


biased.dtypes = ["float16"]
biased.lengths = "multiple of 128"
biased.head_widths = [64, 128]
biased.equal_widths = True
"""


def attention(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    """Attention of one head group, by the book."""
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * scale
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e300))
    return (powers / powers.sum(-1, keepdims=True) @ v.astype(np.float64)).astype(q.dtype)


def bottom_right(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    """``attention`` with the causal mask aligned at the end of the keys."""
    if not is_causal or q.shape[1] != k.shape[1]:
        return attention(q, k, v, is_causal=is_causal, scale=scale)
    more = q.shape[2] - k.shape[2]
    if more > 0:
        raise NotImplementedError("more queries than keys")
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool), -more), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e300))
    return (powers / powers.sum(-1, keepdims=True) @ v.astype(np.float64)).astype(q.dtype)


@pytest.fixture(scope="module")
def right() -> Report:
    """The report of a right function."""
    return check(attention, dtypes=["float32"], cases=CASES)


@pytest.fixture(scope="module")
def wrong() -> Report:
    """The report of a wrong one."""
    return check(bottom_right, dtypes=["float32"], cases=CASES)


def test_a_right_function_is_ok(right: Report) -> None:
    """For a right function nothing fails, and something was executed."""
    assert right.ok
    assert bool(right) is True
    assert right.counts["passed"] >= 10
    assert not right.failures
    assert not right.reasons
    assert str(right).startswith("attention: ok (")


def test_a_wrong_function_is_not(wrong: Report) -> None:
    """Every failure has its clause, its message with the line that runs it again, and a diagnosis."""
    assert not wrong.ok
    assert wrong.counts["failed"] == len(wrong.failures) > 2
    for failed in wrong.failures:
        assert failed.clause in failed.message
        assert failed.kind == "value"
        assert failed.message.splitlines()[-1].startswith('Rerun:    check(bottom_right, cases=["')
    assert any("causal mask aligned bottom-right" in line for line in wrong.diagnosis)
    assert any("causal mask aligned bottom-right" in "".join(failed.diagnosis) for failed in wrong.failures)
    assert "NOT OK" in str(wrong)
    assert wrong.failures[0].message in str(wrong)


def test_a_case_is_run_again_by_itself(wrong: Report) -> None:
    """The call in the failure's message runs only that case, which fails again."""
    failed = wrong.failures[0]
    again = check(bottom_right, cases=[failed.case], dtypes=[failed.dtype])
    assert [each.case for each in again.failures] == [failed.case]


def test_a_failure_has_a_script(wrong: Report, tmp_path: Path) -> None:
    """The script imports the function from its file, and fails by itself, without the suite."""
    path = tmp_path / "script.py"
    path.write_text(wrong.failures[0].script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_the_script_of_a_kernel_has_simpler_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of a kernel says that its numbers are simplified, and fails by itself."""
    (tmp_path / "simplified_tile.py").write_text(TILE_FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("simplified_tile").biased
    (failed,) = check(function, cases=["kernel-square-bias-1x1x1-q64-k64-d256-float32"]).failures
    assert "with simpler numbers" in failed.script
    (tmp_path / "script.py").write_text(failed.script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_a_function_without_a_file_has_no_script() -> None:
    """A function that a script cannot name has no script."""

    def twice(q: Any, k: Any, v: Any) -> Any:
        return 2 * attention(q, k, v)

    report = check(twice, dtypes=["float32"], cases=["plain"])
    assert [failed.script for failed in report.failures] == [""]


def test_nothing_executed_is_not_ok() -> None:
    """A function that refuses everything shows nothing."""

    def refusing(q: Any, k: Any, v: Any) -> Any:
        raise NotImplementedError("not today")

    report = check(refusing, dtypes=["float32"], cases=["plain"])
    assert not report.ok
    assert "nothing was executed, so nothing is known" in report.reasons


def test_what_is_required_has_to_be_there() -> None:
    """A feature that the signature lacks is a reason."""
    report = check(attention, dtypes=["float32"], require=["softcap"], cases=["*softcap*", "plain"])
    assert not report.ok
    assert any("softcap is required" in reason for reason in report.reasons)


def test_a_function_that_kills_its_process_fails_that_case_alone() -> None:
    """A function that kills its process fails only that case; the caller's process lives."""

    def dying(q: Any, k: Any, v: Any, *, scale: float | None = None) -> Any:
        if scale is not None:
            os._exit(3)
        return attention(q, k, v)

    report = check(dying, dtypes=["float32"], cases=["plain", "scale-zero"])
    assert [(failed.case, failed.kind) for failed in report.failures] == [("scale-zero", "crashed")]


def test_a_call_has_the_memory_that_the_command_gives_it() -> None:
    """A call gets the default share of the memory, as with the command."""
    with suite(attention, None, "sdpa", ["float32"], [], [], isolated=True, timeout=60.0) as judging:
        assert judging.pool.memory == limits.default()


def test_a_kernel_is_asked_for_more_than_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams (here failing) and offsets (here an advisory) are tested too; both messages name the call."""
    far_kernels = pytest.importorskip("attention_conformance.conformance.tests.far_kernels")

    def too_early(target: Target, cases: Any, *_: Any) -> Result:
        text = f"{streams.NAME}: wrong by value\nRerun:    attention-conformance check narrow -k test_streams"
        blank = replace(blank_of(target, cases[0]), case=streams.NAME, clauses=(streams.CLAUSE,), message=text)
        return replace(blank, outcome=Outcome.FAILED, failure=Failure.VALUE, broken=streams.CLAUSE, reason="too early")

    monkeypatch.setattr(streams, "asked", lambda target: True)
    monkeypatch.setattr(streams, "judge", too_early)
    monkeypatch.setattr(offsets, "asked", list)
    report = check(far_kernels.narrow, framework="torch", dtypes=["float32"])
    failed, advisory = report.failures[-1], report.advisories[-1]
    assert (failed.clause, failed.case, failed.script) == ("SDPA-45", "stream/order", "")
    assert (advisory.clause, advisory.case) == ("SDPA-46", "offsets/beyond-32-bits")
    for each in (failed, advisory):
        assert each.message.splitlines()[-1] == 'Rerun:    check(narrow, dtypes=["float32"])'
        assert each.message in str(report)
        assert html.escape(each.message) in report._repr_html_()
    assert report.to_dict()["advisories"][-1]["message"] == advisory.message
    named = check(far_kernels.narrow, framework="torch", dtypes=["float32"], cases=["plain"])
    assert all(result.of_case for result in named.results)


def test_invariance_is_asked_where_it_is_wanted() -> None:
    """Each question of invariance has a result; a difference is an advisory that names the call."""
    report = check(split_by_batch, dtypes=["float32"], cases=["plain"], invariance=True)
    assert report.ok
    found = {result.case: result.outcome for result in report.results if not result.of_case}
    assert found["invariance/alone"] is Outcome.ADVISORY
    assert Outcome.PASSED in found.values()
    told = next(each for each in report.advisories if each.case == "invariance/alone")
    call = 'check(split_by_batch, dtypes=["float32"], invariance=True)'
    assert told.message.splitlines()[-1] == f"Rerun:    {call}"
    assert told.message in str(report)


def test_without_isolation_the_function_is_called_here() -> None:
    """Without isolation the function is called in this process, where a debugger sees it."""
    seen = set()

    def noting(q: Any, k: Any, v: Any) -> Any:
        seen.add(os.getpid())
        return attention(q, k, v)

    assert check(noting, dtypes=["float32"], cases=["plain"], isolated=False).ok
    assert os.getpid() in seen


def test_a_report_is_plain_data(wrong: Report) -> None:
    """JSON holds all of a report."""
    data = json.loads(wrong.to_json())
    assert data["ok"] is False
    assert len(data["results"]) == len(wrong.results)
    assert data["failures"][0]["message"] == wrong.failures[0].message
    assert data["features"]["cpu"]["causal"] == "not"


def test_a_report_is_a_table(wrong: Report) -> None:
    """A report as a data frame has one row for each result."""
    pytest.importorskip("pandas")
    table = wrong.to_pandas()
    assert len(table) == len(wrong.results)
    assert (table["outcome"] == "failed").sum() == len(wrong.failures)


def test_a_report_is_a_result_file(wrong: Report, tmp_path: Path) -> None:
    """A report can be written as a result file that the commands read."""
    wrong.write(tmp_path / "results.jsonl")
    run = read(tmp_path / "results.jsonl")
    assert [r.case for r in run.results if r.outcome is Outcome.FAILED] == [
        r.case for r in wrong.results if r.outcome is Outcome.FAILED
    ]


def test_a_notebook_shows_what_failed(wrong: Report) -> None:
    """In a notebook every failure can be unfolded, grouped by cause, and nothing in a message is markup."""
    page = wrong._repr_html_()
    assert page.count("<pre ") == len(wrong.failures)
    assert page.count("case causal-") >= 3
    assert page.count("<details>") < 2 * len(wrong.failures)
    assert "NOT OK" in page
    assert "causal_offset" in page
    assert "<=" not in page


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cases": ["no-such"]}, "^cases=no-such: no such case"),
        ({"dtypes": ["float23"]}, "^dtypes=float23: unknown"),
        ({"devices": ["tpu"]}, "^devices=tpu: unknown"),
        ({"require": ["causality"]}, "^require=causality: no such feature"),
        ({"framework": "tensorflow"}, "unknown framework"),
    ],
)
def test_what_is_misspelt_is_refused(settings: Any, said: str) -> None:
    """A misspelt argument is refused in one sentence."""
    with pytest.raises(ImplementationError, match=said):
        check(attention, **settings)


def test_importing_the_package_imports_nothing_else() -> None:
    """A name is imported when it is first used."""
    code = "import sys, attention_conformance; assert 'numpy' not in sys.modules; attention_conformance.check"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    """Every public name is there, and an unknown name raises AttributeError."""
    for name in attention_conformance.__all__:
        assert getattr(attention_conformance, name) is not None
        assert name in dir(attention_conformance)
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = attention_conformance.chekc  # type: ignore[attr-defined]
