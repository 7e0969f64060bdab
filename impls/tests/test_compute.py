"""Trying out a built-in by its name: its results, and the exceptions where it has none."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.impls.compute import compute
from attention_conformance.impls.contract import ImplementationError

Q = np.ones((1, 1, 2, 4), np.float32)


def test_one_result_is_an_array() -> None:
    """Without extra results only the output is returned."""
    np.testing.assert_array_equal(compute("numpy-eager", Q, Q, Q), Q)


def test_more_results_are_a_tuple() -> None:
    """Extra results follow the output."""
    output, weights = compute("numpy-eager", Q, Q, Q, return_weights=True)
    assert (output.shape, weights.shape) == ((1, 1, 2, 4), (1, 1, 2, 2))


def test_an_unknown_name_is_refused() -> None:
    """The refusal names the nearest known implementation."""
    with pytest.raises(ImplementationError, match="did you mean numpy-eager"):
        compute("numpy-eagre", Q, Q, Q)


def test_what_is_not_supported_says_so() -> None:
    """An unsupported call raises NotImplementedError with the reason."""
    with pytest.raises(NotImplementedError):
        compute("ort-gqa", Q[:, :, :1].copy(), Q, Q)


def test_an_exception_of_the_implementation_is_named() -> None:
    """An implementation's exception becomes a RuntimeError with its name and the text."""
    with pytest.raises(RuntimeError, match=r"^numpy-eager: ValueError"):
        compute("numpy-eager", Q, Q[..., :3].copy(), Q)
