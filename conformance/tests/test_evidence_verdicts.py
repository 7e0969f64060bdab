"""The judge of random problems: correct programs pass, wrong ones are alarms, records excuse only what they record."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.evidence.measure import Near, alarms, rows
from attention_conformance.conformance.evidence.verdicts import Jury, Kind, Verdict
from attention_conformance.conformance.ledger.load import Ledger, read
from attention_conformance.conformance.properties.drawn import dtype_of, once, random_problem
from attention_conformance.conformance.properties.problem import Problem, RandomMask
from attention_conformance.conformance.targets import Selection, Target, choose
from attention_conformance.impls.numpy import eager
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import builtin, plug_in

pytestmark = pytest.mark.slow

HERE = "attention_conformance.conformance.tests.test_evidence_verdicts:"
RANK_1 = RandomMask(0.5, (None,))
SMALL = Shape(b=1, hq=2, hkv=1, sq=3, sk=5, d=4, dv=4)


def jury(pool: Pool, *implementations: str, ledger: Ledger | None = None) -> Jury:
    """A jury over some implementations."""
    return Jury(pool, choose(implementations, ("cpu",), (), pool), ledger or read())


def verdict(pool: Pool, function: str, problem: Problem, dtype: str = "float32", name: str = "") -> Verdict:
    """The verdict on a problem for a function of this module, under the name of a library's implementation."""
    selection = choose((HERE + function,), ("cpu",), (dtype,), pool)
    (target,) = selection.targets
    renamed = replace(target.implementation, name=name or function)
    keywords = {renamed.name: selection.keywords[target.implementation.name]}
    versions = {"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime": "1.31.1", "jax": "0.10.2"}
    selection = Selection((Target(renamed, "cpu", dtype),), keywords, {}, versions)
    return Jury(pool, selection, read()).verdict(selection.targets[0], once(problem, dtype))


def nan_for_negative_scale(q: Any, k: Any, v: Any, *, scale: float | None = None, is_causal: bool = False) -> Any:
    """NaN everywhere where the scale is negative."""
    output = eager.attention(q, k, v, scale=scale, is_causal=is_causal)
    return np.full_like(output, np.nan) if scale is not None and scale < 0 else output


