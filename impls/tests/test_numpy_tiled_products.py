"""The products of NumPy's tiles: right in pieces of every kind, and cut only where NumPy's BLAS is known to gain."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.impls.numpy import tiled
from attention_conformance.impls.numpy.tiled import PIECE, product, transposed, unpacked


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS that packs nothing for pieces of up to PIECE rows of the problems here."""
    monkeypatch.setattr(tiled, "unpacked", lambda: PIECE * 5 * 7)


def _sides(stack: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((stack * rows, 5)), rng.standard_normal((stack, 5, 7))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("rows", [1, PIECE, 3 * PIECE, 3 * PIECE + 5])
def test_a_product_in_pieces_is_the_product(stack: int, rows: int) -> None:
    """Each stacked matrix multiplies its own rows, in whole pieces or not; old contents of ``out`` are gone."""
    left, right = _sides(stack, rows)
    out = np.full((stack * rows, 7), np.nan)
    assert product(left, right, out) is out
    expected = (left.reshape(stack, rows, 5) @ right).reshape(-1, 7)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(product(left, right), expected, rtol=0, atol=1e-14)


@pytest.mark.usefixtures("small")
def test_pieces_read_values_that_lie_within_others() -> None:
    """A tile's keys are a slice of each head's keys, which is not contiguous."""
    left, _ = _sides(2, 3 * PIECE + 1)
    right = np.random.default_rng(1).standard_normal((2, 11, 7))[:, 2:7]
    expected = (left.reshape(2, -1, 5) @ right).reshape(-1, 7)
    np.testing.assert_allclose(product(left, right), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("limit", "turned", "calls"),
    [(PIECE * 5 * 7, False, 2), (PIECE * 5 * 7, True, 1), (PIECE * 5 * 7 - 1, False, 1), (0, False, 1)],
    ids=["pieces", "transposed", "too-large", "unknown"],
)
def test_products_are_cut_only_where_a_piece_is_not_packed(
    limit: int, turned: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transposed right side, too many columns, or a BLAS that packs everything makes one call of a product."""
    monkeypatch.setattr(tiled, "unpacked", lambda: limit)
    done: list[tuple[int, ...]] = []
    matmul = np.matmul

    def noted(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> np.ndarray:
        done.append(left.shape)
        return matmul(left, right, out=out)

    monkeypatch.setattr(np, "matmul", noted)
    left, right = _sides(1, 2 * PIECE + 3)
    product(left, np.ascontiguousarray(right.transpose(0, 2, 1)).transpose(0, 2, 1) if turned else right)
    assert len(done) == calls
    assert done[0] == ((1, 2, PIECE, 5) if calls == 2 else (1, 2 * PIECE + 3, 5))


@pytest.mark.parametrize("limit", [0, 10**6], ids=["packed", "unpacked"])
def test_keys_are_copied_for_many_rows_only(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed copy is made where products are not packed, and each head has enough rows to gain by it."""
    monkeypatch.setattr(tiled, "unpacked", lambda: limit)
    keys = np.random.default_rng(0).standard_normal((2, 7, 5))
    for rows in (2 * tiled.MANY - 1, 2 * tiled.MANY):
        right = transposed(keys, rows)
        np.testing.assert_array_equal(right, keys.transpose(0, 2, 1))
        assert np.shares_memory(right, keys) == (limit == 0 or rows < 2 * tiled.MANY)


@pytest.mark.parametrize(
    ("architectures", "limit"),
    [(["SkylakeX"], 10**6), (["Haswell"], 0), (["SkylakeX", "Haswell"], 0), ([""], 0), ([], 0)],
    ids=["avx512", "avx2", "both", "none", "no-blas"],
)
def test_what_is_not_packed_is_known_of_some_kernels(
    architectures: list[str], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is assumed about a BLAS without a name, nor where a process holds a second BLAS."""

    class Held:
        def info(self) -> list[dict[str, str]]:
            return [{"architecture": each} if each else {} for each in architectures]

    monkeypatch.setattr(tiled, "blas", Held)
    assert unpacked.__wrapped__() == limit
