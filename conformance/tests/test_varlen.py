"""Packed sequences: the reference, examples by hand, correct variants, faults, envelopes, and a plug-in that leaks."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.data import random_bias
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.conformance.diagnosis.explanation import Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.evidence.packed_variants import PACKED
from attention_conformance.conformance.faults.kill_matrix import LEAST, judge_faults
from attention_conformance.conformance.faults.registry import FAULTS, faults_of
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.spec.varlen import varlen
from attention_conformance.conformance.tests.exact import parse
from attention_conformance.impls.calls import Reply, call
from attention_conformance.impls.contract import Implementation, Profile
from attention_conformance.impls.envelope import Envelope, Sizes
from attention_conformance.impls.process.pool import Pool

CASES = [case for case in every_case().values() if case.operator == "varlen"]
EXAMPLES = tomllib.loads(DATA.read_text(encoding="utf-8"))["packed"]


def result(case: Any, dtype: str, profile: Profile = Profile.WIDE) -> Result:
    """The result of a case before it is judged."""
    return Result("trial", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)


def reply(function: Any, case: Any, dtype: str, operator: str = "varlen") -> Reply:
    """The reply of a function to a case."""
    return call(Implementation("trial", "trial:none", operator=operator), request(case, dtype, "cpu"), function)


def assert_caught_twice(operator: str) -> None:
    """Check that every fault of an operator is caught by at least two cases, and that there are at least 30 faults."""
    kills = judge_faults(Pool(in_process=True), [fault.name for fault in faults_of(operator)])
    assert {kill.fault: list(kill.caught) for kill in kills if len(kill.caught) < LEAST} == {}
    assert len(kills) >= 30


def assert_named(name: str, cases: Sequence[Any], *, with_passed: bool = False) -> None:
    """Check that the diagnosis names a fault first, from its failed and, on request, passed cases in float32."""
    failed, passed = [], []
    for case in sorted(cases, key=lambda case: case.size):
        if "float32" in case.dtypes and not case.invalid:
            returned = reply(FAULTS[name].make(), case, "float32", case.operator)
            got = judge(returned, case, result(case, "float32"), every_profile=False)
            if got.failure is not None:
                failed.append(Failed(case, "float32", Profile.WIDE, got.failure, returned))
            elif with_passed:
                passed.append(Passed(case, "float32", Profile.WIDE))
    assert failed
    assert name in diagnose(failed, passed)[0].names


def random_pack(seed: int) -> PackedCase:
    """A pack of random lengths and options."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 7))
    lengths = [tuple(int(n) for n in rng.choice([0, 1, 2, 3, 5, 8, 17, 33], count)) for _ in range(2)]
    group, width = int(rng.choice([1, 2, 3])), int(rng.choice([1, 4, 8, 16]))
    shape = PackedShape(
        lengths[0], lengths[1], 2 * group, 2, width, int(rng.choice([1, 5, 16])), int(rng.integers(0, 3))
    )
    options: dict[str, Any] = {
        "is_causal": bool(rng.random() < 0.5),
        "window": (None, (int(rng.integers(0, 5)), None), (2, 3))[int(rng.integers(0, 3))],
        "softcap": (None, 4.0)[int(rng.integers(0, 2))],
        "causal_offset": (None, int(rng.integers(-2, 5)))[int(rng.integers(0, 2))],
        "scale": (None, 0.3)[int(rng.integers(0, 2))],
        "return_lse": bool(rng.random() < 0.5),
    }
    if rng.random() < 0.3:
        options["sinks"] = lambda rng, s, dtype: rng.standard_normal(s.hq).astype(dtype)
    if rng.random() < 0.4:
        options["bias"] = random_bias(2.0, (None, (None, 1)[int(rng.integers(0, 2))], None, None))
    given = {name: value for name, value in options.items() if value is not None}
    return PackedCase(f"random-{seed}", ("VARLEN-2",), "", shape, options=shape.options | given, store=CaseStore(2**22))


