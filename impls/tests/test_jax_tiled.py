"""JAX's tiled attention: right across tiles, memory linear in the sequence length, one program for many calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.impls import calls
from attention_conformance.impls.jax import IMPLEMENTATIONS
from attention_conformance.impls.tests.within import assert_within

jax = pytest.importorskip("jax")

from attention_conformance.impls.jax import eager  # noqa: E402
from attention_conformance.impls.jax import tiled as tiled_module  # noqa: E402
from attention_conformance.impls.jax.arrays import wide_types  # noqa: E402
from attention_conformance.impls.jax.prepare import compiled  # noqa: E402

pytestmark = pytest.mark.slow

JAX_TILED = {each.name: each for each in IMPLEMENTATIONS}["jax-tiled"]

#: 17 rows and 13 keys over tiles of 4 and 3: the last block and the last tile begin early.
TILES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bottom-right": {"is_causal": True, "causal_offset": -4},
    "window": {"window": (2, 1), "causal_offset": np.array([-3, 5])},
    "causal-window": {"window": (3, 2), "is_causal": True, "causal_offset": 1},
    "lengths": {"kv_lengths": np.array([0, 7]), "softcap": 2.0, "scale": -3.0},
    "bias": {"bias": np.where(np.arange(13) % 4, 0.5, -np.inf), "is_causal": True},
    "mask": {"mask": (np.arange(17)[:, None] + np.arange(13)) % 5 > 2, "window": (None, 4)},
    "sinks": {"sinks": np.array([0.5, -np.inf, 3.0, -1.0]), "is_causal": True},
}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 query rows and tiles of 3 keys."""
    monkeypatch.setattr(tiled_module, "ROWS", 4)
    monkeypatch.setattr(tiled_module, "KEYS", 3)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("options", TILES.values(), ids=TILES)
def test_many_tiles_are_as_one(options: dict[str, Any]) -> None:
    """Blocks of 4 query rows and tiles of 3 keys give the reference's output and lse, to rounding in float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 4, 17, 8), (2, 2, 13, 8), (2, 2, 13, 5)))
    with wide_types():
        given = {name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        output, lse = tiled_module.attention(*map(jax.numpy.asarray, (q, k, v)), return_lse=True, **given)
    assert_within({"output": np.asarray(output), "lse": np.asarray(lse)}, q, k, v, options)


def test_a_width_of_none_weighs_all_keys_alike() -> None:
    """Every score is 0 where q and k have no columns, so the output is the mean of v."""
    q, k, v = np.ones((1, 1, 2, 0)), np.ones((1, 1, 3, 0)), np.arange(6.0).reshape(1, 1, 3, 2)
    with wide_types():
        output = tiled_module.attention(*map(jax.numpy.asarray, (q, k, v)), scale=0.5)
    np.testing.assert_allclose(output, np.broadcast_to(v.mean(axis=2, keepdims=True), output.shape))


@pytest.mark.usefixtures("small_tiles")
def test_nan_is_seen_in_its_tile_only() -> None:
    """NaN in v reaches the rows that see its key, however small its weight, and no other row (SDPA-22, -23)."""
    q, k, v = (np.ones((1, 1, 10, 4), np.float32) for _ in range(3))
    k[0, 0, 5] = -4000  # its weight underflows to zero
    v[0, 0, 5, 2] = np.nan
    output = np.asarray(tiled_module.attention(*map(jax.numpy.asarray, (q, k, v)), is_causal=True))
    assert np.isnan(output[0, 0, 5:, 2]).all()
    assert np.isfinite(output).sum() == output.size - 5


def temporary(function: Any, **options: Any) -> int:
    """Bytes of temporary memory that XLA plans for a call with two heads, 2048 rows and 2048 keys."""
    shape = jax.ShapeDtypeStruct((1, 2, 2048, 16), "float32")
    program = jax.jit(lambda q, k, v: function(q, k, v, **options))
    return int(program.lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes)


#: Bytes of one head's score matrix in that call.
MATRIX = 2048 * 2048 * 4


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_no_score_matrix_is_allocated(options: dict[str, Any]) -> None:
    """At 2048 rows and keys XLA plans less than one head's score matrix."""
    assert temporary(tiled_module.attention, **options) < MATRIX


def test_a_score_matrix_is_seen_where_there_is_one() -> None:
    """For jax-jit with causal rows XLA plans at least both heads' score matrices."""
    assert temporary(eager.attention, is_causal=True) >= 2 * MATRIX


def test_jax_jit_without_options_is_fused() -> None:
    """XLA computes the softmax without options in one kernel with the products: its plan has no scores."""
    assert temporary(eager.attention) < MATRIX


def test_calls_that_differ_in_numbers_share_a_program() -> None:
    """Another scale, offset or window is another argument of the same program, as in jax-jit."""
    q = np.ones((1, 1, 6, 4), np.float32)

    def run(**numbers: Any) -> None:
        reply = calls.call(JAX_TILED, calls.Request.qkv("cpu", q, q, q, {"is_causal": True, **numbers}))
        assert reply.status == "returned", reply.text

    run(scale=0.5, window=(2, 0), causal_offset=1)
    before = compiled(tiled_module.attention)._cache_size()
    run(scale=0.25, window=(3, 0), causal_offset=2)
    assert compiled(tiled_module.attention)._cache_size() == before
