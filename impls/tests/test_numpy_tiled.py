"""NumPy's tiled implementation: no array as large as the score matrix, and correct across many tiles.

The conformance cases judge it as they judge all built-ins.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from attention_conformance.impls.numpy import tiled
from attention_conformance.impls.tests.within import assert_within


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (64, 0)}], ids=["full", "causal", "window"])
def test_tiled_allocates_no_score_matrix(options: dict[str, object]) -> None:
    """At 2048 keys the tiled implementation never holds as much as one head's score matrix (16 MiB)."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 2048, 64), dtype=np.float32) for _ in range(3))
    tracemalloc.start()
    try:
        tiled.attention(q, k, v, **options)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2048 * 2048 * q.itemsize


TILES = {
    "plain": {},
    "causal": {"is_causal": True, "causal_offset": 2},
    "bottom-right": {"is_causal": True, "causal_offset": -4},
    "window": {"window": (2, 1), "causal_offset": np.array([-3, 5])},
    "lengths": {"kv_lengths": np.array([0, 7]), "softcap": 2.0, "scale": -3.0},
    "bias": {"bias": np.where(np.arange(13) % 4, 0.5, -np.inf), "is_causal": True},
    "mask": {"mask": (np.arange(17)[:, None] + np.arange(13)) % 5 > 2, "window": (None, 4)},
}


@pytest.mark.parametrize("limit", [(tiled, "KEYS", 3), (tiled, "TILE", 12)], ids=["keys", "scores"])
@pytest.mark.parametrize("options", TILES.values(), ids=TILES)
def test_tiled_across_many_tiles(
    options: dict[str, object], limit: tuple[object, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 4 query rows and tiles of 3 keys give the reference's output and lse, up to rounding in float64."""
    monkeypatch.setattr(tiled, "ROWS", 4)
    monkeypatch.setattr(tiled, "DIAGONAL_ROWS", 4)
    monkeypatch.setattr(*limit)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 4, 17, 8), (2, 2, 13, 8), (2, 2, 13, 5)))
    output, lse = tiled.attention(q, k, v, return_lse=True, **options)  # type: ignore[arg-type]
    assert_within({"output": output, "lse": lse}, q, k, v, options)


@pytest.mark.parametrize("options", TILES.values(), ids=TILES)
def test_tiled_heads_together_are_as_apart(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of all heads gives the same as blocks of one head; sinks and NaN values affect only their own head."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 6, 17, 8), (2, 3, 13, 8), (2, 3, 13, 5)))
    v[0, 1, 4, 2] = np.nan
    for sinks in (None, rng.standard_normal(6)):
        together = tiled.attention(q, k, v, return_lse=True, sinks=sinks, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(tiled, "ROWS", 17)
        apart = tiled.attention(q, k, v, return_lse=True, sinks=sinks, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        assert np.isfinite(together[0][0, :2]).all()
        for one, other in zip(together, apart, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-14)


def test_tiled_sees_nan_in_its_tile_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in v reaches the rows that see its key, however small its weight, and no other row (SDPA-22, -23)."""
    monkeypatch.setattr(tiled, "ROWS", 4)
    monkeypatch.setattr(tiled, "DIAGONAL_ROWS", 4)
    monkeypatch.setattr(tiled, "KEYS", 3)
    q, k, v = (np.ones((1, 1, 10, 4)) for _ in range(3))
    k[0, 0, 5] = -4000  # its weight underflows to zero
    v[0, 0, 5, 2] = np.nan
    output = tiled.attention(q, k, v, is_causal=True)
    assert np.isnan(output[0, 0, 5:, 2]).all()
    assert np.isfinite(output).sum() == output.size - 5


@pytest.mark.parametrize("shift", [-800.0, -280.0, -60.0, -30.0, 0.0, 280.0, 800.0])
def test_tiled_is_as_accurate_however_the_scores_are_shifted(shift: float) -> None:
    """Scores near ±100 and ±283, whose exp is 0, subnormal or infinite in float32, give results within the bound."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 40, 8), dtype=np.float32) for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, shift
    output, lse = tiled.attention(q, k, v, return_lse=True)
    assert_within({"output": output, "lse": lse}, q, k, v, {})


@pytest.mark.parametrize("power", [(np.exp, 1.0), (np.exp2, 1 / np.log(2))], ids=["exp", "exp2"])
@pytest.mark.parametrize(
    "options",
    [{}, {"softcap": 2.0}, {"scale": 3.0}, {"is_causal": True}, {"window": (3, 2)}, {"mask": np.tri(40, dtype=bool)}],
    ids=["plain", "softcap", "scale", "causal", "window", "mask"],
)
def test_tiled_is_right_with_either_power(
    power: tuple[np.ufunc, float], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a vector loop for 2^x it uses e^x, and the results are as right."""
    monkeypatch.setattr(tiled, "_power", lambda: power)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 40, 8)) for _ in range(3))
    output, lse = tiled.attention(q, k, v, return_lse=True, **options)  # type: ignore[arg-type]
    assert_within({"output": output, "lse": lse}, q, k, v, options)
