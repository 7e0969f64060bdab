"""Rows of the reference that are computed alone, to check long outputs."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.spec import sdpa as reference

OPTIONS = [
    "causal-tiles",
    "window-tiles",
    "mask-tiles",
    "bias-smallest-first-tile",
    "mask-broadcast-tiles-k",
    "combined-all-tiles",
    "block-64",
    "tree-tiles",
]


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_are_the_rows_of_the_whole(name: str) -> None:
    """Rows computed alone equal those of the whole output, whatever the options."""
    inputs, whole = all_cases()[name].inputs("float32"), all_cases()[name].expected("float32").output
    options = {n: v for n, v in inputs.keywords.items() if not n.startswith("return_")}
    rows = np.array([0, 7, 16])
    part = reference.sdpa(inputs.q, inputs.k, inputs.v, **options, rows=rows)
    np.testing.assert_allclose(part.output, whole[:, :, rows], rtol=1e-13, atol=1e-13)
