"""The reference gives the results computed by hand, and none of the wrong ones in print."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.tests.hand_examples import Example, Table, agrees, disagreements, examples

EXAMPLES = pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)


def _compute(example: Example) -> dict[str, np.ndarray]:
    expected = reference.sdpa(example.q, example.k, example.v, **example.options)
    return {"output": expected.output, "weights": expected.weights, "lse": expected.lse}


@EXAMPLES
def test_reference_agrees(example: Example) -> None:
    """Output, weights and log-sum-exp of the reference are those computed by hand."""
    assert disagreements(example, _compute(example)) == []


@EXAMPLES
def test_reference_rejects_wrong_results(example: Example) -> None:
    """The reference gives none of the wrong results that an example lists."""
    computed = _compute(example)
    for wrong in example.rejected:
        assert not agrees(example, wrong.value, computed[wrong.result]), wrong.because


@EXAMPLES
def test_check_can_fail(example: Example) -> None:
    """Any number of a result that moves by twice the limit makes the comparison fail."""
    computed = _compute(example)
    for name, table in example.results.items():
        for index in np.ndindex(table.shape):
            values = table.values.copy()
            values[index] = 0.0 if np.isinf(values[index]) else values[index] + 4 * example.limit(table)[index]
            moved = dataclasses.replace(table, values=values)
            assert not agrees(example, moved, computed[name]), f"nobody noticed a changed {name}{list(index)}"


def test_shape_counts() -> None:
    """An array that would broadcast to the expected shape does not agree."""
    example = examples()[0]
    table: Table = example.results["output"]
    assert agrees(example, table, table.values)
    assert not agrees(example, table, table.values[0])
    assert not agrees(example, table, np.full(table.shape, np.nan))
