"""Decoding, from the name to the samples, with implementations of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.bench.tests.measured import outcome
from attention_conformance.bench.validity.outcomes import INVALID, SKIPPED

NAME = "decode-b2h2d8s3k10"

Triple = tuple[np.ndarray, np.ndarray, np.ndarray]


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    hidden = np.arange(k.shape[2]) > past + np.arange(q.shape[2])[:, None]
    powers = np.exp(np.where(hidden, np.float32(-np.inf), scores - scores.max(-1, keepdims=True)))
    return powers / powers.sum(-1, keepdims=True) @ v


def cached(q: Any, k: Any, v: Any, *, past_key: Any = None, past_value: Any = None, is_causal: bool = False) -> Triple:
    """Right: past and new keys are joined, and rows come after the past."""
    k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    return _attend(q, k, v, past_key.shape[2]), k, v


def from_zero(
    q: Any, k: Any, v: Any, *, past_key: Any = None, past_value: Any = None, is_causal: bool = False
) -> Triple:
    """Wrong: the first new row has position 0, so it sees only the first past key."""
    k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    return _attend(q, k, v, 0), k, v


def behind(q: Any, k: Any, v: Any, *, past_key: Any = None, past_value: Any = None, is_causal: bool = False) -> Triple:
    """Wrong: the output is right, but the new keys come before the past ones in the cache."""
    output, _, _ = cached(q, k, v, past_key=past_key, past_value=past_value)
    return output, np.concatenate([k, past_key], axis=2), np.concatenate([v, past_value], axis=2)


def plain(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> np.ndarray:
    """Attention without a cache."""
    return _attend(q, k, v, 0)


def test_a_right_cache_is_timed() -> None:
    """The output is that of attention over past and new keys, with rows after the past."""
    measured = outcome(cached, NAME)
    assert len(measured.seconds) >= 5
    assert 0 < measured.share <= 1


def test_positions_that_begin_at_zero_are_invalid() -> None:
    """A causal mask that forgets the past hides almost all of it."""
    assert outcome(from_zero, NAME).clause == "SDPA-25"


def test_a_cache_in_another_order_is_invalid() -> None:
    """The next step would read the cache."""
    found = outcome(behind, NAME)
    assert found.kind == INVALID
    assert "elements of present_key are outside" in found.reason


def test_an_implementation_without_a_cache_is_not_timed() -> None:
    """A keyword that it does not accept is a feature that it lacks."""
    found = outcome(plain, NAME)
    assert (found.kind, found.reason) == (SKIPPED, "unsupported: no keyword past_key, past_value")
