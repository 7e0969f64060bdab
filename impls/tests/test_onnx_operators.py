"""The ONNX operators: what each computes, and what each cannot express."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.impls import calls
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.onnx import IMPLEMENTATIONS, arrays
from attention_conformance.impls.onnx.graph import IR_VERSION
from attention_conformance.impls.onnx.sessions import bound, session

pytestmark = pytest.mark.slow

BY_NAME = {each.name: each for each in IMPLEMENTATIONS}

#: Shapes, grouped heads, a scale and a softcap, a mask of each rank that works, a bias, causal rows, lengths, weights.
STANDARD = (
    "plain", "plain-square", "plain-tall", "one-query", "values-tell-their-key", "width-64", "value-width-larger",
    "heads-4-over-2", "heads-6-over-3", "heads-4-over-1", "heads-grouped-causal", "scale-given", "softcap", "mask",
    "mask-all-true", "mask-broadcast-qk", "bias", "bias-minus-inf", "causal-square", "causal-more-keys", "empty-row",
    "softmax-one-hot", "softmax-shift-plus-625", "weights", "memory-transposed-mask",
)  # fmt: skip

#: Cases of the contrib operator, which has no mask per head, and aligns causal rows as we do only for equal lengths.
CONTRIB = ("plain-square", "scale-given", "causal-square")

AGREEING = {
    "onnx-attention23": STANDARD,
    "onnx-attention24": STANDARD,
    "onnx-reference": STANDARD,
    "ort-mha": (*CONTRIB, "plain", "plain-tall", "one-query", "value-width-larger", "bias", "width-64"),
    "ort-gqa": ("plain-square", "causal-square", "heads-grouped-causal"),
}


def reply(implementation: Implementation, name: str, dtype: str = "float32") -> calls.Reply:
    """The reply of an implementation to a case."""
    case = all_cases()[name]
    x = case.inputs(dtype)
    return calls.call(implementation, calls.Request.qkv("cpu", x.q, x.k, x.v, dict(x.keywords), case.memory))


def wrong(implementation: Implementation, name: str, dtype: str = "float32") -> list[str]:
    """The results of a case that are outside their bounds; all of them if nothing is returned."""
    case, answer = all_cases()[name], reply(implementation, name, dtype)
    if answer.status != "returned":
        return [answer.text]
    expected, bound = case.expected(dtype), case.bound(dtype, implementation.profile(dtype))
    pairs = ((n, answer.results[n], getattr(expected, n), getattr(bound, n)) for n in case.results())
    return [n for n, got, right, limit in pairs if not compare(n, got, right, limit, dtype).ok]


@pytest.mark.parametrize("name", AGREEING)
def test_agrees_with_the_reference(name: str) -> None:
    """In float32 every operator is within its bounds on the inputs that it supports."""
    found = {case: wrong(BY_NAME[name], case) for case in AGREEING[name]}
    assert {case: what for case, what in found.items() if what} == {}


@pytest.mark.parametrize("name", ["onnx-attention23", "onnx-attention24", "onnx-reference"])
def test_a_scale_that_float32_rounds_is_refused_for_float64(name: str) -> None:
    """0.3 is not a float32, so a float64 call with that scale is unsupported rather than silently less exact."""
    answer = reply(BY_NAME[name], "scale-given", "float64")
    assert (answer.status, "float32" in answer.text) == ("unsupported", True)


@pytest.mark.parametrize("name", ["onnx-attention24", "onnx-reference"])
def test_key_lengths_reach_opset_24(name: str) -> None:
    """Key lengths are an input of opset 24, and no keyword of opset 23."""
    assert wrong(BY_NAME[name], "lengths") == []
    assert "kv_lengths" not in calls.describe(BY_NAME["onnx-attention23"]).keywords


def test_causal_with_key_lengths_is_unsupported() -> None:
    """Opset 24 moves the causal diagonal to the last valid key, which is not what is_causal means here."""
    assert reply(BY_NAME["onnx-attention24"], "lengths-causal").status == "unsupported"


@pytest.mark.parametrize("name", ["onnx-attention23", "onnx-attention24", "onnx-reference"])
def test_mask_with_bias_is_unsupported(name: str) -> None:
    """The standard operator has one attn_mask."""
    assert reply(BY_NAME[name], "combined-mask-bias-minus-inf").status == "unsupported"


def test_grouped_heads_are_unsupported_by_multi_head_attention() -> None:
    """The contrib operator has one number of heads."""
    assert reply(BY_NAME["ort-mha"], "heads-4-over-2").status == "unsupported"


def test_a_wrong_operator_is_caught() -> None:
    """The comparison used here can fail: the last causal row of MultiHeadAttention sees every key."""
    assert wrong(BY_NAME["ort-mha"], "causal-more-keys") == ["output"]


def test_a_run_that_fails_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's message about a failing run is in the exception, and not printed as well."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["a", "b"], ["c"])],
            "product",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "ab"],
            [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=IR_VERSION,
    )
    run = bound(session(model.SerializeToString(), "cpu"), ["c"], "cpu")
    wide = arrays.put(np.zeros((2, 3), np.float32), "cpu")
    with pytest.raises(RuntimeError, match="dimension mismatch"):
        run(wide, wide)
    assert capfd.readouterr().err == ""
