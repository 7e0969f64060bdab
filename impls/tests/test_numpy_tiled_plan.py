"""The blocks of NumPy's tiled attention: each row once, large enough, and enough of them to share."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attention_conformance.impls.numpy import tiled
from attention_conformance.impls.numpy.tiled import DIAGONAL_ROWS, ROWS, TILE, Plan, plan, visible


@pytest.fixture(autouse=True)
def _six_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "available", lambda: 6)


def _plan(
    heads: int, queries: int, keys: int, *, kv_heads: int = 0, batch: int = 1, width: int = 64, is_causal: bool = False
) -> Plan:
    seen = visible(keys, batch, is_causal, 0, None, None)
    return plan(seen, (batch, heads, queries, width), (batch, kv_heads or heads, keys, width))


def _lines(found: Plan, group: int = 1) -> set[int]:
    """The numbers of rows of the blocks, over all of their heads."""
    return {(hs.stop - hs.start) * group * (rows.stop - rows.start) for _, hs, rows in found.blocks}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("kv_heads", "queries", "batch"), [*product([1, 3, 6], [1, 130, 2000], [1, 2])])
def test_every_row_of_every_head_is_in_one_block(kv_heads: int, queries: int, batch: int, is_causal: bool) -> None:
    """Every row is in exactly one block, and no block has more rows than its thread's tile."""
    found = _plan(6, queries, 700, kv_heads=kv_heads, batch=batch, is_causal=is_causal)
    times = np.zeros((batch, kv_heads, queries), int)
    for b, heads, rows in found.blocks:
        times[b, heads, rows] += 1
    assert (times == 1).all()
    assert max(_lines(found, 6 // kv_heads)) <= found.tile <= TILE


def test_nothing_is_no_block() -> None:
    """Without rows or heads there is no block, but still one thread."""
    for found in (_plan(2, 0, 5), _plan(0, 5, 5, kv_heads=2)):
        assert (found.blocks, found.threads) == ([], 1)


def test_small_calls_are_one_block_on_one_thread() -> None:
    """All heads are one block: starting threads would cost more than it saves."""
    found = _plan(8, 128, 128)
    assert found.blocks == [(0, slice(0, 8), slice(0, 128))]
    assert found.threads == 1


@pytest.mark.parametrize(("length", "blocks"), [(256, 2), (512, 4), (1024, 8), (2048, 16), (8192, 64)])
def test_larger_calls_have_more_blocks(length: int, blocks: int) -> None:
    """There are two, four or eight blocks, and then as many as have ROWS rows."""
    found = _plan(8, length, length)
    assert len(found.blocks) == blocks
    assert _lines(found) == {ROWS}
    assert found.threads == min(6, blocks)


def test_blocks_under_a_diagonal_have_few_rows_of_several_heads() -> None:
    """Few rows skip more hidden keys, and several heads keep the block as large.  The longest blocks come first."""
    found = _plan(8, 1024, 1024, is_causal=True)
    assert _lines(found) == {ROWS}
    starts = [rows.start for _, heads, rows in found.blocks if heads.start == 0]
    assert starts == sorted(starts, reverse=True) == [3 * DIAGONAL_ROWS, 2 * DIAGONAL_ROWS, DIAGONAL_ROWS, 0]


def test_one_query_row_has_its_heads_together() -> None:
    """Decoding with grouped heads is one product for each key/value head, with all heads in two blocks."""
    found = _plan(32, 1, 4096, kv_heads=8, width=128)
    assert found.blocks == [(0, slice(0, 4), slice(0, 1)), (0, slice(4, 8), slice(0, 1))]


def test_no_number_of_threads_changes_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks do not depend on the number of threads, so no bit of a result does."""
    several = _plan(8, 512, 512)
    monkeypatch.setattr(tiled, "available", lambda: 1)
    assert _plan(8, 512, 512).blocks == several.blocks
