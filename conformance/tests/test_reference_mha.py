"""The reference of the layers: the articles' examples, a 50-digit evaluation, every option, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import mha as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec import mha as reference
from attention_conformance.conformance.spec import sdpa as of_sdpa
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.tests import fifty_digit_layers
from attention_conformance.impls.contract import Profile

Array = np.ndarray


def layer(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Random keywords of ``mha``: B 2, Sq 4, Sk 5, E 6, Ekv 3, 2 heads of width 2, Dv 3, Eo 6, all biases."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"x_q": (2, 4, 6), "x_kv": (2, 5, 3), "w_q": (6, 4), "w_k": (3, 4)}
    shapes |= {"w_v": (3, 6), "w_o": (6, 6), "b_q": (4,), "b_k": (4,), "b_v": (6,), "b_o": (6,)}
    return {"heads": 2, **{name: rng.normal(size=shape) for name, shape in shapes.items()}, **changes}


def affine(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Random gamma and beta for E 6, and an epsilon."""
    rng = np.random.default_rng([seed, 1])
    return {"gamma": rng.normal(size=6), "beta": rng.normal(size=6), "epsilon": 1e-5, **changes}


# ------------------------------------------------------------------------------------------------------ the sources

#: Source 002: four words and two pads, in the first of four coordinates.
WORDS = np.array([1.0, 2, 3, 4, 0, 0])[:, None] * np.eye(4)[:1]
IDENTITY: dict[str, Any] = {name: np.eye(4) for name in ("w_q", "w_k", "w_v")}
ONE_HEAD = (2.746314, 3.412169, 3.708405, 3.842595, 1.666667, 1.666667)
WITHOUT_PADS = (3.084576, 3.492653, 3.722723, 3.844825, 2.5, 2.5)
TWO_HEADS = (3.082310, 3.673321, 3.863222, 3.937140, 1.666667, 1.666667)


@pytest.mark.parametrize(
    ("heads", "mask", "numbers"),
    [(1, None, ONE_HEAD), (1, np.arange(6) < 4, WITHOUT_PADS), (2, None, TWO_HEADS)],
    ids=["one head", "pads masked", "two heads"],
)
def test_the_example_of_source_002(heads: int, mask: Array | None, numbers: tuple[float, ...]) -> None:
    """With identity weights the first coordinate is as printed to 6 decimals, and the others are 0."""
    output = reference.mha(WORDS, **IDENTITY, heads=heads, mask=mask).output
    np.testing.assert_allclose(output[:, 0], numbers, rtol=0, atol=5e-7)
    assert not output[:, 1:].any()


def test_the_pads_of_source_002_by_lengths_or_by_a_bias() -> None:
    """Masked pads, key lengths and an additive mask of −inf give the same."""
    masked = reference.mha(WORDS[None], **IDENTITY, heads=2, mask=np.arange(6) < 4).output
    lengths = reference.mha(WORDS[None], **IDENTITY, heads=2, kv_lengths=np.array([4])).output
    added = reference.mha(WORDS[None], **IDENTITY, heads=2, bias=np.where(np.arange(6) < 4, 0.0, -np.inf)).output
    assert np.array_equal(masked, lengths)
    assert np.array_equal(masked, added)


def test_the_scale_of_source_002_is_rejected() -> None:
    """With 1/√(model width) two heads give the numbers of one, outside the bound of the right ones."""
    right = reference.mha(WORDS, **IDENTITY, heads=2)
    wrong = reference.mha(WORDS, **IDENTITY, heads=2, scale=1 / np.sqrt(4))
    limit = bounds.bound(right, Options(), "float32", Profile.WIDE).output
    assert shares(wrong.output, right.output, limit, "float32").max() > 1


