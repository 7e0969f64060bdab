"""Decoding in the reference, compared with numbers done by hand and with the whole sequence: DEC-1 to DEC-7."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds.sdpa import Options, bound
from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.spec.sdpa import Expected, InvalidInput, sdpa
from attention_conformance.impls.contract import Profile

#: Splits of seven tokens into steps.
SPLITS = ((7,), (1,) * 7, (3, 1, 1, 2), (6, 1))


def column(*values: float) -> np.ndarray:
    """(1, 1, n, 1)."""
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


def step(queries: int, past: tuple[float, ...], new: tuple[float, ...], **options: Any) -> Expected:
    """A step whose scores are all 0, so that a row gives the mean of the values that it sees."""
    zeros = (column(*(0.0,) * n) for n in (queries, len(new), len(past)))
    q, k, past_key = zeros
    return sdpa(q, k, column(*new), past_key=past_key, past_value=column(*past), **options)


def sequence(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seven tokens, grouped heads, two batches."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, heads, 7, 4)) for heads in (4, 2, 2))
    return q, k, v


def test_dec_1_new_keys_follow_the_past() -> None:
    """One new token sees two past values, 1 and 2, and its own, 6: their mean is 3."""
    found = step(1, (1, 2), (6,), is_causal=True)
    assert found.output.ravel() == pytest.approx([3.0], abs=1e-15)


def test_dec_2_a_new_token_stands_behind_the_past() -> None:
    """Of two new tokens the first sees 3 and 5, the second 10 too: 4 and 6."""
    found = step(2, (3,), (5, 10), is_causal=True)
    assert found.output.ravel() == pytest.approx([4.0, 6.0], abs=1e-15)


def test_dec_2_a_window_follows_the_shifted_diagonal() -> None:
    """In a window of two keys the new tokens see 5 and 7, and 7 and 10."""
    found = step(2, (100, 5), (7, 10), is_causal=True, window=(1, 0))
    assert found.output.ravel() == pytest.approx([6.0, 8.5], abs=1e-15)


def test_dec_2_an_offset_takes_the_place_of_the_past() -> None:
    """With offset 0 the first new token sees only the first key; an offset of 0 differs from none."""
    found = step(2, (3,), (5, 10), is_causal=True, causal_offset=0)
    assert found.output.ravel() == pytest.approx([3.0, 4.0], abs=1e-15)


def test_dec_3_the_present_is_past_and_new() -> None:
    """Present values are unchanged, with one head per key head."""
    q, k, v = sequence()
    found = sdpa(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], past_key=k[:, :, :5], past_value=v[:, :, :5])
    assert found.present_key is not None
    assert found.present_value is not None
    assert np.array_equal(found.present_key, k)
    assert np.array_equal(found.present_value, v)


def test_dec_3_without_a_past_there_is_no_present() -> None:
    """A present is returned only if a past is given."""
    assert sdpa(*sequence()).present_key is None


def test_dec_3_nothing_is_allowed_for_copying() -> None:
    """A present that is off by one unit in the last place is wrong."""
    q, k, v = (array.astype(np.float32) for array in sequence())
    found = sdpa(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], past_key=k[:, :, :5], past_value=v[:, :, :5])
    limit = bound(found, Options(), "float32", Profile.STORAGE)
    assert found.present_key is not None
    assert limit.present_key is not None
    assert compare("present_key", k, found.present_key, limit.present_key, "float32").ok
    moved = np.nextafter(k, np.float32(np.inf))
    assert not compare("present_key", moved, found.present_key, limit.present_key, "float32").ok


@pytest.mark.parametrize("window", [None, (2, 0), (0, None)], ids=["no-window", "three-keys", "open"])
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(map(str, split)))
def test_dec_4_steps_are_the_whole(split: tuple[int, ...], window: tuple[int | None, int | None] | None) -> None:
    """Steps that pass on their present give the rows of the whole sequence."""
    q, k, v = sequence()
    whole = sdpa(q, k, v, is_causal=True, window=window).output
    past: dict[str, Any] = {"past_key": k[:, :, :0], "past_value": v[:, :, :0]}
    at = 0
    for count in split:
        rows = slice(at, at + count)
        found = sdpa(q[:, :, rows], k[:, :, rows], v[:, :, rows], is_causal=True, window=window, **past)
        assert np.allclose(found.output, whole[:, :, rows], rtol=1e-13, atol=1e-13)
        assert found.present_key is not None
        assert found.present_value is not None
        past = {"past_key": found.present_key, "past_value": found.present_value}
        at += count


def test_dec_4_the_cases_are_steps_of_one_sequence() -> None:
    """The expected results of the steps are the expected rows of the whole sequence."""
    cases = all_cases()
    whole = cases["decode-sequence"].expected("float32").output
    steps = [case for name, case in cases.items() if name.startswith("decode-sequence-") and name[-1].isdigit()]
    plain = [case for case in steps if "window" not in case.options]
    assert sum(case.shape.sq for case in plain) == 7
    for case in plain:
        assert case.past is not None
        rows = slice(case.past, case.past + case.shape.sq)
        assert np.allclose(case.expected("float32").output, whole[:, :, rows], rtol=1e-6, atol=1e-6)


def test_dec_5_a_cache_of_fixed_size_is_a_past_for_each_batch() -> None:
    """Each sequence, cut to its own length and given a past, has the same rows."""
    q, k, v = sequence()
    q, lengths = q[:, :, :2], np.array([7, 4])
    found = sdpa(q, k, v, is_causal=True, kv_lengths=lengths, causal_offset=lengths - 2).output
    for b, length in enumerate(lengths):
        one, before = slice(b, b + 1), slice(0, length - 2)
        new = slice(length - 2, length)
        past: dict[str, Any] = {"past_key": k[one, :, before], "past_value": v[one, :, before]}
        alone = sdpa(q[one], k[one, :, new], v[one, :, new], is_causal=True, **past).output
        assert np.allclose(found[one], alone, rtol=1e-13, atol=1e-13)


def test_dec_6_the_past_is_only_read() -> None:
    """A past may be read-only, and is unchanged afterwards."""
    q, k, v = sequence()
    before = k.copy(), v.copy()
    for array in (k, v):
        array.flags.writeable = False
    sdpa(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], past_key=k[:, :, :5], past_value=v[:, :, :5])
    assert np.array_equal(k, before[0])
    assert np.array_equal(v, before[1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("past_key", lambda a: None),
        ("past_value", lambda a: None),
        ("past_key", lambda a: a[:, :, 1:]),
        ("past_value", lambda a: a[:1]),
        ("past_key", lambda a: a[:, :1]),
        ("past_value", lambda a: a[..., 1:]),
        ("past_key", lambda a: a.astype(np.float32)),
        ("past_key", lambda a: a[0]),
    ],
    ids=["no-key", "no-value", "length", "batch", "heads", "width", "dtype", "rank"],
)
def test_dec_7_a_past_that_does_not_fit_is_refused(name: str, change: Any) -> None:
    """A past with only one array, or with another length, batch, number of heads, width, dtype or rank is refused."""
    q, k, v = sequence()
    past: dict[str, Any] = {"past_key": k[:, :, :5], "past_value": v[:, :, :5]}
    past[name] = change(past[name])
    with pytest.raises(InvalidInput, match="DEC-7"):
        sdpa(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], **past)