def first_key_behind_the_first_row(q: Any, k: Any, v: Any, *, mask: Any = None, is_causal: bool = False) -> Any:
    """Every row but the first sees only the first key."""
    output = eager.attention(q, k, v, mask=mask, is_causal=is_causal)
    output[:, :, 1:] = np.repeat(v, q.shape[1] // k.shape[1], axis=1)[:, :, :1]
    return output


def only_the_first_key(q: Any, k: Any, v: Any, *, mask: Any = None, is_causal: bool = False) -> Any:
    """Every row sees only the first key, and the first row gets its value negated."""
    output = first_key_behind_the_first_row(q, k, v, mask=mask, is_causal=is_causal)
    output[:, :, 0] = -output[:, :, 1]
    return output


def refuses(q: Any, k: Any, v: Any, *, kv_lengths: Any = None) -> Any:
    """Raises in every call."""
    raise RuntimeError("no")


def not_today(q: Any, k: Any, v: Any) -> Any:
    """Raises NotImplementedError in every call."""
    raise NotImplementedError("no")


def test_a_correct_implementation_has_no_false_alarm(unprepared: Pool) -> None:
    """A hundred problems are all executed and all inside the bounds."""
    judge = jury(unprepared, "numpy-eager")
    found = [each for index in range(100) for each in judge.verdicts(index)]
    assert {each.kind for each in found} == {Kind.KEPT}
    assert [each.dtype for each in found] == [dtype_of(index) for index in range(100)]


def test_a_wrong_implementation_is_an_alarm(unprepared: Pool) -> None:
    """A causal mask aligned at the bottom right is an alarm on causal problems, and on no other."""
    judge = jury(unprepared, "attention_conformance.conformance.faults:causal_bottom_right")
    found = {index: each for index in range(60) for each in judge.verdicts(index)}
    alarms = {index for index, each in found.items() if each.kind is Kind.ALARM}
    assert len(alarms) > 3
    assert all(random_problem(index).is_causal for index in alarms)


def test_a_bound_that_is_too_tight_is_an_alarm(unprepared: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit roundoff a hundred times too small, correct results in float32 are outside."""
    monkeypatch.setitem(bounds.UNIT_ROUNDOFF, "float32", 2.0**-24 / 100)
    judge = jury(unprepared, "numpy-eager")
    kinds = [each.kind for index in range(60) for each in judge.verdicts(index) if each.dtype == "float32"]
    assert kinds.count(Kind.ALARM) > len(kinds) / 4


def test_numpy_is_judged_in_this_process_and_libraries_in_their_own() -> None:
    """NumPy's variants run in this process; the ONNX evaluator is a library, though it uses arrays of NumPy."""
    with closing(Near()) as pool:
        variant = plug_in("attention_conformance.conformance.evidence.variants:storage")
        assert {pool.call(each, "os:getpid") for each in (builtin()["numpy-eager"], variant)} == {os.getpid()}
        assert pool.call(builtin()["onnx-reference"], "os:getpid") != os.getpid()


def test_what_an_implementation_lacks_is_unsupported(unprepared: Pool) -> None:
    """A missing keyword or a NotImplementedError is unsupported."""
    assert verdict(unprepared, "nan_for_negative_scale", Problem("p", SMALL, softcap=2.0)).kind is Kind.UNSUPPORTED
    assert verdict(unprepared, "not_today", Problem("p", SMALL)).kind is Kind.UNSUPPORTED


def test_a_record_excuses_its_own_trigger(unprepared: Pool) -> None:
    """The ledger records that torch-sdpa gives NaN where is_causal meets a negative scale."""
    problem = Problem("p", SMALL, is_causal=True, scale=-1.0)
    got = verdict(unprepared, "nan_for_negative_scale", problem, name="torch-sdpa")
    assert (got.kind, got.why) == (Kind.KNOWN, "torch-flash-causal-scale")


@pytest.mark.parametrize("name", ["numpy-eager", "torch-sdpa-math"])
def test_a_record_excuses_no_other_implementation(unprepared: Pool, name: str) -> None:
    """The same failure is an alarm for other implementations."""
    problem = Problem("p", SMALL, is_causal=True, scale=-1.0)
    assert verdict(unprepared, "nan_for_negative_scale", problem, name=name).kind is Kind.ALARM


def test_a_record_excuses_no_other_trigger(unprepared: Pool) -> None:
    """Without is_causal the same failure is an alarm."""
    got = verdict(unprepared, "nan_for_negative_scale", Problem("p", SMALL, scale=-1.0), name="torch-sdpa")
    assert got.kind is Kind.ALARM


def test_a_record_excuses_no_other_failure(unprepared: Pool) -> None:
    """The ledger records that ort-gqa refuses a length of 0; refusing other lengths is an alarm."""
    refused = Problem("evidence-p", SMALL, kv_lengths=(0,))
    assert verdict(unprepared, "refuses", refused, name="ort-gqa").why == "ort-gqa-length-zero"
    assert verdict(unprepared, "refuses", replace(refused, kv_lengths=(1,)), name="ort-gqa").kind is Kind.ALARM
    assert verdict(unprepared, "refuses", refused, name="onnx-reference").kind is Kind.ALARM


def test_a_record_excuses_no_other_rows(unprepared: Pool) -> None:
    """A record of all rows but the first does not excuse a wrong first row."""
    problem = Problem("evidence-p", SMALL, mask=RandomMask(0.7, (1, 1, 1, None)), is_causal=True)
    got = verdict(unprepared, "first_key_behind_the_first_row", problem, name="onnx-reference")
    assert (got.kind, got.why) == (Kind.KNOWN, "onnx-reference-causal-one-row")
    # In another dtype, as prepared functions are cached by name and call.
    assert verdict(unprepared, "only_the_first_key", problem, "float64", name="onnx-reference").kind is Kind.ALARM


def test_stored_scores_may_overflow(unprepared: Pool) -> None:
    """Scores beyond the largest float16 number excuse a program that stores scores, and no other."""
    problem = Problem("p", replace(SMALL, d=64), spread=30.0, outlier=50.0, scale=10.0)
    judge = jury(
        unprepared,
        "attention_conformance.conformance.evidence.variants:storage",
        "attention_conformance.conformance.evidence.variants:fused",
    )
    kinds = {
        target.implementation.name.rpartition(":")[2]: judge.verdict(target, once(problem, "float16"))
        for target in judge.selection.targets
        if target.dtype == "float16"
    }
    assert (kinds["storage"].kind, kinds["storage"].why) == (Kind.KNOWN, "SDPA-26")
    assert kinds["fused"].kind is Kind.KEPT


def test_rows_count_what_became_of_problems() -> None:
    """Alarms count as judged, shares are of kept problems, and the worst problem is named."""
    base = Verdict(0, "a", "float16", "fused", Kind.KEPT, 0.25, ("fused", "storage"))
    verdicts = [
        base,
        replace(base, index=1, share=0.75, meets=("wide", "fused", "storage")),
        replace(base, index=2, kind=Kind.ALARM, share=7.0, meets=(), why="too far"),
        replace(base, index=3, kind=Kind.UNSUPPORTED, share=None, meets=()),
        replace(base, index=4, kind=Kind.KNOWN, share=9.0, meets=(), why="x"),
    ]
    (row,) = rows(verdicts)
    assert alarms(verdicts) == ["a in float16, problem 2: too far"]
    assert (row["judged"], row["alarms"], row["unsupported"], row["known"]) == (3, 1, 1, {"x": 1})
    assert (row["median"], row["largest"], row["largest_at"]) == (0.5, 0.75, 1)
    assert row["meets"] == {"wide": 1, "fused": 2, "storage": 2}
