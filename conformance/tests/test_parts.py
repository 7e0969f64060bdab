"""Parts of a call: options are split with their batches and heads, and rows that look odd are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases.parts import odd_rows, part_of, query_heads, sample, sample_heads

BATCHES, HEADS, QUERIES = np.array([1]), np.array([0, 2]), np.array([0, 1, 4, 5])


def numbers(*shape: int) -> np.ndarray:
    """An array of distinct numbers."""
    return np.arange(np.prod(shape)).reshape(shape)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("scale", 0.5, 0.5),
        ("past_key", numbers(2, 3, 4, 5), numbers(2, 3, 4, 5)[1:, [0, 2]]),
        ("sinks", numbers(6), numbers(6)[QUERIES]),
        ("mask", numbers(2, 6, 3, 4), numbers(2, 6, 3, 4)[1:, QUERIES]),
        ("mask", numbers(2, 1, 3, 4), numbers(2, 1, 3, 4)[1:]),
        ("bias", numbers(6, 3, 4), numbers(6, 3, 4)[QUERIES]),
        ("bias", numbers(3, 4), numbers(3, 4)),
        ("kv_lengths", np.array([7, 3]), np.array([3])),
        ("causal_offset", np.array(2), np.array(2)),
    ],
)
def test_an_option_goes_with_its_batches_and_heads(name: str, value: Any, expected: Any) -> None:
    """An option is split by the same indices; a broadcast axis is unchanged."""
    np.testing.assert_array_equal(part_of(name, value, BATCHES, HEADS, QUERIES), expected)


def test_slices_choose_as_indices_do() -> None:
    """Slices select the same as indices, without a copy."""
    value = numbers(2, 6, 3, 4)
    part = part_of("mask", value, slice(1, 2), slice(0, 1), slice(0, 2))
    np.testing.assert_array_equal(part, value[1:, :2])
    assert np.shares_memory(part, value)


def test_rows_that_look_odd_are_found() -> None:
    """Rows with NaN, of zeros and with the largest number are found."""
    output = np.random.default_rng(3).uniform(1, 2, (2, 3, 5, 4))
    output[1, 2, 3, 1], output[0, 1, 4], output[1, 0, 2, 0] = np.nan, 0, 9
    assert odd_rows(output) == [(0, 1, 4), (1, 0, 2), (1, 2, 3)]


def test_samples_have_both_ends() -> None:
    """Samples have both ends; a sample of one has an end chosen by the seed, and a sample of few has all."""
    assert {*sample(100, 5, 1)} >= {0, 99}
    assert sample(3, 5, 1).tolist() == [0, 1, 2]
    assert [sample_heads(8, 1, seed).tolist() for seed in (0, 1)] == [[0], [7]]
    assert query_heads(np.array([0, 2]), 2).tolist() == QUERIES.tolist()
