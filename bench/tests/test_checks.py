"""The checks of a timed call, operator by operator: right results pass, and a wrong element is invalid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.validity import checks
from attention_conformance.bench.validity.checks import Call, Invalid, check, checked_heads, checked_rows
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload, parse
from attention_conformance.conformance.cases.parts import sample
from attention_conformance.conformance.spec import gradients
from attention_conformance.conformance.spec import merge as merge_reference
from attention_conformance.conformance.spec import mha as layers
from attention_conformance.conformance.spec import mha_gradients as layer_gradients
from attention_conformance.conformance.spec import paged as paged_reference
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec import varlen as varlen_reference
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow

Results = dict[str, np.ndarray]

#: A workload of every operator, with options that a check must split.
NAMES = (
    "prefill-b2h4g2d8v6s40-w5-cap20-bias-pad",
    "cross-b2h2d8s40k9",
    "decode-b2h4g2d8v6s3k10",
    "decode-b1h2d8s1k10-w4",
    "mha-b2h2d8s40",
    "mha-b2h2d8s40-causal-bias-pad",
    "sublayer-b2h2d8s40-causal-pad",
    "merge-b2h3d8s40k5",
    "varlen-b3h4g2d8v6s40-causal-cap20",
    "varlen-b12h2d8s9-w3-code",
    "paged-b3h4g2d8v6s3k40-w20-p4",
    "paged-b12h2d8s5k40-chat-mixed",
    "blocks-b2h4g2d8v6s42-p4",
    "prefill-b2h4g2d8v6s9-w5-cap20-bias-pad-grad",
    "cross-b1h2d8s9k5-grad",
    "mha-b2h2d8s9-grad",
    "mha-b2h2d8s9-causal-bias-pad-grad",
)


def called(workload: Workload, dtype: str = "float32") -> Call:
    """A workload with its first input set."""
    return Call(workload, *arguments.make(workload, dtype, 0), dtype, Profile.WIDE)


def right(call: Call) -> Results:
    """The right results, from the whole reference, in the dtype of the call."""
    w, x, options = call.workload, call.arrays, dict(call.keywords)
    results: Results
    if w.operator == "sdpa_grad":
        given: dict[str, Any] = {**x, **options}
        results = gradients.sdpa_grad(**given).gradients
    elif w.operator == "mha_grad":
        results = layer_gradients.mha_grad(*x.values(), **options).gradients
    elif w.operator == "mha":
        results = {"output": layers.mha(*x.values(), **options).output}
    elif w.operator == "merge":
        merged = merge_reference.merge(*x.values())
        results = {"output": merged.output, "lse": merged.lse}
    elif w.operator in ("varlen", "paged"):
        whole = varlen_reference.varlen if w.operator == "varlen" else paged_reference.paged
        results = {"output": whole(*x.values(), **options).output}
    elif w.operator == "sublayer":
        results = {"output": layers.sublayer(*x.values(), **options).output}
    elif w.kind == "decode":
        k = np.concatenate([options.pop("past_key"), x["k"]], axis=2)
        v = np.concatenate([options.pop("past_value"), x["v"]], axis=2)
        output = reference.sdpa(x["q"], k, v, causal_offset=w.past, **options).output
        results = {"output": output, "present_key": k, "present_value": v}
    else:
        results = {"output": reference.sdpa(*x.values(), **options).output}
    return {name: array.astype(np.dtype(call.dtype)) for name, array in results.items()}


@pytest.mark.parametrize("name", NAMES)
def test_right_results_pass(name: str) -> None:
    """The whole reference, rounded once, is inside the bound of every part that is checked."""
    call = called(parse(name))
    for seed in (0, 1):
        assert 0 < check(call, right(call), seed) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_element_of_any_result_is_invalid(name: str) -> None:
    """The last element of each result is off by a thousandth of the largest number of all (grad_b_k is zero)."""
    call = called(parse(name))
    off = max(float(np.abs(array).max()) for array in right(call).values()) / 1000
    for result in right(call):
        wrong = right(call)
        wrong[result].flat[-1] += np.float32(off)
        with pytest.raises(Invalid) as error:
            check(call, wrong, seed=1)
        copied = result.startswith("present")
        assert copied or error.value.clause == checks.blame(call.workload.operator).accuracy


@pytest.mark.parametrize("name", NAMES)
def test_results_of_other_inputs_are_invalid(name: str) -> None:
    """A function that returns an earlier result is not timed."""
    call = called(parse(name))
    other = Call(call.workload, *arguments.make(call.workload, "float32", 1), "float32", Profile.WIDE)
    with pytest.raises(Invalid):
        check(call, right(other), seed=0)


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("prefill-b1h2d8s9", "SDPA-25"),
        ("mha-b1h2d8s9", "MHA-18"),
        ("sublayer-b1h2d8s9", "SUB-9"),
        ("merge-b1h2d8s9k3", "MERGE-12"),
        ("varlen-b2h2d8s9", checks.blame("varlen").accuracy),
        ("paged-b2h2d8s9k3", checks.blame("paged").accuracy),
        ("prefill-b1h2d8s9-grad", "GRAD-9"),
    ],
)
def test_a_wrong_value_breaks_the_accuracy_clause_of_its_operator(name: str, clause: str) -> None:
    """The message counts the wrong elements and shows the worst."""
    call = called(parse(name))
    wrong = {result: 2 * array for result, array in right(call).items()}
    with pytest.raises(Invalid, match=r"checked elements.* worst: expected") as error:
        check(call, wrong, seed=0)
    assert error.value.clause == clause


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("prefill-b1h2d8s9", "SDPA-1"),
        ("mha-b1h2d8s9", "MHA-1"),
        ("sublayer-b1h2d8s9", "SUB-7"),
        ("merge-b1h2d8s9k3", "MERGE-1"),
        ("prefill-b1h2d8s9-grad", "GRAD-1"),
    ],
)
def test_a_wrong_shape_breaks_the_shape_clause_of_its_operator(name: str, clause: str) -> None:
    """A result with a missing row is not compared."""
    call = called(parse(name))
    results = right(call)
    last = list(results)[-1]
    with pytest.raises(Invalid, match="expected") as error:
        check(call, {**results, last: results[last][..., :-1, :]}, seed=0)
    assert error.value.clause == clause


def test_a_missing_result_is_invalid() -> None:
    """A gradient that is not returned is not right."""
    call = called(parse("prefill-b1h2d8s9-grad"))
    results = right(call)
    del results["grad_v"]
    with pytest.raises(Invalid, match="GRAD-1: grad_v has shape None"):
        check(call, results, seed=0)


def test_a_wider_dtype_breaks_the_dtype_clause() -> None:
    """Float64 gradients of float32 inputs are invalid."""
    call = called(parse("prefill-b1h2d8s9-grad"))
    wide = {name: array.astype(np.float64) for name, array in right(call).items()}
    with pytest.raises(Invalid, match="GRAD-10: grad_q is float64"):
        check(call, wide, seed=0)


def _forget_the_past(call: Call) -> Results:
    return {**right(call), "output": reference.sdpa(*call.arrays.values(), is_causal=True).output.astype(np.float32)}


def _top_left(call: Call) -> Results:
    """Causal order without the offset of the past: row i sees keys 0 to i of all keys."""
    k, v = (right(call)[name] for name in ("present_key", "present_value"))
    return {**right(call), "output": reference.sdpa(call.arrays["q"], k, v, is_causal=True).output.astype(np.float32)}


def _new_first(call: Call) -> Results:
    """The cache with the new keys before the past ones."""
    results = right(call)
    rolled = {name: np.roll(results[name], 3, axis=2) for name in ("present_key", "present_value")}
    return {**results, **rolled}


def _rounded_cache(call: Call) -> Results:
    """The cache in half precision."""
    results = right(call)
    return {**results, "present_key": results["present_key"].astype(np.float16).astype(np.float32)}


@pytest.mark.parametrize("wrong", [_forget_the_past, _top_left, _new_first, _rounded_cache])
def test_faults_of_decoding_are_invalid(wrong: Callable[[Call], Results]) -> None:
    """The faults are past keys that are not seen, positions from 0, and a cache in another order or precision."""
    call = called(parse("decode-b2h4g2d8v6s3k10"))
    with pytest.raises(Invalid):
        check(call, wrong(call), seed=0)


def test_only_the_checked_heads_of_gradients_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key head a check, the first head is checked before the timing and the last after it."""
    monkeypatch.setattr(checks, "GRADIENT_SCORES", 1)
    call = called(parse("prefill-b1h4g2d8s9-grad"))
    wrong = right(call)
    wrong["grad_q"][:, 2] += 1  # of the second key head
    assert check(call, wrong, seed=0) <= 1
    with pytest.raises(Invalid, match="of grad_q are outside"):
        check(call, wrong, seed=1)


