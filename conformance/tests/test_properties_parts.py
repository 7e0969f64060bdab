"""The parts of the property tests: bounds through arithmetic, exact changes of inputs, and the drawn problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from attention_conformance.conformance.cases.base import reference_of
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.properties import transform
from attention_conformance.conformance.properties.problem import Problem, RandomBias, RandomMask
from attention_conformance.conformance.properties.strategies import PALETTE, Space, pays_for_shapes, problems
from attention_conformance.conformance.properties.trial import Measured, constant, merged
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.contract import Implementation

RNG = np.random.default_rng(5)
quickly = hypothesis.settings(max_examples=100, deadline=None, database=None)


def measured(exact_value: np.ndarray, bound: float, sign: float = 1.0) -> Measured:
    """A quantity that uses its whole bound, up or down."""
    return Measured(
        exact_value + sign * bound, exact_value, np.full(exact_value.shape, bound), np.zeros(exact_value.shape, bool)
    )


def inside(each: Measured) -> bool:
    """Whether the value is within its bound, except for the rounding of float64."""
    with np.errstate(invalid="ignore"):
        error = np.where(each.value == each.exact, 0.0, np.abs(each.value - each.exact))
    return bool(np.all(error <= each.bound * (1 + 1e-12)))


def test_a_sum_has_the_sum_of_the_bounds() -> None:
    """Two quantities that use their whole bounds sum to one that exactly uses its whole bound."""
    total = 2.0 * measured(np.array([1.0]), 0.25) + -0.5 * measured(np.array([3.0]), 0.5, -1)
    assert [each.item() for each in (total.exact, total.value, total.bound)] == [0.5, 1.25, 0.75]


def test_a_number_has_no_error() -> None:
    """Adding a known number moves value and reference, and leaves the bound unchanged."""
    moved = measured(np.array([1.0]), 0.25) + 2.0
    assert [each.item() for each in (moved.exact, moved.value, moved.bound)] == [3.0, 3.25, 0.25]
    assert not constant(np.ones(2)).bound.any()


def merged_from(
    l1: float, l2: float, o1: float, o2: float, bounds: tuple[float, ...], signs: tuple[float, ...]
) -> tuple[Measured, Measured]:
    """Two merged parts whose errors have these sizes and signs."""
    shape = (1, 1, 1)
    parts = [
        measured(np.full((*shape, 1) if index % 2 == 0 else shape, value), bound, sign)
        for index, (value, bound, sign) in enumerate(zip((o1, l1, o2, l2), bounds, signs, strict=True))
    ]
    return merged(parts[0], parts[1], parts[2], parts[3])


@quickly
@hypothesis.given(
    st.floats(-30, 30),
    st.floats(-30, 30),
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.tuples(*[st.floats(0, 2)] * 4),
    st.tuples(*[st.sampled_from((-1.0, 1.0))] * 4),
)
def test_merging_stays_within_its_bound(
    l1: float, l2: float, o1: float, o2: float, bounds: tuple[float, ...], signs: tuple[float, ...]
) -> None:
    """However the errors of the parts combine, small or large, the merged result is within the merged bound."""
    output, lse = merged_from(l1, l2, o1, o2, bounds, signs)
    assert inside(output)
    assert inside(lse)


def test_the_merged_bound_is_not_empty_talk() -> None:
    """An lse in base 2 moves the merged output by far more than its bound."""
    output, _ = merged_from(3.0, 1.0, 1.0, -1.0, (1e-6,) * 4, (1.0,) * 4)
    wrong, _ = merged_from(3.0 / np.log(2), 1.0 / np.log(2), 1.0, -1.0, (1e-6,) * 4, (1.0,) * 4)
    assert np.abs(wrong.value - output.exact) > 1000 * output.bound


def test_a_part_without_a_key_changes_nothing() -> None:
    """A part with an lse of −inf and an output of 0 changes nothing; two such parts give zeros and −inf."""
    none = float("-inf")
    for l1, l2, wanted in ((none, 2.0, 5.0), (2.0, none, 0.0), (none, none, 0.0)):
        output, lse = merged_from(l1, l2, 0.0, 0.0 if l2 == none else 5.0, (0.0,) * 4, (1.0,) * 4)
        assert output.value.item() == output.exact.item() == wanted
        assert lse.value.item() == max(l1, l2)
        assert np.isfinite(output.bound).all()


FULL = Problem(
    "fuzz-parts",
    Shape(2, 4, 2, 3, 5, 4, 6),
    mask=RandomMask(),
    bias=RandomBias(),
    is_causal=True,
    causal_offset=(1, -1),
    window=(3, 1),
    kv_lengths=(5, 3),
)


def same(got: reference.Expected, wanted: np.ndarray) -> None:
    """Check the reference's output to the last digits of float64."""
    np.testing.assert_allclose(got.output, wanted, rtol=1e-12, atol=1e-12)


def test_a_batch_a_head_and_rows_are_taken_with_their_options() -> None:
    """Masks, biases, lengths and offsets are split with their part, whichever axes they have."""
    for axes in ((None, None, None, None), (1, None, 1, None), (None, 1, 1), (1, None), (1,)):
        problem = Problem(
            "fuzz-axes", FULL.shape, mask=RandomMask(0.5, axes), bias=RandomBias(1.0, axes), kv_lengths=(5, 3)
        )
        x = problem.case().make_inputs("float64")
        whole = reference_of(x).output
        same(reference_of(transform.batch(x, 1)), whole[1:])
        same(reference_of(transform.head(x, 3)), whole[:, 3:])
        same(reference_of(transform.rows(x, [2, 0])), whole[:, :, [2, 0]])
    x = FULL.case().make_inputs("float64")
    same(reference_of(transform.batch(x, 1)), reference_of(x).output[1:])


