"""Sampled rows: the same verdict as the whole output, at the cost of a few rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance import reference
from conformance.cases import all_cases
from conformance.sampling import check_rows, sample
from impls.contract import Profile

OPTIONS = [
    "causal-tiles",
    "window-tiles",
    "mask-tiles",
    "bias-smallest-first-tile",
    "mask-broadcast-tiles-k",
    "combined-all-tiles",
]


def parts(name: str) -> tuple[Any, dict[str, Any], np.ndarray]:
    """Inputs of a case, its options, and its expected output in float64."""
    inputs = all_cases()[name].inputs("float32")
    options = {n: v for n, v in inputs.keywords.items() if not n.startswith("return_")}
    return inputs, options, all_cases()[name].expected("float32").output


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_are_the_rows_of_the_whole(name: str) -> None:
    """Some rows, recomputed alone, are what they are in the whole output, whatever the options."""
    inputs, options, whole = parts(name)
    rows = np.array([0, 7, 16])
    part = reference.sdpa(inputs.q, inputs.k, inputs.v, **options, rows=rows)
    np.testing.assert_allclose(part.output, whole[:, :, rows], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_right_output_passes(name: str) -> None:
    """The expected output, rounded to float32, is inside the bound."""
    inputs, options, whole = parts(name)
    output = whole.astype(np.float32)
    found = check_rows(inputs.q, inputs.k, inputs.v, options, output, dtype="float32", profile=Profile.WIDE, rows=8)
    assert found.ok


def test_a_wrong_last_row_is_found() -> None:
    """The first and the last row are always among those checked."""
    inputs, options, whole = parts("queries-129")
    for row in (0, -1):
        output = whole.astype(np.float32)
        output[0, 0, row, 0] += 1e-3
        found = check_rows(inputs.q, inputs.k, inputs.v, options, output, dtype="float32", profile=Profile.WIDE, rows=4)
        assert not found.ok


def test_another_shape_is_refused() -> None:
    """An output of another shape is not compared."""
    inputs, options, whole = parts("queries-129")
    with pytest.raises(ValueError, match="SDPA-1"):
        check_rows(inputs.q, inputs.k, inputs.v, options, whole[:, :, :-1], dtype="float32", profile=Profile.WIDE)


def test_few_rows_are_all_checked() -> None:
    """Up to the number asked for, every row is checked."""
    assert sample(5, 32, 0).tolist() == [0, 1, 2, 3, 4]
    assert len(set(sample(1000, 32, 0).tolist())) == 32