@pytest.mark.parametrize("row", [0, -1])
def test_a_wrong_first_or_last_row_is_invalid(row: int) -> None:
    """The first and the last row are always checked."""
    call = called(parse("prefill-b2h4g2d8v6s129"))
    wrong = right(call)
    wrong["output"][0, 0, row, 0] += np.float32(1e-3)
    with pytest.raises(Invalid):
        check(call, wrong, seed=0)


def test_few_rows_are_all_checked() -> None:
    """Up to the requested number, every row is checked."""
    assert sample(5, 32, 0).tolist() == [0, 1, 2, 3, 4]
    assert len(set(sample(1000, 32, 0).tolist())) == 32


def test_fewer_rows_of_longer_sequences_are_checked() -> None:
    """A check of a long sequence costs no more than that of a short one, until the fewest rows are reached."""
    assert [checked_rows(Workload(1, 8, 64, length)) for length in (128, 512, 1024, 65536)] == [32, 32, 16, 8]


def test_fewer_heads_of_longer_gradients_are_checked() -> None:
    """All heads of a short sequence are checked, and one of a long one."""
    lengths = (128, 512, 1024, 4096)
    assert [checked_heads(Workload(1, 8, 64, length, is_gradient=True)) for length in lengths] == [8, 8, 2, 1]


def test_every_operator_of_a_workload_has_a_check() -> None:
    """No result is timed unchecked."""
    assert set(checks._EXPECTED) == {"sdpa", "mha", "sublayer", "sdpa_grad", "mha_grad", "merge", "varlen", "paged"}
