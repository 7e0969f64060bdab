"""(GRAD-36 to 43) Gradients of a merge: the reference against differences and by hand, variants, faults, plug-ins."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import merge_gradients as bounds
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.evidence.merge_gradient_variants import BACKWARD
from attention_conformance.conformance.faults.kill_matrix import LEAST, judge_faults
from attention_conformance.conformance.faults.models.merge_gradients import MergeBackward
from attention_conformance.conformance.faults.registry import FAULTS, faults_of
from attention_conformance.conformance.faults.trials import Failed
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.spec.merge import merge
from attention_conformance.conformance.spec.merge_gradients import MergeGradExpected, merge_grad
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.test_varlen import reply, result
from attention_conformance.impls.calls import Reply, describe
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

Array = np.ndarray

CASES = [case for case in every_case().values() if case.operator == "merge_grad"]
EXAMPLES = tomllib.loads(DATA.read_text(encoding="utf-8"))["merge_gradients"]
by_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])


def fractions(numbers: Any) -> Any:
    """Numbers of an example as nested fractions."""
    return [fractions(each) for each in numbers] if isinstance(numbers, list) else Fraction(numbers)


def array(numbers: Any) -> Array:
    """Numbers of an example in float64."""
    return np.array(fractions(numbers), float)


@by_example
def test_examples_follow_from_their_parts(example: dict[str, Any]) -> None:
    """Weights, output and gradients follow exactly from the parts, and rejected results differ."""
    x = {
        name: fractions(value)
        for name, value in example.items()
        if name not in ("name", "shows", "clauses", "rejected")
    }
    total = sum(x["powers"])
    weights = [power / total if total else Fraction(0) for power in x["powers"]]
    columns = range(len(x["output"]))
    assert weights == x["weights"]
    used = [out if w else [Fraction(0)] * len(columns) for w, out in zip(weights, x["outputs"], strict=True)]
    assert [sum(w * out[d] for w, out in zip(weights, used, strict=True)) for d in columns] == x["output"]
    assert [[w * x["grad_output"][d] for d in columns] for w in weights] == x["grad_outputs"]
    pulls = [sum(x["grad_output"][d] * (out[d] - x["output"][d]) for d in columns) for out in used]
    assert [w * (pull + x["grad_lse"]) for w, pull in zip(weights, pulls, strict=True)] == x["grad_lses"]
    for wrong in example["rejected"]:
        (name,) = wrong.keys() - {"because"}
        assert fractions(wrong[name]) != x[name]


@by_example
def test_the_reference_gives_the_examples(example: dict[str, Any]) -> None:
    """The reference is within the bound of float64, and gives no rejected result."""
    with np.errstate(divide="ignore"):
        lses = np.log(array(example["powers"]))
    given = [array(example[name]) for name in ("outputs", "grad_output", "grad_lse")]
    outputs, g, h = given[0][:, None, None, None], given[1][None, None, None], given[2][None, None, None]
    found = merge_grad(outputs, lses[:, None, None, None], g, grad_lse=h)
    assert agrees(found, array(example["grad_outputs"]), array(example["grad_lses"]))
    for wrong in example["rejected"]:
        printed = {name: array((example | wrong)[name]) for name in ("grad_outputs", "grad_lses")}
        assert not agrees(found, printed["grad_outputs"], printed["grad_lses"])


def agrees(found: MergeGradExpected, grad_outputs: Array, grad_lses: Array) -> bool:
    """Whether gradients of one row are within the bound of the reference."""
    bound = bounds.bound(found, "float64", Profile.WIDE)
    pairs = (("grad_outputs", grad_outputs[:, None, None, None]), ("grad_lses", grad_lses[:, None, None, None]))
    return all(compare(n, got, getattr(found, n), getattr(bound, n), "float64").ok for n, got in pairs)


@pytest.mark.parametrize(
    "name", ["two", "lse", "lse-alone", "three", "base", "order-ascending", "empty-some-rows", "empty-all-row", "signs"]
)
def test_the_reference_is_what_differences_give(name: str) -> None:
    """Differences of Σ g · output + Σ h · lse over rows with a key agree, in random directions of outputs and lses."""
    x = every_case()[f"merge-grad-{name}"].inputs("float32")
    arrays = x.outputs.astype(np.float64), x.lses.astype(np.float64)
    g, h = x.grad_output.astype(np.float64), x.keywords.get("grad_lse", np.zeros(x.lses.shape[1:])).astype(np.float64)
    found = merge_grad(*arrays, g, grad_lse=h)

    def loss(outputs: Array, lses: Array) -> float:
        merged = merge(outputs, lses)
        return float(np.sum(g * merged.output) + np.sum(h * np.where(np.isneginf(merged.lse), 0, merged.lse)))

    rng = np.random.default_rng(0)
    for _ in range(3):
        directions = [rng.standard_normal(each.shape) for each in arrays]
        sides = [loss(*(a + s * d for a, d in zip(arrays, directions, strict=True))) for s in (1e-5, -1e-5)]
        slope = sum(np.sum(a * d) for a, d in zip((found.grad_outputs, found.grad_lses), directions, strict=True))
        assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("variant", "profile"), BACKWARD.items(), ids=[each.__name__ for each in BACKWARD])
def test_correct_variants_pass_every_case(variant: Any, profile: Profile) -> None:
    """Variants at once, in base 2, by delta and in steps pass under the profile of what each rounds."""
    for case in CASES:
        for dtype in case.dtypes:
            returned = reply(variant, case, dtype, "merge_grad")
            got = judge(returned, case, replace(result(case, dtype), profile=profile), every_profile=False)
            assert got.outcome in (Outcome.PASSED, Outcome.ADVISORY), (case.name, dtype, got.message)


def with_stored_weights(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Any:
    """Gradients at once, with weights in the dtype of the outputs: exactly what profile fused allows."""
    weights = np.exp(lses - np.logaddexp.reduce(lses, axis=0)).astype(outputs.dtype).astype(np.float32)
    g, parts = grad_output.astype(np.float32), outputs.astype(np.float32)
    merged = (weights[..., None] * parts).sum(axis=0)
    pulls = (g * (parts - merged)).sum(axis=-1) + (0 if grad_lse is None else grad_lse)
    return (weights[..., None] * g).astype(outputs.dtype), (weights * pulls).astype(lses.dtype)


@pytest.mark.parametrize("name", ["unequal", "lse", "three", "base"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_weights_may_underflow(name: str, dtype: str) -> None:
    """Half-precision weights as small as e⁻⁸⁰ are inside the bound of profile fused and outside that of wide."""
    case = every_case()[f"merge-grad-{name}"]
    returned = reply(with_stored_weights, case, dtype, "merge_grad")
    got = {
        profile: judge(returned, case, replace(result(case, dtype), profile=profile), every_profile=False)
        for profile in (Profile.FUSED, Profile.WIDE)
    }
    assert got[Profile.FUSED].outcome in (Outcome.PASSED, Outcome.ADVISORY), got[Profile.FUSED].message
    assert got[Profile.WIDE].outcome is Outcome.FAILED


def test_every_fault_is_caught_twice() -> None:
    """Each fault is caught by at least two cases."""
    kills = judge_faults(Pool(in_process=True), [fault.name for fault in faults_of("merge_grad")])
    assert {kill.fault: list(kill.caught) for kill in kills if len(kill.caught) < LEAST} == {}
    assert len(kills) >= 20


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", [fault.name for fault in faults_of("merge_grad")])
def test_a_fault_is_named(name: str) -> None:
    """The failures of all cases name the fault, in float32 and, for faults of half precision, in bfloat16."""
    failed = []
    for case in CASES:
        for dtype in ("float32", "bfloat16"):
            if dtype in case.dtypes:
                returned = reply(FAULTS[name].make(), case, dtype, "merge_grad")
                got = judge(returned, case, result(case, dtype), every_profile=False)
                if got.failure is not None:
                    failed.append(Failed(case, dtype, Profile.WIDE, got.failure, returned))
    assert name in diagnose(failed, [])[0].names


def test_no_profile_excuses_a_sum_in_half_precision() -> None:
    """A half-precision sum of products of one sign fails even under the profile that stores every intermediate."""
    case = every_case()["merge-grad-width-1024"]
    returned = reply(FAULTS["merge-gradient-sum-in-half"].make(), case, "bfloat16", "merge_grad")
    got = judge(returned, case, replace(result(case, "bfloat16"), profile=Profile.STORAGE))
    assert got.failure is Failure.VALUE


def test_a_light_part_is_judged_by_its_own_bound() -> None:
    """An error that the bound of a part with a large weight would excuse leaves the bound of a light part."""
    case = every_case()["merge-grad-unequal-some"]
    right, limit = case.expected("float32"), case.bound("float32", Profile.WIDE).grad_lses
    light = right.forward.weights < 1e-2
    assert limit[~light].min() > 2 * limit[light].max()
    moved = np.where(light, right.grad_lses + limit[~light].min(), right.grad_lses).astype(np.float32)
    found = {"grad_outputs": right.grad_outputs.astype(np.float32), "grad_lses": moved}
    got = judge(Reply("returned", found), case, result(case, "float32"))
    assert got.failure is Failure.VALUE
    assert "grad_lses" in got.message


def test_gradients_of_log_sum_exps_are_in_float32() -> None:
    """Gradients of lses are float32 next to outputs in half precision; other dtypes are refused by GRAD-36."""
    case = every_case()["merge-grad-dtype"]
    right = reply(MergeBackward(), case, "bfloat16", "merge_grad")
    assert str(right.results["grad_lses"].dtype) == "float32"
    wrong = reply(FAULTS["merge-gradient-lses-in-dtype-of-outputs"].make(), case, "bfloat16", "merge_grad")
    got = judge(wrong, case, result(case, "bfloat16"))
    assert (got.failure, got.broken) == (Failure.DTYPE, "GRAD-36")


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"lses": np.zeros((2, 2, 2, 4), np.float32)}, "MERGE-15"),
        ({"grad_output": np.zeros((2, 2, 4, 8), np.float32)}, "GRAD-42"),
        ({"grad_output": np.zeros((2, 2, 5, 8), np.float16)}, "GRAD-42"),
        ({"grad_lse": np.zeros((2, 1, 5), np.float32)}, "GRAD-42"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Array], clause: str) -> None:
    """Arguments that do not fit are refused by their clause."""
    x = every_case()["merge-grad-lse"].inputs("float32")
    with pytest.raises(InvalidInput) as raised:
        merge_grad(**{**x.arrays, **x.keywords, **change})
    assert raised.value.clause == clause


def in_torch(outputs: Any, lses: Any) -> Any:
    """A merge whose gradients are right: numbers replace −inf where no part has a key."""
    import torch

    none = torch.isneginf(lses).all(0)
    used = lses.masked_fill(none, 0)
    lse = torch.logsumexp(used, 0)
    parts = outputs.to(lses.dtype).masked_fill(torch.isneginf(lses)[..., None], 0)
    merged = (torch.exp(used - lse)[..., None] * parts).sum(0)
    return merged.to(outputs.dtype), lse.masked_fill(none, -torch.inf)


def masked_in_torch(outputs: Any, lses: Any) -> Any:
    """A right merge whose gradients are NaN where no part has a key, as it masks after the logarithm."""
    import torch

    powers = torch.exp(lses - torch.nan_to_num(lses.max(0).values, neginf=0.0))
    total = powers.sum(0)
    lse = torch.nan_to_num(lses.max(0).values, neginf=0.0) + torch.log(total)
    parts = outputs.to(lses.dtype).masked_fill(torch.isneginf(lses)[..., None], 0)
    merged = (powers[..., None] * parts).sum(0) / total[..., None]
    return merged.masked_fill((total == 0)[..., None], 0).to(outputs.dtype), lse


def detached_in_torch(outputs: Any, lses: Any) -> Any:
    """A merge whose weights are constants to autograd."""
    return in_torch(outputs, lses.detach() + 0 * lses.nan_to_num(0.0, 0.0, 0.0))


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("in_torch", {}),
        ("masked_in_torch", {"merge-grad-empty-all-row"}),
        ("detached_in_torch", {"merge-grad-lse", "merge-grad-three"}),
    ],
)
def test_gradients_of_a_plug_in_are_those_of_autograd(name: str, wrong: set[str]) -> None:
    """``module:function@torch+gradients`` of a merge is right, has NaN without a key, or lacks weights' gradients."""
    pytest.importorskip("torch")
    plugged = plug_in(f"{__name__}:{name}@torch+gradients")
    function = describe(replace(plugged, operator="merge", function_of=""))
    plugged = with_attributes(plugged, {"operator": function.operator})
    assert plugged.operator == "merge_grad"
    keywords = describe(plugged).keywords
    assert keywords == {"grad_lse"}
    failed = set()
    for case in ("merge-grad-lse", "merge-grad-three", "merge-grad-empty-first", "merge-grad-empty-all-row"):
        target = Target(plugged, "cpu", "float32")
        found = judge_case(target, every_case()[case], Pool(in_process=True), keywords, Ledger(), {}, None)
        assert found.result.outcome in (Outcome.PASSED, Outcome.FAILED), found.result.reason
        failed |= {case} if found.result.outcome is Outcome.FAILED else set()
    assert wrong <= failed if wrong else not failed
