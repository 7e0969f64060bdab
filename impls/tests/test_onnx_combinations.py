"""The ONNX operators agree with the reference for every combination of keywords that they can express."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import numpy as np

from attention_conformance.impls.calls import Reply, Request, call, describe
from attention_conformance.impls.contract import Implementation, Profile
from attention_conformance.impls.onnx import IMPLEMENTATIONS
from attention_conformance.impls.tests.within import assert_within

pytestmark = pytest.mark.slow

BY_NAME = {each.name: each for each in IMPLEMENTATIONS}
OPERATORS = ("onnx-attention23", "onnx-attention24", "onnx-reference", "ort-mha", "ort-gqa")


def arrays(
    dtype: str = "float32", *, hq: int = 2, sq: int = 7, sk: int = 7
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k and v of these sizes."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in ((2, hq, sq, 8), (2, 2, sk, 8), (2, 2, sk, 8)))
    return q, k, v


def noise(*shape: int) -> np.ndarray:
    """Random numbers for a bias."""
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def holes(*shape: int) -> np.ndarray:
    """A mask in which every row has a key."""
    mask = np.random.default_rng(3).random(shape) > 0.4
    mask[..., 0] = True
    return mask


def run(implementation: Implementation, qkv: Any, keywords: dict[str, Any]) -> Reply:
    """One call on the CPU."""
    return call(implementation, Request.qkv("cpu", qkv[0], qkv[1], qkv[2], keywords))


#: Combinations of keywords, and the sizes that differ from those of ``arrays``.
COMBINATIONS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "plain": ({}, {}),
    "unequal lengths": ({}, {"sq": 5}),
    "grouped": ({}, {"hq": 4}),
    "causal": ({"is_causal": True}, {}),
    "causal, more queries": ({"is_causal": True}, {"sk": 5}),
    "mask": ({"mask": holes(2, 2, 7, 7)}, {}),
    "mask for all heads": ({"mask": holes(2, 1, 7, 7)}, {}),
    "mask of keys": ({"mask": holes(2, 1, 1, 7)}, {}),
    "mask, causal": ({"mask": holes(2, 1, 7, 7), "is_causal": True}, {}),
    "bias": ({"bias": noise(2, 2, 7, 7)}, {}),
    "bias for all heads, causal": ({"bias": noise(1, 1, 7, 7), "is_causal": True}, {}),
    "lengths": ({"kv_lengths": np.array([3, 7])}, {}),
    "lengths, causal": ({"kv_lengths": np.array([3, 7]), "is_causal": True}, {}),
    "scale": ({"scale": 0.3}, {}),
    "softcap": ({"softcap": 2.0}, {}),
    "softcap, bias": ({"softcap": 2.0, "bias": noise(2, 2, 7, 7)}, {}),
    "window": ({"window": (2, 0), "is_causal": True}, {}),
    "window, right side": ({"window": (2, 3), "is_causal": True}, {}),
    "open window": ({"window": (None, None)}, {}),
    "weights": ({"return_weights": True}, {}),
    "weights, causal": ({"return_weights": True, "is_causal": True}, {}),
}

#: Combinations that the operator refuses or computes differently; recorded as deviations elsewhere.
KNOWN_DEVIATIONS = {
    ("onnx-attention23", "mask of keys"),
    ("onnx-attention24", "mask of keys"),
}

#: Combinations that an operator accepts but cannot express.
UNSUPPORTED = {
    ("onnx-attention24", "lengths, causal"),
    ("onnx-reference", "lengths, causal"),
    ("ort-mha", "grouped"),
    ("ort-mha", "mask"),
    ("ort-gqa", "unequal lengths"),
    ("ort-gqa", "causal, more queries"),
}

PAIRS = [
    (name, combination)
    for name in OPERATORS
    for combination, (keywords, _) in COMBINATIONS.items()
    if keywords.keys() <= describe(BY_NAME[name]).keywords and (name, combination) not in KNOWN_DEVIATIONS
]


@pytest.mark.parametrize(("name", "combination"), PAIRS)
def test_operator_agrees_with_the_reference(name: str, combination: str) -> None:
    """The output, and the weights if requested, are the reference's in float32, or the call is unsupported."""
    keywords, sizes = COMBINATIONS[combination]
    qkv = arrays("float32", **sizes)
    reply = run(BY_NAME[name], qkv, keywords)
    assert (reply.status == "unsupported") == ((name, combination) in UNSUPPORTED), reply.text
    if reply.status == "unsupported":
        return
    assert reply.status == "returned", reply.text
    assert reply.results["output"].dtype == np.float32
    assert_within(reply.results, *qkv, keywords)
    assert not reply.modified


@pytest.mark.parametrize("name", OPERATORS)
def test_float16_comes_back_as_float16(name: str) -> None:
    """Half precision goes in and comes out unchanged."""
    qkv = arrays(dtype="float16")
    reply = run(BY_NAME[name], qkv, {})
    assert reply.results["output"].dtype == np.float16
    assert_within(reply.results, *qkv, {}, Profile.STORAGE)


def test_float64_softcap_that_float32_cannot_hold_is_refused() -> None:
    """The operator's attributes are float32, so softcap = 0.3 in a float64 call is unsupported, not rounded."""
    reply = run(BY_NAME["onnx-reference"], arrays(dtype="float64"), {"softcap": 0.3})
    assert reply.status == "unsupported"
    assert "float32 attribute" in reply.text


def test_float64_number_that_float32_holds_is_used() -> None:
    """A scale of 0.25 in a float64 call is exact."""
    qkv = arrays(dtype="float64")
    reply = run(BY_NAME["onnx-reference"], qkv, {"scale": 0.25})
    assert_within(reply.results, *qkv, {"scale": 0.25})


def test_window_without_causal_is_unsupported_by_gqa() -> None:
    """local_window_size exists only for causal calls."""
    reply = run(BY_NAME["ort-gqa"], arrays(), {"window": (2, 0)})
    assert reply.status == "unsupported"
    assert "causal" in reply.text


@pytest.mark.parametrize("name", ["onnx-attention24", "ort-mha"])
def test_repeated_runs_do_not_share_their_results(name: str) -> None:
    """A result keeps its value when the same prepared function runs again."""
    qkv = arrays()
    reply = call(BY_NAME[name], Request.qkv("cpu", qkv[0], qkv[1], qkv[2], repeats=3))
    assert reply.unequal == ()
    other = run(BY_NAME[name], tuple(2 * array for array in qkv), {})
    assert_within(reply.results, *qkv, {})
    assert not np.array_equal(other.results["output"], reply.results["output"])
