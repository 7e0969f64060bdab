"""The reference gives the expected results of onnx's node tests of ``Attention``, or a clause says why not."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")

from attention_conformance.conformance.spec import sdpa as reference  # noqa: E402
from attention_conformance.conformance.spec.clauses import clauses  # noqa: E402
from attention_conformance.conformance.tests.first_order import agree, limits  # noqa: E402
from attention_conformance.conformance.tests.onnx_nodes import NodeTest, node_tests, outputs, translate  # noqa: E402

pytestmark = pytest.mark.slow

DATA = Path(__file__).with_name("onnx_node_differences.toml")
DIFFERENCES: list[dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))["differences"]

#: The expected results were computed in the dtype of the inputs, every intermediate array rounded to it.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

TESTS = node_tests()
NODES = pytest.mark.parametrize("node", TESTS, ids=lambda node: node.name)


def _listed() -> dict[str, str]:
    """The listed differences of the installed release, with their clause."""
    installed = Version(onnx.__version__)
    active = [entry for entry in DIFFERENCES if "before" not in entry or installed < Version(entry["before"])]
    return {name: entry["clause"] for entry in active for name in entry["tests"]}


def _differences(node: NodeTest) -> list[str]:
    """Names of the node's outputs that the reference does not reproduce."""
    call = translate(node)
    expected = reference.sdpa(call.q, call.k, call.v, **call.options)
    limit = limits(expected, UNIT[str(call.q.dtype)], **call.options)
    of_output = limit["output"]
    if node.inputs["Q"].ndim == 3:
        of_output = of_output.transpose(0, 2, 1, 3).reshape(node.outputs["output"].shape)
    of_qk = limit[("raw", "scores", "scores", "weights")[node.attributes.get("qk_matmul_output_mode", 0)]]
    allowance = {"output": of_output, "qk": of_qk, "present_key": 0.0, "present_value": 0.0}
    ours = outputs(node, call, expected)
    return [
        name
        for name, theirs in node.outputs.items()
        if not agree(ours[name].astype(np.float64), theirs.astype(np.float64), np.asarray(allowance[name]))
    ]


@NODES
def test_reference_agrees_or_says_why(node: NodeTest) -> None:
    """Every output of a node equals the reference's, or the test is listed as different and does differ."""
    different, listed = _differences(node), _listed()
    if node.name in listed:
        assert different, f"{node.name} agrees now: remove it from {DATA.name}"
    else:
        assert not different, f"{node.name} (opset {node.opset}) differs in {', '.join(different)}"


@NODES
def test_comparison_can_fail(node: NodeTest) -> None:
    """A shipped output with one element moved by 10 % of the largest, or 1 % in float32, is noticed."""
    if not node.outputs["output"].size:
        pytest.skip("this node test has an empty output: there is no element to move")
    moved = node.outputs["output"].astype(np.float64)
    share = 0.01 if UNIT[str(node.inputs["Q"].dtype)] < 1e-6 else 0.1
    moved.flat[moved.size // 2] += share * max(1.0, float(np.max(np.abs(moved))))
    changed = dataclasses.replace(node, outputs={**node.outputs, "output": moved})
    assert "output" in _differences(changed)


def test_the_package_has_the_tests() -> None:
    """At least the 62 tests of onnx 1.19 are found, so that an empty list does not pass."""
    assert len(TESTS) >= 62
    assert {node.opset for node in TESTS} >= {23, 24}


def test_differences_name_tests_and_clauses() -> None:
    """A listed difference names an existing clause and tests that the package has."""
    assert {entry["clause"] for entry in DIFFERENCES} <= set(clauses())
    assert set(_listed()) <= {node.name for node in TESTS}


def test_unknown_attributes_are_refused() -> None:
    """A node test with an attribute that the translation does not know raises."""
    from onnx.backend.test.case.node import _NodeTestCases

    from attention_conformance.conformance.tests import onnx_nodes

    case = next(case for case in _NodeTestCases if case.name == "test_attention_4d")
    model = type(case.model)()
    model.CopyFrom(case.model)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("new_option", 1))
    with pytest.raises(NotImplementedError, match="new_option"):
        onnx_nodes._node_test(dataclasses.replace(case, model=model))