#: Source 001 §4.2: each matrix continues the one before, in steps of 0.1; the article prints W^O transposed.
X_001 = np.array([[1.0, 2.0, 3.0]])
PRINTED = [np.arange(6).reshape(3, 2) / 10 + first for first in (0.1, 0.7, 1.3, 1.9, 2.5, 3.1)]
OUT_001 = (np.arange(12).reshape(3, 4) / 10 + 3.7).T


def source_001() -> reference.LayerExpected:
    """The layer of the example: two heads of width 2, one row."""
    q, k, v = (np.concatenate([PRINTED[i], PRINTED[i + 3]], axis=1) for i in range(3))
    return reference.mha(X_001, q, k, v, heads=2, w_o=OUT_001)


def test_the_example_of_source_001() -> None:
    """Projections, heads and the final vector are the corrected ones."""
    found = source_001()
    np.testing.assert_allclose(found.q.result[0, 0], (2.2, 2.8, 13.0, 13.6), rtol=1e-12)
    np.testing.assert_allclose(found.k.result[0, 0], (5.8, 6.4, 16.6, 17.2), rtol=1e-12)
    np.testing.assert_allclose(found.v.result[0, 0], (9.4, 10.0, 20.2, 20.8), rtol=1e-12)
    np.testing.assert_allclose(found.combined[0, 0], (9.4, 10.0, 20.2, 20.8), rtol=1e-12)
    np.testing.assert_allclose(found.output[0], (234.76, 258.92, 283.08), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_published_vector_of_source_001_is_rejected(dtype: str) -> None:
    """(197.5, 208.7, 220.0) is outside every bound; (234.76, 258.92, 283.08) is inside those of float32 and looser."""
    found, profile = source_001(), Profile.STORAGE if dtype.endswith("16") else Profile.WIDE
    limit = bounds.bound(found, Options(), dtype, profile).output
    assert shares(np.array([[197.5, 208.7, 220.0]]), found.output, limit, dtype).min() > 1
    assert shares(np.array([[234.76, 258.92, 283.08]]), found.output, limit, dtype).max() <= 1


# -------------------------------------------------------------------------------------------------------- 50 digits

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "self": {"x_kv": None, "w_k": np.ones((6, 4)) / 3, "w_v": np.arange(36.0).reshape(6, 6) / 9},
    "no biases": {"b_q": None, "b_k": None, "b_v": None, "b_o": None},
    "no output projection": {"w_o": None, "b_o": None},
    "mask": {"mask": np.random.default_rng(1).random((2, 1, 4, 5)) < 0.6},
    "fully masked row": {"mask": np.arange(4)[:, None] != 1},
    "bias": {"bias": np.random.default_rng(2).normal(size=(2, 1, 5))},
    "causal": {"is_causal": True},
    "lengths": {"kv_lengths": np.array([3, 0])},
    "scale": {"scale": -0.75},
    "scale 0": {"scale": 0.0},
    "averaged": {"average_weights": True},
    "one head": {"heads": 1},
    "combined": {"is_causal": True, "kv_lengths": np.array([2, 5]), "bias": np.eye(4, 5), "mask": np.arange(5) != 1},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OPTIONS)