def dense(x: Any) -> np.ndarray:
    """The output computed row by row and head by head, in loops that share nothing with the reference."""
    o = x.keywords
    q, k, v = (a.astype(np.float64) for a in (x.q, x.k, x.v))
    output = np.zeros((*q.shape[:2], v.shape[2]))
    scale = o.get("scale", q.shape[2] ** -0.5)
    left, right = o.get("window") or (None, None)
    for n in range(len(x.cu_seqlens_q) - 1):
        a, b, c, d = (int(cu[n + m]) for cu in (x.cu_seqlens_q, x.cu_seqlens_k) for m in (0, 1))
        offset = o.get("causal_offset", (d - c) - (b - a))
        for i in range(a, b):
            stands = i - a + offset
            seen = [
                j
                for j in range(c, d)
                if not (o.get("is_causal") and j - c > stands)
                and not (left is not None and j - c < stands - left)
                and not (right is not None and j - c > stands + right)
            ]
            for h in range(q.shape[1]):
                scores = [scale * float(q[i, h] @ k[j, h * k.shape[1] // q.shape[1]]) for j in seen]
                if "softcap" in o:
                    scores = [o["softcap"] * np.tanh(s / o["softcap"]) for s in scores]
                if "bias" in o:
                    own = o["bias"][n % len(o["bias"]), h % o["bias"].shape[1], i - a].astype(np.float64)
                    scores = [s + own[j - c] for s, j in zip(scores, seen, strict=True)]
                sink = [float(o["sinks"][h])] if "sinks" in o else []
                if scores:
                    powers = np.exp(np.array([*scores, *sink]) - max(scores + sink))
                    values = v[seen, h * k.shape[1] // q.shape[1]]
                    output[i, h] = powers[: len(seen)] @ values / powers.sum()
    return output


@pytest.mark.parametrize("seed", range(25))
def test_the_reference_is_what_loops_over_rows_give(seed: int) -> None:
    """The reference equals a loop over rows, each over the keys of its own sequence."""
    case = random_pack(seed)
    np.testing.assert_allclose(case.expected("float64").output, dense(case.inputs("float64")), rtol=1e-12, atol=1e-12)


def given(example: Any) -> tuple[np.ndarray, ...]:
    """The arrays of an example by hand, with one head."""
    q, k, v = (np.array(example["inputs"][name], np.float64)[:, None] for name in "qkv")
    return q, k, v, np.array(example["cu_seqlens_q"], np.int32), np.array(example["cu_seqlens_k"], np.int32)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each["name"])
def test_examples_follow_from_their_inputs(example: Any) -> None:
    """Powers of two from the products, their sum, the weighted mean and the logarithm, in fractions."""
    causal = example.get("options", {}).get("is_causal", False)
    q, k, v = (example["inputs"][name] for name in "qkv")
    row = 0
    for n in range(len(example["cu_seqlens_q"]) - 1):
        a, b = example["cu_seqlens_q"][n : n + 2]
        c, d = example["cu_seqlens_k"][n : n + 2]
        for i in range(a, b):
            last = d if not causal else d - (b - 1 - i)  # bottom right
            added = example["bias"][n][i - a] if "bias" in example else [0] * (d - c)
            powers = [
                Fraction(2) ** (q[i][0] * k[j][0] + added[j - c]) if j < last else Fraction(0) for j in range(c, d)
            ]
            assert powers == example["steps"]["powers"][row]
            total = sum(powers)
            assert total == example["steps"]["totals"][row]
            mean = sum((p * v[j][0] for p, j in zip(powers, range(c, d), strict=True)), Fraction(0)) / (total or 1)
            assert [mean] == [parse(each).coefficient for each in example["results"]["output"][row]]
            lse = np.log(float(total)) if total else -np.inf
            assert float(parse(example["results"]["lse"][row])) == pytest.approx(lse, rel=1e-15)
            row += 1
    assert row == len(q)
    assert set(example["clauses"]) <= set(clauses())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each["name"])
def test_the_reference_gives_what_was_computed_by_hand(example: Any) -> None:
    """The reference gives the results of the examples, and not the wrong ones that an example lists."""
    bias = np.log(2) * np.array(example["bias"])[:, None] if "bias" in example else None
    found = varlen(*given(example), scale=float(np.log(2)), bias=bias, **example.get("options", {}))

    def numbers(value: Any) -> np.ndarray:
        return np.array([[float(parse(each)) for each in row] for row in value])

    np.testing.assert_allclose(found.output[:, 0], numbers(example["results"]["output"]), rtol=1e-14)
    np.testing.assert_allclose(found.lse[0], [float(parse(each)) for each in example["results"]["lse"]], rtol=1e-14)
    for wrong in example.get("rejected", []):
        assert not np.allclose(found.output[:, 0], numbers(wrong["value"])), wrong["because"]


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", PACKED)
def test_correct_variants_pass_every_case(name: str) -> None:
    """Variants that are padded, dense, in tiles, stored or in the opposite order all pass."""
    function = PACKED[name]
    dtypes = getattr(function, "dtypes", ("float64", "float32", "float16", "bfloat16"))
    profile = Profile.STORAGE if name == "stored" else Profile.WIDE
    for case in CASES:
        dense_is_too_large = name in ("dense", "padded") and case.name.startswith(("varlen-sum", "varlen-many"))
        nan = (
            name in ("dense", "padded") and "VARLEN-13" in case.clauses and "bias" not in case.options
        )  # 0 · NaN of a neighbour, which such a variant cannot avoid
        if dense_is_too_large or (nan and case.edit is not None):
            continue
        for dtype in (dtype for dtype in case.dtypes if dtype in dtypes):
            got = judge(reply(function, case, dtype), case, result(case, dtype, profile), every_profile=False)
            assert got.outcome is Outcome.PASSED, got.message


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", PACKED)
def test_correct_variants_pass_random_packs(name: str) -> None:
    """Correct variants have no false alarm on random packs."""
    dtype, profile = ("float16", Profile.STORAGE) if name == "stored" else ("float32", Profile.WIDE)
    for seed in range(40):
        case = random_pack(seed)
        if case.shape.sq and case.shape.sk:
            got = judge(reply(PACKED[name], case, dtype), case, result(case, dtype, profile), every_profile=False)
            assert got.outcome is Outcome.PASSED, (seed, got.message)


@pytest.mark.slow
def test_every_fault_is_caught_twice() -> None:
    """Each fault is caught by at least two cases."""
    assert_caught_twice("varlen")


@pytest.mark.slow(15)  # packed-first256 shows only in packs of hundreds of sequences, which take seconds to compare
@pytest.mark.parametrize("name", [fault.name for fault in faults_of("varlen")[::7]])
def test_a_fault_is_named(name: str) -> None:
    """Faults of packs, and of the attention within, are named from a few failed cases."""
    assert_named(name, CASES)


BIASES = [fault.name for fault in faults_of("varlen") if fault.group == "serving/varlen_bias"]


@pytest.mark.slow(5)
@pytest.mark.parametrize("name", BIASES)
def test_a_wrong_bias_is_caught_twice_and_named(name: str) -> None:
    """Each fault is caught by two cases in float32, and the diagnosis names it first."""
    biased = [case for case in CASES if "bias" in case.options]
    (kill,) = judge_faults(Pool(in_process=True), [name])
    assert len([case for case, dtypes in kill.caught.items() if "float32" in dtypes]) >= LEAST
    if name != "packed-bias-unchecked":  # its failures have no results to compare
        assert_named(name, biased, with_passed=True)


def test_a_case_is_fitted_to_heads_and_widths() -> None:
    """Heads and widths change; the lengths, which the case is about, do not."""
    case = next(case for case in CASES if case.name == "varlen-grouped")
    envelope = Envelope(head_widths=Sizes((64, 128)), value_widths=Sizes((64, 128)), equal_widths=True)
    inside = fit(case, envelope)
    assert inside.fitted
    assert (inside.shape.d, inside.shape.dv) == (64, 64)
    assert inside.shape == replace(case.shape, d=64, dv=64)


def test_a_case_that_cannot_be_fitted_says_so() -> None:
    """A case of Dv ≠ D does not fit an implementation that takes one width."""
    case = next(case for case in CASES if case.name == "varlen-widths")
    assert "Dv" in fit(case, Envelope(head_widths=Sizes((64,)), value_widths=Sizes((64,)))).unfit


def test_a_short_sequence_is_judged_by_its_own_bound() -> None:
    """An error that the bound of a long neighbour would excuse leaves the bound of a short sequence."""
    case = next(case for case in CASES if case.name == "varlen-sum-keys")
    inputs, right = case.inputs("float32"), case.expected("float32")
    long, short = (slice(int(inputs.cu_seqlens_q[n]), int(inputs.cu_seqlens_q[n + 1])) for n in (0, 1))
    limit = case.bound("float32", Profile.WIDE).output
    assert limit[long].max() > 4 * limit[short].max()
    moved = right.output.astype(np.float32)
    moved[short] += np.float32(limit[long].max())
    got = judge(Reply("returned", {"output": moved}), case, result(case, "float32"))
    assert got.failure is Failure.VALUE
