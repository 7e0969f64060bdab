"""Merging of partial results: the reference against exact arithmetic and attention, its bound, and its laws."""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance.conformance.bounds import merge as bounds
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.base import ALL_DTYPES, NUMPY_DTYPES
from attention_conformance.conformance.cases.merge import cases, joined, sizes
from attention_conformance.conformance.diagnosis.explanation import Passed
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.evidence.merge_variants import RIGHT, States
from attention_conformance.conformance.faults.models.merge import Merging
from attention_conformance.conformance.faults.registry import Fault, faults_of
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec import sdpa as attention
from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.spec.merge import MergeExpected, merge
from attention_conformance.impls.contract import Implementation, Profile

Array = np.ndarray

CASES = sorted(cases(), key=lambda case: case.size)
EXAMPLES = tomllib.loads(DATA.read_text(encoding="utf-8"))["merges"]
by_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])


def fractions(numbers: list) -> list:  # type: ignore[type-arg]
    """Numbers of an example as nested fractions."""
    return [fractions(each) if isinstance(each, list) else Fraction(each) for each in numbers]


def agrees(found: MergeExpected, output: Array, lse: Array, dtype: str = "float64") -> bool:
    """Whether results are within the bound of the reference."""
    bound = bounds.bound(found, dtype, Profile.WIDE)
    pairs = (("output", output), ("lse", lse))
    return all(compare(n, got, getattr(found, n), getattr(bound, n), dtype).ok for n, got in pairs)


# Examples by hand.


@by_example
def test_examples_follow_from_their_parts(example) -> None:  # type: ignore[no-untyped-def]
    """Weights, total and output follow exactly from the parts, and rejected results differ."""
    powers, outputs = fractions(example["powers"]), fractions(example["outputs"])
    total = sum(powers)
    weights = [power / total if total else Fraction(0) for power in powers]
    output = [sum(w * part[d] for w, part in zip(weights, outputs, strict=True)) for d in range(len(outputs[0]))]
    assert (fractions(example["weights"]), fractions(example["output"])) == (weights, output)
    assert Fraction(example["total"]) == total
    assert all(fractions(wrong["output"]) != output for wrong in example.get("rejected", ()))


@by_example
def test_the_reference_gives_the_examples(example) -> None:  # type: ignore[no-untyped-def]
    """The reference is within the bound of float64, and gives no rejected result."""
    powers, outputs = (np.array(fractions(example[n]), float) for n in ("powers", "outputs"))
    with np.errstate(divide="ignore"):
        lses, total = np.log(powers), np.log(float(Fraction(example["total"])))
    found = merge(outputs[:, None, None, None], lses[:, None, None, None])
    assert agrees(found, np.array(fractions(example["output"]), float)[None, None, None], np.full((1, 1, 1), total))
    for wrong in example.get("rejected", ()):
        assert not agrees(found, np.array(fractions(wrong["output"]), float)[None, None, None], found.lse)


# Exact arithmetic, and attention.


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_agrees_with_fifty_digits(seed: int) -> None:
    """The reference agrees with 50 digits for parts with log-sum-exps of any size, some without a key."""
    rng = np.random.default_rng(seed)
    parts = int(rng.integers(1, 9))
    outputs, lses = rng.standard_normal((parts, 3)), rng.choice([1.0, 30.0, 700.0]) * rng.standard_normal(parts)
    lses[rng.random(parts) < 0.3] = -np.inf
    found = merge(outputs[:, None, None, None], lses[:, None, None, None])
    with mpmath.workdps(50):
        powers = [mpmath.exp(each) if np.isfinite(each) else mpmath.mpf(0) for each in lses]
        total = mpmath.fsum(powers)
        rows = [mpmath.fsum(p * o for p, o in zip(powers, outputs[:, d], strict=True)) for d in range(3)]
        output = np.array([float(row / total) if total else 0.0 for row in rows])
        lse = float(mpmath.log(total)) if total else -np.inf
    assert agrees(found, output[None, None, None], np.full((1, 1, 1), lse))