def test_the_layer_agrees_with_fifty_digits(name: str, seed: int) -> None:
    """Output and weights agree with the independent evaluation, within the bound of float64 for one program."""
    named = layer(seed, **OPTIONS[name])
    found = reference.mha(**named)
    output, weights = fifty_digit_layers.mha(**named)
    limit = bounds.bound(found, Options(named.get("scale"), bias=named.get("bias")), "float64", Profile.WIDE)
    assert np.all(np.abs((output - found.output).astype(float)) <= limit.output / 2)
    assert np.all(np.abs((weights - found.weights).astype(float)) <= limit.weights / 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("name", ["plain", "self", "fully masked row", "combined"])
def test_the_sublayer_agrees_with_fifty_digits(name: str, pre_norm: bool, epsilon: float, seed: int) -> None:
    """Post-norm and pre-norm agree with the independent evaluation."""
    named = {**layer(seed, **OPTIONS[name]), **affine(seed, epsilon=epsilon, pre_norm=pre_norm)}
    found = reference.sublayer(**named)
    limit = bounds.bound(found, Options(bias=named.get("bias")), "float64", Profile.WIDE).output
    output = fifty_digit_layers.sublayer(**named)
    assert np.all(np.abs((output - found.output).astype(float)) <= limit / 2)


# ---------------------------------------------------------------------------------------------------------- clauses


def test_rows_without_a_key_give_the_output_bias() -> None:
    """(MHA-13) Fully masked rows have output b_o and weights 0."""
    named = layer(mask=np.arange(4)[:, None] != 1)
    found = reference.mha(**named)
    assert np.array_equal(found.output[:, 1], np.broadcast_to(named["b_o"], (2, 6)))
    assert not found.weights[:, :, 1].any()


def test_no_keys_at_all_give_the_output_bias() -> None:
    """With Sk = 0 every row is fully masked."""
    named = layer(x_kv=np.zeros((2, 0, 3)))
    assert np.array_equal(reference.mha(**named).output, np.broadcast_to(named["b_o"], (2, 4, 6)))


def test_averaged_weights_are_the_mean_over_heads() -> None:
    """(MHA-15) Averaged weights are the mean over heads, (B, Sq, Sk)."""
    per_head, averaged = (reference.mha(**layer(average_weights=a)).weights for a in (False, True))
    np.testing.assert_allclose(averaged, per_head.mean(axis=1), rtol=1e-15)


def test_unbatched_is_a_batch_of_one() -> None:
    """(MHA-16) Inputs, mask, output and weights lose the batch axis, for both operators."""
    mask = np.random.default_rng(3).random((2, 4, 5)) < 0.7
    named = layer(mask=mask)
    alone = {**named, "x_q": named["x_q"][0], "x_kv": named["x_kv"][0]}
    whole, one = reference.mha(**named), reference.mha(**alone)
    np.testing.assert_allclose(one.output, whole.output[0], rtol=1e-13)
    np.testing.assert_allclose(one.weights, whole.weights[0], rtol=1e-13)
    below = [reference.sublayer(**n, **affine(pre_norm=True)).output for n in (named, alone)]
    np.testing.assert_allclose(below[1], below[0][0], rtol=1e-12)


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
def test_sequence_first_swaps_inputs_and_output_only(pre_norm: bool) -> None:
    """(MHA-17) Mask and weights stay (B, H, Sq, Sk)."""
    named = layer(mask=np.random.default_rng(3).random((2, 1, 4, 5)) < 0.7)
    turned = {**named, **{n: named[n].swapaxes(0, 1) for n in ("x_q", "x_kv")}, "sequence_first": True}
    whole, first = reference.mha(**named), reference.mha(**turned)
    np.testing.assert_array_equal(first.output, whole.output.swapaxes(0, 1))
    np.testing.assert_array_equal(first.weights, whole.weights)
    below = [reference.sublayer(**n, **affine(pre_norm=pre_norm)).output for n in (named, turned)]
    np.testing.assert_array_equal(below[1], below[0].swapaxes(0, 1))


def test_each_head_is_sdpa_of_its_columns() -> None:
    """(MHA-5, MHA-6, MHA-11) Head h is columns h·D … of the projections and of the combined heads."""
    named = layer(w_o=None, b_o=None)
    found = reference.mha(**named)
    for h in range(2):
        q, k, v = (
            (named[x] @ named[f"w_{n}"] + named[f"b_{n}"])[:, None, :, h * width : (h + 1) * width]
            for n, x, width in (("q", "x_q", 2), ("k", "x_kv", 2), ("v", "x_kv", 3))
        )
        np.testing.assert_allclose(
            found.output[:, :, 3 * h : 3 * h + 3], of_sdpa.sdpa(q, k, v).output[:, 0], rtol=1e-13
        )


def test_post_norm_normalises_the_sum_and_pre_norm_keeps_x() -> None:
    """(SUB-1, SUB-2) With an output projection of zeros post-norm gives LayerNorm(x) and pre-norm x itself."""
    named = layer(w_o=np.zeros((6, 6)), b_o=None)
    x, norm = named["x_q"], affine(gamma=np.ones(6), beta=np.zeros(6), epsilon=1e-30)
    post = reference.sublayer(**named, **norm).output
    np.testing.assert_allclose(post, (x - x.mean(2, keepdims=True)) / x.std(2, keepdims=True), rtol=1e-13)
    np.testing.assert_array_equal(reference.sublayer(**named, **norm, pre_norm=True).output, x)


def test_a_row_of_equal_numbers_is_normalised_to_beta() -> None:
    """(SUB-5) Epsilon prevents 0 / 0."""
    norm = affine()
    found = reference.layer_norm(np.full((1, 2, 6), 7.5), norm["gamma"], norm["beta"], 1e-5)
    assert np.array_equal(found.result, np.broadcast_to(norm["beta"], (1, 2, 6)))


# ---------------------------------------------------------------------------------------------------------- refusals

INVALID: dict[str, tuple[str, dict[str, Any]]] = {
    "heads do not divide q and k": ("MHA-19", {"heads": 3}),
    "heads do not divide v": ("MHA-19", {"w_v": np.ones((3, 5)), "b_v": np.ones(5)}),
    "no heads": ("MHA-19", {"heads": 0}),
    "rows of w_q": ("MHA-20", {"w_q": np.ones((5, 4))}),
    "rows of w_k": ("MHA-20", {"w_k": np.ones((6, 4))}),
    "rows of w_v": ("MHA-20", {"w_v": np.ones((6, 6))}),
    "rows of w_o": ("MHA-20", {"w_o": np.ones((4, 6))}),
    "columns of w_q and w_k": ("MHA-20", {"w_k": np.ones((3, 6)), "b_k": np.ones(6)}),
    "width of b_q": ("MHA-20", {"b_q": np.ones(1)}),
    "width of b_o": ("MHA-20", {"b_o": np.ones(5)}),
    "b_o without w_o": ("MHA-20", {"w_o": None}),
    "rank of a weight": ("MHA-20", {"w_q": np.ones((6, 2, 2))}),
    "batches": ("MHA-21", {"x_kv": np.ones((1, 5, 3))}),
    "ranks": ("MHA-21", {"x_kv": np.ones((5, 3))}),
    "mask": ("MHA-22", {"mask": np.ones((4, 4), bool)}),
    "bias": ("MHA-22", {"bias": np.ones((3, 1, 4, 5))}),
    "mask of a batch, unbatched": (
        "MHA-22",
        {"x_q": np.ones((4, 6)), "x_kv": np.ones((5, 3)), "mask": np.ones((1, 2, 4, 5), bool)},
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_does_not_fit_is_refused_by_its_clause(name: str) -> None:
    """(MHA-19 to MHA-22) Arguments that do not fit are refused by their clause, for both operators."""
    clause, changes = INVALID[name]
    for call in (reference.mha, lambda **named: reference.sublayer(**named, **affine())):
        with pytest.raises(InvalidInput) as caught:
            call(**layer(**changes))
        assert caught.value.clause == clause


@pytest.mark.parametrize(
    "changes",
    [{"gamma": np.ones(5)}, {"beta": np.ones(1)}, {"w_o": np.ones((6, 5)), "b_o": None}],
    ids=["gamma", "beta", "width of the output"],
)
def test_a_sublayer_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    """(SUB-10) Parameters of a sublayer that do not fit are refused."""
    with pytest.raises(InvalidInput) as caught:
        reference.sublayer(**{**layer(), **affine(), **changes})
    assert caught.value.clause == "SUB-10"