def test_later_keys_keep_their_positions() -> None:
    """The second part of the keys, counted from 0, is visible to the same rows as in the whole."""
    x = FULL.case().make_inputs("float64")
    part = reference_of(transform.shifted_keys(transform.keys(x, range(2, 5)), 2))
    np.testing.assert_array_equal(part.allowed, reference_of(x).allowed[..., 2:])


@pytest.mark.parametrize("way", list(transform.Way))
def test_hidden_keys_change_nothing(way: transform.Way) -> None:
    """Each way to hide keys works, for keys after the others and between them."""
    plain = Problem("fuzz-hidden", FULL.shape, bias=RandomBias(1.0, (1, None)))
    causal = Problem("fuzz-hidden", FULL.shape, is_causal=True, kv_lengths=(5, 3))
    for problem in (plain, causal) if way is not transform.Way.CAUSAL else (causal,):
        x = problem.case().make_inputs("float64")
        more, kept = transform.added(x, way, 3, "seed")
        assert more.k.shape[2] == 8
        np.testing.assert_array_equal(more.v[:, :, kept], x.v)
        got = reference_of(more)
        same(got, reference_of(x).output)
        assert got.allowed.sum() == reference_of(x).allowed.sum()


def test_only_possible_ways_are_tried() -> None:
    """A way needs its keyword; is_causal hides later keys only if the last row does not reach them."""
    x = Problem("fuzz-ways", Shape(sq=3, sk=3), is_causal=True).case().make_inputs("float32")
    assert transform.ways(x, frozenset({"mask", "is_causal"})) == [transform.Way.MASK, transform.Way.CAUSAL]
    short = Problem("fuzz-ways", Shape(sq=4, sk=3), is_causal=True).case().make_inputs("float32")
    assert transform.ways(short, frozenset({"is_causal"})) == []


def _always(number: int) -> Callable[[Any], Any]:
    """Draws one number from any strategy."""
    return lambda strategy: number


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_shifts_are_exact(dtype: str) -> None:
    """The scores of the two inputs differ by exactly the stated number, rounded to the dtype, even the largest."""
    half = dtype in ("float16", "bfloat16")
    problem = Problem("fuzz-shift", Shape(sq=3, sk=4, d=16), spread=3.0, bias=RandomBias(10.0))
    x = problem.case().make_inputs(dtype)
    for shift, size, moves in (
        (transform.shifted_by_bias, transform.BIAS_SHIFT if half else transform.WIDE_SHIFT, 1.0),
        (transform.shifted_by_coordinate, transform.QUERY_COORDINATE, transform.KEY_COORDINATE / 4),
    ):
        before, after, by, _ = shift(x, _always(size))
        moved = reference_of(after).scores - reference_of(before).scores
        np.testing.assert_allclose(moved, np.broadcast_to(by[..., None], moved.shape), rtol=1e-12, atol=1e-11)
        assert np.abs(by).max() == moves * size


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_combinations_of_values_are_exact(dtype: str) -> None:
    """Every a·v + b·w is stored without rounding."""
    x = Problem("fuzz-values", values=100.0).case().make_inputs(dtype)
    v, w = transform.two_values(x, "fuzz-values")
    assert np.any(v != w)
    for a in transform.FACTORS:
        for b in transform.FACTORS:
            wanted = a * v.astype(np.float64) + b * w.astype(np.float64)
            np.testing.assert_array_equal(transform.combined(a, v, b, w).astype(np.float64), wanted)


@quickly
@hypothesis.given(problems(Space()))
def test_every_problem_is_a_valid_case(problem: Problem) -> None:
    """The reference takes every drawn problem, even in the dtype with the fewest bits."""
    x = problem.case().make_inputs("bfloat16")
    assert np.isfinite(reference_of(x).output).all()
    assert problem.name.startswith("fuzz-")


@quickly
@hypothesis.given(problems(Space(frozenset({"mask", "is_causal"}), frozenset({"is_causal"}), few=True)))
def test_only_what_is_accepted_is_drawn(problem: Problem) -> None:
    """A problem has only keywords of the space, always the required ones, and few shapes where shapes are costly."""
    assert "is_causal" in problem.case().keywords <= {"mask", "is_causal"}
    assert problem.shape in PALETTE


def test_a_scale_of_zero_is_given() -> None:
    """0 is a scale and not the lack of one, also in the line to paste."""
    problem = Problem("fuzz-scale", scale=0.0)
    assert problem.case().options == {"scale": 0.0}
    assert "scale=0.0" in problem.source()


def test_compiled_and_exported_ones_pay_for_shapes() -> None:
    """Implementations prepared by more than binding options get few shapes."""
    assert not pays_for_shapes(Implementation("plain", "module:function"))
    assert pays_for_shapes(
        Implementation("compiled", "module:function", prepare="attention_conformance.impls.torch.compiled:compiled")
    )


def test_inputs_are_left_alone() -> None:
    """A change of inputs is a copy, as the drawn inputs are used again."""
    x = FULL.case().make_inputs("float32")
    before = Inputs(x.q.copy(), x.k.copy(), x.v.copy(), dict(x.keywords))
    for change in (transform.shifted_by_bias, transform.shifted_by_coordinate):
        change(x, _always(3))
    transform.added(x, transform.Way.MASK, 2, "seed")
    transform.added(x, transform.Way.BIAS, 2, "seed")
    transform.shifted_keys(x, 2)
    assert all(np.array_equal(getattr(x, name), getattr(before, name)) for name in "qkv")
    assert x.keywords == before.keywords
