"""(GRAD-30 to 34) Gradients of packs: the reference against differences and a masked pack, correct variants, faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.varlen_gradient import PackedGradientCase
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.evidence.serving_variants import SERVING
from attention_conformance.conformance.faults.kill_matrix import LEAST, judge_faults
from attention_conformance.conformance.faults.registry import FAULTS, faults_of
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.spec.varlen import varlen
from attention_conformance.conformance.spec.varlen_gradients import varlen_grad
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.test_varlen import random_pack, reply, result
from attention_conformance.impls.calls import Reply, describe
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

CASES = [case for case in every_case().values() if case.operator == "varlen_grad"]


VARIANTS = {name: each.function for name, each in SERVING["varlen_grad"].items()}


@pytest.mark.parametrize(
    "name", ["causal-more-keys", "causal-more-queries", "window", "softcap", "empty-both", "grouped"]
)
def test_the_reference_is_what_differences_give(name: str) -> None:
    """Differences of Σ g · output agree along random directions of q, k and v together."""
    case = every_case()[f"varlen-grad-{name}"]
    x = case.inputs("float32")
    arrays = [getattr(x, each).astype(np.float64) for each in "qkv"]
    q, k, v = arrays
    g = x.grad_output.astype(np.float64)
    found = varlen_grad(q, k, v, g, x.cu_seqlens_q, x.cu_seqlens_k, **x.keywords)

    def loss(q: Any, k: Any, v: Any) -> float:
        return float(np.sum(g * varlen(q, k, v, x.cu_seqlens_q, x.cu_seqlens_k, **x.keywords).output))

    rng = np.random.default_rng(0)
    for _ in range(3):
        directions = [rng.standard_normal(array.shape) for array in arrays]
        sides = [loss(*(a + s * d for a, d in zip(arrays, directions, strict=True))) for s in (1e-5, -1e-5)]
        slope = sum(np.sum(a * d) for a, d in zip((found.grad_q, found.grad_k, found.grad_v), directions, strict=True))
        assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_correct_variants_pass_every_case(name: str) -> None:
    """Variants by sequence, with the whole pack under a mask, and like flash kernels all pass."""
    for case in CASES:
        for dtype in case.dtypes:
            returned = reply(VARIANTS[name], case, dtype, "varlen_grad")
            got = judge(returned, case, result(case, dtype), every_profile=False)
            assert got.outcome is Outcome.PASSED, got.message


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_correct_variants_pass_random_packs(name: str) -> None:
    """Correct variants have no false alarm on random packs."""
    for seed in range(30):
        pack = random_pack(seed)
        options = {key: value for key, value in pack.options.items() if key not in ("sinks", "bias", "return_lse")}
        case = PackedGradientCase(f"random-{seed}", ("GRAD-31",), "", pack.shape, options=options, store=pack.store)
        if case.shape.sq and case.shape.sk:
            returned = reply(VARIANTS[name], case, "float32", "varlen_grad")
            got = judge(returned, case, result(case, "float32"), every_profile=False)
            assert got.outcome is Outcome.PASSED, (seed, got.message)


def test_every_fault_is_caught_twice() -> None:
    """Each fault is caught by at least two cases."""
    kills = judge_faults(Pool(in_process=True), [fault.name for fault in faults_of("varlen_grad")])
    assert {kill.fault: list(kill.caught) for kill in kills if len(kill.caught) < LEAST} == {}
    assert len(kills) >= 10


@pytest.mark.parametrize("name", [fault.name for fault in faults_of("varlen_grad")])
def test_a_fault_is_named(name: str) -> None:
    """The failures of all cases name the fault."""
    failed = []
    for case in CASES:
        if "float32" in case.dtypes:
            returned = reply(FAULTS[name].make(), case, "float32", "varlen_grad")
            got = judge(returned, case, result(case, "float32"), every_profile=False)
            if got.failure is not None:
                failed.append(Failed(case, "float32", Profile.WIDE, got.failure, returned))
    assert name in diagnose(failed, [])[0].names


def test_a_short_sequence_is_judged_by_its_own_bound() -> None:
    """An error that the bound of a long neighbour would excuse leaves the bound of a short sequence."""
    case = every_case()["varlen-grad-accuracy"]
    right, limit = case.expected("float32"), case.bound("float32", Profile.WIDE).grad_q
    long, short = limit[:3], limit[3:]
    assert long.max() > 2 * short.max()
    moved = right.grad_q.astype(np.float32)
    moved[3:] += np.float32(long.max())
    found = {"grad_q": moved, "grad_k": right.grad_k.astype(np.float32), "grad_v": right.grad_v.astype(np.float32)}
    got = judge(Reply("returned", found), case, result(case, "float32"))
    assert got.failure is Failure.VALUE
    assert got.broken == "GRAD-33" or "grad_q" in got.message


def test_what_does_not_fit_is_refused() -> None:
    """A grad_output that does not fit is refused by the clause."""
    x = every_case()["varlen-grad-self"].inputs("float32")
    with pytest.raises(InvalidInput, match="grad_output is float32"):
        varlen_grad(**{**x.arrays, "grad_output": x.grad_output[:-1]})


def in_torch(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Any = False,
) -> Any:
    """A function with flash-attention's parameters, in PyTorch, one sequence after the other."""
    import torch

    found = []
    for n in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(int(cu[n]), int(cu[n + 1])) for cu in (cu_seqlens_q, cu_seqlens_k))
        own = [a.transpose(0, 1).repeat_interleave(q.shape[1] // a.shape[1], 0) for a in (q[rows], k[keys], v[keys])]
        scores = own[0] @ own[1].transpose(1, 2) * q.shape[2] ** -0.5
        if causal:
            seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(scores.shape[2] - scores.shape[1])
            scores = scores.masked_fill(~seen, float("-inf"))
        found.append((torch.softmax(scores, 2) @ own[2]).transpose(0, 1))
    return torch.cat(found)


def leaking_in_torch(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Any = False,
) -> Any:
    """A thousandth of a value of the next sequence is added, which moves the output by less than it moves dv."""
    return in_torch(q, k, v + 1e-3 * v.roll(-1, 0), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal)


@pytest.mark.slow(4)
@pytest.mark.parametrize(("name", "outcome"), [("in_torch", Outcome.PASSED), ("leaking_in_torch", Outcome.FAILED)])
def test_gradients_of_a_plug_in_are_those_of_autograd(name: str, outcome: Outcome) -> None:
    """``module:function@torch+gradients`` with flash-attention's signature passes, and fails with a leak."""
    pytest.importorskip("torch")
    plugged = plug_in(f"{__name__}:{name}@torch+gradients")
    function = describe(replace(plugged, operator="varlen", function_of=""))
    plugged = with_attributes(plugged, {"operator": function.operator})
    assert plugged.operator == "varlen_grad"
    keywords = describe(plugged).keywords
    for case in ("varlen-grad-causal-more-keys", "varlen-grad-grouped"):
        found = judge_case(
            Target(plugged, "cpu", "float32"), every_case()[case], Pool(in_process=True), keywords, Ledger(), {}, None
        )
        assert found.result.outcome is outcome, found.result.message or found.result.reason
