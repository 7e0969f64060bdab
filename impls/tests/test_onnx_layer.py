"""The multi-head layer with ONNX Runtime's own operators: what each computes, and what each cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from attention_conformance.impls import calls
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.operators import MHA
from attention_conformance.impls.tests.layer_problems import (
    FOUR_WORDS,
    PROBLEMS,
    assert_four_words,
    assert_right,
    four_words,
    problem,
)

pytestmark = pytest.mark.slow

#: Unsupported by both operators: weights, a mask that differs between heads or repeats rows, causal rows with Sq ≠ Sk.
BEYOND = {"mask", "mask-rows", "causal-cross"} | {
    name for name, problem in PROBLEMS.items() if "return_weights" in problem
}
MULTI_HEAD = sorted(PROBLEMS.keys() - BEYOND)
#: Attention also has only one input, and one bias for all three projections, without which it crashes.
PACKED = [name for name in MULTI_HEAD if not PROBLEMS[name].get("cross") and "parts" not in PROBLEMS[name]]


def implementation(builder: str) -> Implementation:
    """A record for a builder."""
    return Implementation(
        name=f"test-{builder}",
        target=f"attention_conformance.impls.onnx.layer:{builder}",
        operator=MHA.name,
        framework=Framework.ONNXRUNTIME,
        prepare="attention_conformance.impls.onnx.sessions:prepare",
    )


def reply(builder: str, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> calls.Reply:
    """The reply of an operator on the CPU."""
    given = {name: arrays[name] for name in MHA.arguments}
    keywords = {name: array for name, array in arrays.items() if name not in given} | dict(options)
    return calls.call(implementation(builder), calls.Request("cpu", given, keywords))


def check(builder: str, name: str, dtype: str) -> None:
    """Assert that the operator is right on a problem, computed in float32, and leaves its inputs unchanged."""
    arrays, options = problem(name, dtype)
    answer = reply(builder, arrays, options)
    assert (answer.status, answer.modified) == ("returned", ()), answer.text
    assert_right(answer.results["output"], arrays, options, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", MULTI_HEAD)
def test_multi_head(name: str, dtype: str) -> None:
    """MultiHeadAttention between MatMuls is right wherever it expresses the problem."""
    check("multi_head", name, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", PACKED)
def test_packed(name: str, dtype: str) -> None:
    """Attention, with the three weights side by side, is right wherever it expresses the problem."""
    check("packed", name, dtype)


@pytest.mark.parametrize("name", FOUR_WORDS)
def test_four_words(name: str) -> None:
    """Source 002's example, which has no batch axis and no biases, gives the documented numbers."""
    options, first = FOUR_WORDS[name]
    arrays = {key: array.astype("float32") for key, array in four_words().items()}
    mask = {key: options[key] for key in options if key == "mask"}
    answer = reply("multi_head", arrays | mask, {"heads": options["heads"]})
    assert_four_words(answer.results["output"], first)


@pytest.mark.parametrize("builder", ["multi_head", "packed"])
@pytest.mark.parametrize("name", ["mask", "mask-rows"])
def test_other_masks_are_unsupported(name: str, builder: str) -> None:
    """There is no input for a mask that differs between heads or repeats batches."""
    assert reply(builder, *problem(name, "float32")).status == "unsupported"


@pytest.mark.parametrize("builder", ["multi_head", "packed"])
def test_mask_beside_lengths_is_unsupported(builder: str) -> None:
    """Masks and lengths share one input."""
    arrays, options = problem("mask-padding", "float32")
    answer = reply(builder, arrays | {"kv_lengths": np.array([5, 2])}, options)
    assert (answer.status, "lengths" in answer.text) == ("unsupported", True)


def test_one_of_three_biases_is_unsupported_by_attention() -> None:
    """Attention has one bias input for all three projections; MultiHeadAttention has MatMuls before it."""
    assert reply("packed", *problem("some-biases", "float32")).status == "unsupported"


@pytest.mark.parametrize("builder", ["multi_head", "packed"])
def test_heads_that_do_not_divide_are_refused(builder: str) -> None:
    """ONNX Runtime refuses heads that do not divide the width, and the reply says so."""
    arrays, options = problem("plain", "float32")
    assert reply(builder, arrays, options | {"heads": 3}).status == "raised"


def test_absent_biases_are_not_put_in() -> None:
    """Attention without biases gets none, though ONNX Runtime then crashes: an adapter does not repair."""
    from attention_conformance.impls.onnx.graph import Input
    from attention_conformance.impls.onnx.layer import packed

    shapes = {"x_q": (2, 5, 8), "w_q": (8, 8), "w_k": (8, 8), "w_v": (8, 8)}
    model = packed(**{name: Input(name, "float32", shape) for name, shape in shapes.items()}, heads=2)  # type: ignore[arg-type]
    [node] = [node for node in model.graph.node if node.op_type == "Attention"]
    assert list(node.input) == ["x_q", "w_qkv"]


@pytest.mark.parametrize("builder", ["multi_head", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scale_by_model_width_is_rejected(dtype: str, builder: str) -> None:
    """The comparison used here detects 1/√(model width) instead of 1/√(head width)."""
    arrays, options = problem("plain", dtype)
    answer = reply(builder, arrays, options | {"scale": 8**-0.5})
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(answer.results["output"], arrays, options, "float32")


def test_a_wrong_operator_is_caught() -> None:
    """The comparison used here can fail: MultiHeadAttention aligns causal rows with Sq ≠ Sk differently."""
    with pytest.raises(AssertionError, match="times the limit"):
        check("multi_head", "causal-cross", "float32")
