"""Problems for tests of layers: seeded inputs, a name for each feature, and the one check of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.impls.tests.layers import layer

B, H, SQ, SK, E, EKV = 2, 2, 5, 7, 8, 6

Arrays = dict[str, Any]  # NumPy arrays; Any, so that they can be passed as keywords

#: Options of the problems.  "cross" gives x_kv (B, Sk, Ekv) and "wide" heads that together are not as wide as the
#: input, with values of a third width; "parts" names the biases; "mask" and "bias" are shapes.
PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-biases": {"parts": ""},
    "some-biases": {"parts": "ko"},
    "four-heads": {"heads": 4},
    "cross": {"cross": True},
    "cross-weights": {"cross": True, "return_weights": True},
    "unbatched": {"batch": None},
    "unbatched-causal": {"batch": None, "is_causal": True},
    "unbatched-cross-weights": {"batch": None, "cross": True, "return_weights": True},
    "sequence-first": {"sequence_first": True},
    "sequence-first-cross-weights": {"sequence_first": True, "cross": True, "return_weights": True},
    "sequence-first-lengths": {"sequence_first": True, "kv_lengths": True},
    "mask": {"mask": (B, H, SQ, SQ)},
    "mask-rows": {"mask": (SQ, SQ)},
    "mask-per-batch": {"mask": (B, 1, SQ, SQ), "return_weights": True},
    "mask-padding": {"mask": (B, 1, 1, SQ)},
    "lengths": {"kv_lengths": True},
    "lengths-weights": {"kv_lengths": True, "return_weights": True},
    "lengths-causal": {"kv_lengths": True, "is_causal": True},
    "causal": {"is_causal": True},
    "causal-weights": {"is_causal": True, "return_weights": True},
    "causal-mask": {"is_causal": True, "mask": (B, 1, SQ, SQ)},
    "causal-cross": {"is_causal": True, "cross": True},
    "bias": {"bias": (B, H, SQ, SQ)},
    "bias-heads": {"bias": (H, 1, SQ), "return_weights": True},
    "bias-causal": {"bias": (SQ, SQ), "is_causal": True},
    "bias-padding": {"bias": (B, H, SQ, SQ), "mask": (B, 1, 1, SQ)},
    "weights": {"return_weights": True},
    "weights-averaged": {"return_weights": True, "average_weights": True, "heads": 4},
    "scale": {"scale": -0.75},
    "heads-not-as-wide-as-input": {"wide": True},
    "no-output-projection": {"w_o": False},
    "one-head-no-output-projection": {"w_o": False, "heads": 1, "mask": (B, 1, SQ, SQ), "return_weights": True},
}

#: Problems with a residual connection and a LayerNorm around the layer.
NORMS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": True},
    "pre-norm": {"norm": True, "pre_norm": True},
    "post-norm-cross-lengths": {"norm": True, "cross": True, "kv_lengths": True},
    "pre-norm-cross": {"norm": True, "pre_norm": True, "cross": True},
    "pre-norm-causal-mask": {"norm": True, "pre_norm": True, "is_causal": True, "mask": (SQ, SQ)},
    "post-norm-bias-sequence-first": {"norm": True, "sequence_first": True, "bias": (H, SQ, SQ)},
    "post-norm-unbatched-large-epsilon": {"norm": True, "batch": None, "epsilon": 0.5},
}

#: Options that are not keywords of the operators but say how to draw the inputs.
_DRAWING = ("batch", "cross", "wide", "parts", "mask", "bias", "kv_lengths", "w_o", "norm")


def problem(name: str, dtype: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the plain keywords of a problem; every row has a key."""
    wanted = (PROBLEMS | NORMS)[name]
    rng = np.random.default_rng(0)
    batch, cross = wanted.get("batch", B), wanted.get("cross", False)
    inner, value = (3 * 4, 5 * 4) if wanted.get("wide") else (E, E)
    source, out = EKV if cross else E, E if wanted.get("w_o", True) else value
    keys = SK if cross else SQ

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.7).astype(dtype)

    def inputs(length: int, width: int) -> np.ndarray:
        order = (length, batch) if wanted.get("sequence_first") else (batch, length)
        return draw(length, width) if batch is None else draw(*order, width)

    arrays = {"x_q": inputs(SQ, E), "w_q": draw(E, inner), "w_k": draw(source, inner), "w_v": draw(source, value)}
    if cross:
        arrays["x_kv"] = inputs(SK, source)
    if wanted.get("w_o", True):
        arrays["w_o"] = draw(value, out)
    biases = {"q": inner, "k": inner, "v": value, **({"o": out} if "w_o" in arrays else {})}
    arrays |= {f"b_{part}": draw(width) for part, width in biases.items() if part in wanted.get("parts", "qkvo")}
    if "mask" in wanted:
        arrays["mask"] = rng.random(wanted["mask"]) < 0.6
        arrays["mask"][..., 0] = True
    if "bias" in wanted:
        arrays["bias"] = draw(*wanted["bias"])
        arrays["bias"][..., -1:] = -np.inf
    if wanted.get("kv_lengths"):
        arrays["kv_lengths"] = np.array([keys - 2, 1])
    options = {"heads": H} | {n: each for n, each in wanted.items() if n not in _DRAWING}
    if wanted.get("norm"):
        arrays |= {"gamma": draw(E), "beta": draw(E)}
        options = {"epsilon": 1e-5} | options
    return arrays, options


