"""Long caches: the measured check accepts a right output, and refuses one that reads a slot too many."""

from __future__ import annotations

import pytest

from attention_conformance import NotClose, assert_paged_close
from studies import long_caches


def test_a_right_output_is_accepted_and_measured() -> None:
    """The measurement has seconds, bytes and the share of the bound."""
    found = long_caches.checked(4096)
    assert 0 < found["share"] < 1
    assert found["arrays"] < found["peak"]


def test_a_key_more_or_less_is_refused() -> None:
    """The last of 4,096 keys is left out."""
    output, q, k_cache, v_cache, boundaries, table, lengths = long_caches.decoding(4096)
    with pytest.raises(NotClose):
        assert_paged_close(output, q, k_cache, v_cache, boundaries, table, lengths - 1, is_causal=True)


def test_memory_grows_as_the_keys_do() -> None:
    """In the published numbers, sixteen times the keys take at most sixteen times the memory."""
    peaks = {int(keys): one["peak"] for keys, one in long_caches.STUDY.kept()["lengths"].items()}
    first, last = min(peaks), max(peaks)
    assert last == 2**20
    assert peaks[last] / peaks[first] <= last / first
    assert peaks[last] < 24 * long_caches.GIB
