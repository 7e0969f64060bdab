"""Rings at scale: the judge refuses a rank's mistake, and the model is of the ring's own steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance import NotClose
from studies import ranks

#: Queries, keys and heads over four ranks.
SIZES = (64, 512, 1)
RANKS = 4


def outputs(missing: int | None = None) -> list[np.ndarray]:
    """The output of each rank; ``missing`` is a rank whose keys the first rank never meets."""
    parts = [ranks.shards(rank, RANKS, *SIZES) for rank in range(RANKS)]
    found = []
    for rank, (q, _, _) in enumerate(parts):
        met = [each for other, each in enumerate(parts) if rank or other != missing]
        k, v = (np.concatenate([each[n] for each in met], axis=2).astype(np.float64) for n in (1, 2))
        s = q @ k.swapaxes(2, 3) / np.sqrt(ranks.WIDTH)
        p = np.exp(s - s.max(axis=3, keepdims=True))
        found.append((p / p.sum(axis=3, keepdims=True) @ v).astype(np.float32))
    return found


def test_a_right_call_is_within_the_bound() -> None:
    """It is judged over all ranks together."""
    assert 0 < ranks.share(outputs(), RANKS, *SIZES) < 1


def test_ranks_that_are_swapped_are_refused() -> None:
    """The results of the first two ranks are exchanged."""
    first, second, *others = outputs()
    with pytest.raises(NotClose):
        ranks.share([second, first, *others], RANKS, *SIZES)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_block_that_one_rank_never_meets_is_refused(rank: int) -> None:
    """It may be any block."""
    with pytest.raises(NotClose):
        ranks.share(outputs(rank), RANKS, *SIZES)


def test_the_model_counts_what_a_ring_computes_sends_and_holds() -> None:
    """Eight rows and eight keys over two ranks, two heads of width four, are computed by hand."""
    cost = ranks.Cost(8, 8, 2, 2, 4, 4, ranks=2, rate=100, bandwidth=128, latency=0.5)
    assert cost.sent == 2 * 2 * 4 * 4 * 4  # k and v, two heads, four keys, four numbers of four bytes
    assert cost.computing == 4 * 2 * 4 * 4 * 4 / 100
    assert cost.sending == 0.5 + 256 / 128
    assert cost.one_after_the_other == pytest.approx(2 * 5.12 + 2.5)
    assert cost.overlapped == pytest.approx(5.12 + 5.12)
    assert replace(cost, bandwidth=16).overlapped == pytest.approx(5.12 + 16.5)
    assert cost.held == (2 * 2 * 4 + 4 * 2 * 4) * 4 * 4


def test_the_long_call_was_judged_at_its_full_size() -> None:
    """The published call has 2²⁰ keys over eight ranks, within the bound and the memory of a machine of 24 GiB."""
    judged = ranks.STUDY.kept()["judged"]
    assert (judged["tokens"], judged["ranks"]) == (2**20, 8)
    assert 0 < judged["share"] < 1
    assert judged["judge"] + 8 * judged["held"] < 24 * ranks.GIB