@pytest.mark.parametrize("keys", [(16, 16), (1, 40), (3, 0, 5), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_merging_equals_attention_over_all_keys(keys: tuple[int, ...], is_causal: bool) -> None:
    """(MERGE-11) Parts of sdpa over disjoint keys merge to sdpa over all of them, fully masked rows included."""
    s = sizes(s=6, parts=len(keys))
    outputs, lses = joined(*keys, is_causal=is_causal)(np.random.default_rng(3), s)
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((s.b, s.hq, n, s.dv)) for n in (s.sq, sum(keys), sum(keys)))
    whole = attention.sdpa(q, k, v, is_causal=is_causal)
    found = merge(outputs, lses)
    np.testing.assert_allclose(found.output, whole.output, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.lse, whole.lse, rtol=0, atol=1e-13)


def test_a_sink_belongs_to_one_part() -> None:
    """(MERGE-11) With sinks in the first part only, the merge is attention with sinks; in both parts it is not."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 2, n, 8)) for n in (5, 12, 12))
    sinks = np.array([0.5, -1.0])

    def parts(second: Array | None) -> MergeExpected:
        halves = (
            attention.sdpa(q, k[:, :, part], v[:, :, part], sinks=sink)
            for part, sink in ((slice(0, 6), sinks), (slice(6, 12), second))
        )
        outputs, lses = zip(*((half.output, half.lse) for half in halves), strict=True)
        return merge(np.stack(outputs), np.stack(lses))

    whole = attention.sdpa(q, k, v, sinks=sinks)
    np.testing.assert_allclose(parts(None).output, whole.output, rtol=0, atol=1e-13)
    assert np.abs(parts(sinks).output - whole.output).max() > 1e-3


# Laws.

finite = st.floats(-600, 600)
state = st.tuples(st.floats(-1e3, 1e3), st.one_of(finite, st.just(-np.inf)))


def merged(states: list[tuple[float, float]]) -> tuple[float, float]:
    """The merged state of several states with one row and column each."""
    outputs, lses = (np.array(each)[:, None, None, None] for each in zip(*states, strict=True))
    found = merge(outputs[..., None], lses)
    return float(found.output.item()), float(found.lse.item())


def close(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether states are equal except for float64 rounding: 1e-12 relative to outputs, for log-sum-exps up to 600."""
    (a, b), (c, d) = one, other
    return abs(a - c) <= 1e-9 and (b == d or abs(b - d) <= 1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(state, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_parts_does_not_matter(states, random) -> None:  # type: ignore[no-untyped-def]
    """(MERGE-5) Any permutation of the parts gives the same."""
    assert close(merged(states), merged(random.sample(states, len(states))))


@settings(max_examples=200, deadline=None)
@given(st.lists(state, min_size=2, max_size=6), st.data())
def test_which_parts_are_merged_first_does_not_matter(states, data) -> None:  # type: ignore[no-untyped-def]
    """(MERGE-5) Some parts merged first, and then with the rest, give the same."""
    cut = data.draw(st.integers(1, len(states)))
    assert close(merged(states), merged([merged(states[:cut]), *states[cut:]]))


@settings(max_examples=200, deadline=None)
@given(state, st.floats(-1e3, 1e3))
def test_a_part_without_a_key_is_neutral(one, junk) -> None:  # type: ignore[no-untyped-def]
    """(MERGE-6, MERGE-8) A part without a key changes nothing, first or last; two such parts merge to one."""
    for states in ([one, (junk, -np.inf)], [(junk, -np.inf), one]):
        assert close(merged(states), one if np.isfinite(one[1]) else (0.0, -np.inf))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-50, 50)), min_size=1, max_size=6), st.floats(-500, 500))
def test_a_number_added_to_all_is_added_to_lse(states, shift) -> None:  # type: ignore[no-untyped-def]
    """(MERGE-2) A number added to all log-sum-exps is added to the merged one, and the output is unchanged."""
    output, lse = merged(states)
    assert close(merged([(o, each + shift) for o, each in states]), (output, lse + shift))


# Programs that are right.

#: Number of random problems for each program in each dtype.
PROBLEMS = 150