def copied(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Copies of the arrays, to compare with after a call."""
    return {name: array.copy() for name, array in arrays.items()}


def assert_right(found: Any, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any], inner: str = "") -> None:
    """Assert shape, dtype and nearness of all results; ``inner`` is the dtype computed in, by default that of x_q.

    The limits are those of ``impls.tests.layers``, where only the roundings per operation are chosen.
    """
    dtype = str(arrays["x_q"].dtype)
    expected = layer(arrays, options, inner or dtype)
    results = found if isinstance(found, tuple) else (found,)
    assert len(results) == len(expected)
    for result, (name, near) in zip(results, expected.items(), strict=True):
        assert (str(result.dtype), result.shape) == (dtype, near.value.shape), name
        off = np.abs(result.astype(np.float64) - near.value)
        assert (off <= near.error).all(), f"{name}: {np.nanmax(off / near.error):.3g} times the limit"


def four_words() -> Arrays:
    """Source 002's example: four words and two pads, in the first of four coordinates; all weights are identities."""
    x = np.zeros((6, 4))
    x[:4, 0] = 1, 2, 3, 4
    return {"x_q": x, **{name: np.eye(4) for name in ("w_q", "w_k", "w_v", "w_o")}}


#: First coordinates of the outputs of source 002's example, to six decimals; all others are 0.
FOUR_WORDS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "one head": ({"heads": 1}, (2.746314, 3.412169, 3.708405, 3.842595, 1.666667, 1.666667)),
    "two heads": ({"heads": 2}, (3.082310, 3.673321, 3.863222, 3.937140, 1.666667, 1.666667)),
    "pads masked": (
        {"heads": 1, "mask": np.array([True] * 4 + [False] * 2)},
        (3.084576, 3.492653, 3.722723, 3.844825, 2.5, 2.5),
    ),
}
#: Half a unit of the last decimal, and what float32 adds to numbers below 4.
SIX_DECIMALS = {"float64": 0.5e-6, "float32": 0.5e-6 + 16 * 4 * 2.0**-24}


def assert_four_words(output: np.ndarray, first: tuple[float, ...]) -> None:
    """Assert that the first coordinates are the documented ones, and all others are zero."""
    assert np.abs(output[:, 0] - first).max() <= SIX_DECIMALS[str(output.dtype)]
    assert not output[:, 1:].any()
