"""The layers written out in NumPy, compared with float64 head by head, and mistakes that the comparison rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.numpy import layer
from attention_conformance.impls.numpy.layer import mha, sublayer
from attention_conformance.impls.tests.layer_problems import (
    FOUR_WORDS,
    NORMS,
    PROBLEMS,
    assert_four_words,
    assert_right,
    copied,
    four_words,
    problem,
)

#: The dtype of the computation, by dtype.
INNER = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}


@pytest.mark.parametrize("dtype", INNER)
@pytest.mark.parametrize("name", PROBLEMS)
def test_mha(name: str, dtype: str) -> None:
    """The layer is right in every dtype and form, computed in float32 or wider, and leaves its inputs unchanged."""
    arrays, options = problem(name, dtype)
    before = copied(arrays)
    assert_right(mha(**arrays, **options), arrays, options, INNER[dtype])
    assert all((arrays[each] == before[each]).all() for each in before)


@pytest.mark.parametrize("dtype", INNER)
@pytest.mark.parametrize("name", NORMS)
def test_sublayer(name: str, dtype: str) -> None:
    """The sub-layer is right in both forms, and leaves its inputs unchanged."""
    arrays, options = problem(name, dtype)
    before = copied(arrays)
    assert_right(sublayer(**arrays, **options), arrays, options, INNER[dtype])
    assert all((arrays[each] == before[each]).all() for each in before)


@pytest.mark.parametrize("name", FOUR_WORDS)
def test_four_words(name: str) -> None:
    """Source 002's example gives the documented numbers."""
    options, first = FOUR_WORDS[name]
    assert_four_words(mha(**four_words(), **options), first)


def test_batches_do_not_mix() -> None:
    """Each batch gives the same result alone and among others: heads are combined within a batch."""
    arrays, options = problem("cross", "float64")
    together = mha(**arrays, **options)
    for b in range(2):
        alone = mha(**(arrays | {name: arrays[name][b : b + 1] for name in ("x_q", "x_kv")}), **options)
        assert np.allclose(alone[0], together[b], rtol=0, atol=1e-13)


def test_row_without_key() -> None:
    """A batch whose keys are all padding gives the bias of the output projection, and weights of zero."""
    arrays, options = problem("lengths-weights", "float64")
    output, weights = mha(**(arrays | {"kv_lengths": np.array([5, 0])}), **options)
    assert (output[1] == arrays["b_o"]).all()
    assert not weights[1].any()
    assert np.isfinite(output).all()


def test_masked_nan_stays_out() -> None:
    """NaN in the input of a masked key does not reach the other rows."""
    arrays, options = problem("lengths", "float32")
    arrays["x_q"][1, 3] = np.nan
    output = mha(**arrays, **options)
    assert np.isnan(output[1, 3]).all()
    assert np.isfinite(np.delete(output[1], 3, axis=0)).all()


WRONG_SHAPES: dict[str, dict[str, Any]] = {
    "heads": {"heads": 3},
    "no heads": {"heads": 0},
    "w_k": {"w_k": np.ones((8, 6))},
    "w_o": {"w_o": np.ones((6, 8))},
    "b_v": {"b_v": np.ones(7)},
    "x_kv": {"x_kv": np.ones((5, 8))},
    "w_o is missing": {"w_o": None},
    "batches": {"x_kv": np.ones((3, 5, 8))},
    "mask": {"mask": np.ones((4, 5), bool)},
    "kv_lengths": {"kv_lengths": np.array([1, 2, 3])},
}


@pytest.mark.parametrize("change", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    """Heads that do not divide the width, and shapes that do not fit together, raise ValueError."""
    arrays, options = problem("plain", "float64")
    with pytest.raises(ValueError, match=r"."):
        mha(**(arrays | options | change))


@pytest.mark.parametrize("name", ["w_q", "b_o", "bias"])
def test_another_dtype_is_refused(name: str) -> None:
    """A weight, a bias or an additive mask of another dtype raises TypeError instead of being widened silently."""
    arrays, options = problem("bias", "float64")
    with pytest.raises(TypeError, match=name):
        mha(**(arrays | {name: arrays[name].astype("float32")}), **options)


def test_residual_needs_one_width() -> None:
    """A sub-layer whose output is not as wide as its input raises ValueError instead of broadcasting."""
    arrays, options = problem("post-norm", "float64")
    narrow = {"w_o": arrays["w_o"][:, :1], "b_o": arrays["b_o"][:1]}
    with pytest.raises(ValueError, match="residual"):
        sublayer(**(arrays | narrow), **options)


def _combined_without_moving_the_sequence(x: np.ndarray) -> np.ndarray:
    batch, heads, length, width = x.shape
    return x.reshape(batch, length, heads * width)


def _heads_interleaved(x: np.ndarray, heads: int) -> np.ndarray:
    batch, length, width = x.shape
    return x.reshape(batch, length, width // heads, heads).transpose(0, 3, 1, 2)


def _bessel(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + epsilon) * gamma + beta


def _epsilon_beside_the_root(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + epsilon) * gamma + beta


@pytest.mark.parametrize("dtype", INNER)
def test_scale_by_model_width_is_rejected(dtype: str) -> None:
    """The comparison used here detects 1/√(model width) instead of 1/√(head width), in every dtype."""
    arrays, options = problem("plain", dtype)
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(mha(**arrays, **options, scale=8**-0.5), arrays, options, INNER[dtype])


MISTAKES = {
    "combine": ("_combine", _combined_without_moving_the_sequence, "plain"),
    "split": ("_split", _heads_interleaved, "plain"),
    "bessel": ("_normalise", _bessel, "post-norm"),
    "epsilon": ("_normalise", _epsilon_beside_the_root, "post-norm-unbatched-large-epsilon"),
}


@pytest.mark.parametrize(("part", "wrong", "name"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_rejected(part: str, wrong: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison used here detects heads combined or split in another order, and two other normalisations."""
    monkeypatch.setattr(layer, part, wrong)
    arrays, options = problem(name, "float32")
    function: Any = sublayer if name in NORMS else mha
    with pytest.raises(AssertionError, match="times the limit"):
        assert_right(function(**arrays, **options), arrays, options)