def problem(rng: np.random.Generator, dtype: str) -> States:
    """Parts of any number, log-sum-exps of any size, some without a key (and zeros), outputs of any size."""
    rows = (int(rng.choice([1, 2, 2, 3, 5, 8, 17, 64])), 2, 2, int(rng.integers(1, 6)))
    lses = rng.choice([0.0, 5.0, -300.0, 2000.0]) + rng.choice([0.1, 2.0, 40.0]) * rng.standard_normal(rows)
    outputs = rng.choice([1e-3, 1.0, 100.0]) * (rng.standard_normal((*rows, 6)) + rng.choice([0.0, 3.0]))
    empty = rng.random(rows) < rng.choice([0.0, 0.3])
    outputs, lses = np.where(empty[..., None], 0.0, outputs), np.where(empty, -np.inf, lses)
    return outputs.astype(NUMPY_DTYPES[dtype]), lses.astype(np.float64 if dtype == "float64" else np.float32)


@pytest.mark.slow(2)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_are_within_the_bound(program: Callable[[Array, Array], States], dtype: str) -> None:
    """Right programs of every form in use are within the bound."""
    rng = np.random.default_rng(7)
    for _ in range(PROBLEMS):
        outputs, lses = problem(rng, dtype)
        expected = merge(outputs, lses)
        bound = bounds.bound(expected, dtype, RIGHT[program])
        with np.errstate(all="ignore"):
            found = program(outputs, lses)
        wide = "float64" if dtype == "float64" else "float32"
        for name, got, stored in zip(("output", "lse"), found, (dtype, wide), strict=True):
            assert compare(name, got, getattr(expected, name), getattr(bound, name), stored).ok, (outputs, lses)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_the_bound_rejects_small_errors(dtype: str) -> None:
    """One part's lse moved by 0.01 (0.1 in bfloat16), or the merged lse moved by 1e-4, leaves the bound."""
    outputs, lses = states = every_case()["merge-two"].inputs(dtype).arrays.values()
    expected = merge(*states)
    bound = bounds.bound(expected, dtype, Profile.STORAGE)
    moved = lses.astype(float)
    moved[0] += 0.1 if dtype == "bfloat16" else 0.01
    for name, wrong in (("output", merge(outputs, moved).output), ("lse", expected.lse + 1e-4)):
        assert not compare(name, wrong, getattr(expected, name), getattr(bound, name), "float64").ok


# Faults.


@functools.cache
def caught(fault: Fault) -> tuple[str, ...]:
    """The cases that catch a fault, smallest first."""
    implementation = Implementation("fault", "")
    found = []
    for case in CASES:
        trials = (trial(fault.make, case, dtype, implementation.profile(dtype)) for dtype in case.dtypes)
        if any(each.verdict.outcome is Outcome.FAILED for each in trials):
            found.append(case.name)
    return tuple(found)


@pytest.mark.slow(1)
@pytest.mark.parametrize("fault", faults_of("merge"), ids=lambda fault: fault.name)
def test_every_fault_is_caught_twice(fault: Fault) -> None:
    """Each fault is caught by at least two cases, and a right program by none."""
    assert len(caught(fault)) >= 2
    assert not any(trial(Merging, case, d, Profile.WIDE).verdict.failure for case in CASES for d in case.dtypes)


@pytest.mark.slow(3)
@pytest.mark.parametrize("fault", faults_of("merge"), ids=lambda fault: fault.name)
def test_every_fault_is_named(fault: Fault) -> None:
    """The diagnosis of a fault's failures, with its passed cases, names the fault."""
    profile = Implementation("fault", "").profile
    failures, passed = [], []
    for case, dtype in ((each, d) for each in CASES for d in each.dtypes if d != "float64"):
        found = trial(fault.make, case, dtype, profile(dtype))
        if found.verdict.failure is None:
            passed.append(Passed(case, dtype, profile(dtype)))
        elif found.verdict.outcome is Outcome.FAILED:
            failures.append(Failed(case, dtype, profile(dtype), found.verdict.failure, found.reply))
    named = {name for explanation in diagnose(failures, passed, pairs=False) for name in explanation.names}
    assert fault.name in named


def test_all_pairs_of_parts_commute_bit_for_bit_in_the_model() -> None:
    """Two parts give the same bits in either order, as a sum of two does."""
    case = every_case()["merge-two"]
    outputs, lses = case.inputs("float32").arrays.values()
    for one, other in itertools.pairwise((Merging()(outputs, lses), Merging()(outputs[::-1], lses[::-1]))):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
