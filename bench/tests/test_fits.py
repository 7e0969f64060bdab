"""Fitted exponents, on numbers whose exponent is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.analysis.fits import (
    PROOF,
    SQUARED,
    Growth,
    Line,
    Memory,
    fits,
    line,
    memories,
    scores,
    sentences,
    squared,
)

LENGTHS = (128, 256, 512, 1024, 2048, 4096)

CAUSAL = "prefill-b1h8d64s*-causal"


def sampled(law: Callable[[float], float], seed: int = 0, noise: float = 0.02) -> dict[int, float]:
    """A law at LENGTHS, with scatter."""
    rng = np.random.default_rng(seed)
    return {length: law(length) * float(np.exp(noise * rng.normal())) for length in LENGTHS}


def fitted(points: dict[int, float]) -> Line:
    """The fitted line, which must exist."""
    found = line(points)
    assert found is not None
    return found


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0])
def test_a_power_is_found_exactly(exponent: float) -> None:
    """Without scatter the interval is a point."""
    found = fitted({length: 7.0 * length**exponent for length in LENGTHS})
    assert found.exponent == pytest.approx(exponent)
    assert (found.low, found.high) == pytest.approx((exponent, exponent))
    assert (found.points, found.shortest, found.longest) == (6, 128, 4096)


@pytest.mark.slow(1)
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_intervals_cover_the_exponent_as_often_as_they_say(noise: float) -> None:
    """At least 92 % and at most 98 % of 500 sweeps have the true exponent in their interval."""
    found = [fitted(sampled(lambda s: s**2, seed, noise)) for seed in range(500)]
    assert 0.92 * 500 <= sum(one.low <= 2 <= one.high for one in found) <= 0.98 * 500


@pytest.mark.parametrize("overhead", [0.1 * 512**2, 128**2, 9 * 128**2])
def test_short_lengths_that_are_overhead_are_dropped(overhead: float) -> None:
    """A constant that is negligible in long calls lowers the exponent by less than 0.1, and less than undropped."""
    points = sampled(lambda s: s**2 + overhead, noise=0.0)
    everything = np.polyfit(np.log(LENGTHS), np.log(list(points.values())), 1)[0]
    found = fitted(points)
    assert found.shortest > 128
    assert 1.9 < found.exponent < 2
    assert everything < found.exponent


def test_overhead_at_all_lengths_has_no_side() -> None:
    """If even the longest calls are overhead, the interval is too wide for a verdict."""
    assert fitted(sampled(lambda s: s**2 + 100 * 128**2)).side is Growth.UNCLEAR


def test_short_lengths_that_are_fast_are_kept() -> None:
    """A call that fits in the cache is a part of the growth of time."""
    points = {length: float(length**2) for length in LENGTHS} | {128: 0.7 * 128**2}
    assert fitted(points).points == 6


def test_two_lengths_are_no_fit() -> None:
    """Neither are no lengths."""
    assert line({128: 1.0, 256: 4.0}) is None
    assert line({}) is None


def records(
    name: str, seconds: Callable[[int], float | None], memory: Callable[[int], float | None]
) -> list[dict[str, Any]]:
    """The records of a sweep of one implementation."""
    return [
        {
            "implementation": name,
            "device": "cpu",
            "dtype": "float32",
            "family": CAUSAL,
            "S": length,
            "B": 1,
            "H": 8,
            "seconds": seconds(length),
            "memory_bytes": memory(length),
        }
        for length in LENGTHS
    ]


def test_series_are_not_mixed() -> None:
    """Each implementation and quantity has its own exponent."""
    made = records("a", lambda s: 1e-9 * s**2, lambda s: 1e5 * s) + records(
        "b", lambda s: 1e-9 * s, lambda s: 99 * s**2
    )
    found = {(fit.implementation, fit.quantity): round(fit.exponent, 6) for fit in fits(reversed(made))}
    assert found == {("a", "seconds"): 2, ("a", "bytes"): 1, ("b", "seconds"): 1, ("b", "bytes"): 2}


def test_families_are_not_mixed() -> None:
    """Causal and other lengths make no sweep together."""
    made = records("a", lambda s: 1.0 * s, lambda s: None)[:4]
    for record in made[:2]:
        record["family"] = "prefill-b1h8d64s*"
    assert fits(made) == []


def test_what_was_not_measured_is_no_point() -> None:
    """None is no point, and neither are bytes so few that a page would double them."""
    made = records("a", lambda s: None if s > 256 else 1.0, lambda s: 300.0 * s)
    assert [(fit.quantity, fit.shortest) for fit in fits(made)] == []
    made = records("a", lambda s: None, lambda s: 3000.0 * s)
    assert [(fit.quantity, fit.shortest, fit.points) for fit in fits(made)] == [("bytes", 512, 4)]


def test_the_terminal_says_who_is_quadratic() -> None:
    """There is one sentence for each quantity and family, with the exponents."""
    made = records("a", lambda s: None, lambda s: 5e3 * s) + records("b", lambda s: 1e-9 * s, lambda s: 99 * s**2)
    assert sentences(fits(made), memories(made)) == [
        "memory over S, prefill-b1h8d64s*-causal cpu float32: quadratic: b 2.00; less than quadratic: a 1.00",
        "seconds over S, prefill-b1h8d64s*-causal cpu float32: less than quadratic: b 1.00",
    ]


def grown(memory: Callable[[int], float | None], longest: int = 4096, family: str = CAUSAL) -> Growth:
    """The verdict on memory that was measured up to a length."""
    made = [one | {"family": family} for one in records("a", lambda s: None, memory) if one["S"] <= longest]
    (one,) = memories(made)
    return one.growth


@pytest.mark.parametrize(
    ("memory", "growth"),
    [
        (lambda s: 8 * 4 * s**2, Growth.QUADRATIC),  # an array of scores
        (lambda s: 8 * s**2, Growth.QUADRATIC),  # a mask of bytes
        (lambda s: 8 * s**2 / 8, Growth.LESS),  # as steep, but too small to hold anything for each score
        (lambda s: 4096 * s, Growth.LESS),
        (lambda s: 0, Growth.LESS),  # nothing that a system can measure
        (lambda s: 8 * 4 * 4096 * s, Growth.LESS),  # a byte per score and more, from the width
        (lambda s: 8 * 4 * s**1.5, Growth.LESS),
        (lambda s: 8 * 4 * (s**2 if s < 2048 else 1024 * s), Growth.UNCLEAR),  # the curve bends
        (lambda s: 8 * 4 * s**2 + 4e4 * s + 5e6, Growth.QUADRATIC),  # overhead grows into an array of scores
        ({512: 16.7e6, 1024: 50.1e6, 2048: 163e6, 4096: 594e6}.get, Growth.QUADRATIC),  # XLA's numbers
    ],
)
def test_quadratic_takes_an_exponent_and_an_array_of_scores(memory: Callable[[int], float], growth: Growth) -> None:
    """One of them is not enough, and an interval on both sides of the threshold decides nothing."""
    assert grown(memory) is growth


def test_the_square_term_has_no_constant_and_no_linear_part() -> None:
    """The square term is fitted to the three longest lengths; fewer lengths have none."""
    assert squared(
        {1: 9.0, 512: 3.0 * 512**2 + 700 * 512 + 9e6, 1024: 3.0 * 2**20 + 700 * 1024 + 9e6}
        | {
            4096: 3.0 * 2**24 + 700 * 4096 + 9e6,
        }
    ) == pytest.approx(3.0 * 2**24)
    assert math.isnan(squared({1: 1.0, 2: 4.0}))


@pytest.mark.parametrize(("middle", "longest"), [(-0.19, 0.0), (0.0, 0.40)])
def test_what_error_makes_a_linear_part_look_squared(middle: float, longest: float) -> None:
    """In a sweep by doublings an error as large as SQUARED allows does, and a smaller one does not."""
    for share, reached in ((1.0, True), (0.95, False)):
        points = {1024: 0.25, 2048: 0.5 * (1 + share * middle), 4096: 1 + share * longest}
        assert (squared(points) >= SQUARED * points[4096]) is reached


def test_what_grows_as_a_square_decides_where_the_interval_cannot() -> None:
    """It must be three quarters of the longest call's bytes; an interval that decides has the last word."""
    for low, high, share, growth in (
        (1.2, 2.4, 0.75, Growth.QUADRATIC),
        (1.2, 2.4, 0.74, Growth.UNCLEAR),
        (1.2, 2.4, math.nan, Growth.UNCLEAR),
        (1.2, 1.4, 0.75, Growth.LESS),
    ):
        of = Line(1.3, low, high, 3, 1024, 4096)
        assert Memory("a", "cpu", "float32", CAUSAL, 4096, 4.0 * PROOF, PROOF, of, share * 4 * PROOF).growth is growth


def test_a_short_sweep_in_blocks_is_not_called_quadratic() -> None:
    """Blocks of 1024 rows and keys of eight heads are all scores up to S = 1024; longer calls distinguish them."""

    def blocks(s: int) -> float:
        return 8 * 4 * min(s, 1024) ** 2 + 2048 * s

    assert [grown(blocks, longest) for longest in (512, 1024)] == [Growth.UNCLEAR] * 2
    assert grown(blocks) is not Growth.QUADRATIC


def test_two_lengths_have_no_interval_and_prove_no_array() -> None:
    """Two lengths can rule out an array, by bytes."""
    made = records("a", lambda s: None, lambda s: 32 * s**2)[-2:] + records("b", lambda s: None, lambda s: 99 * s)[-2:]
    assert {one.implementation: one.growth for one in memories(made)} == {"a": Growth.UNCLEAR, "b": Growth.LESS}


def test_where_rows_are_not_keys_the_exponent_alone_decides() -> None:
    """A decoding call, or one with other key lengths, has no B·H·S² scores."""
    for family in ("decode-b1h8d64s1k*", "cross-b1h8d64s*k512"):
        assert grown(lambda s: 4096 * s, family=family) is Growth.LESS
        assert grown(lambda s: 64 * s**2, family=family) is Growth.QUADRATIC


def test_the_least_call_that_proves_something_has_two_to_the_24_scores() -> None:
    """One score less is too few."""
    assert scores({"family": CAUSAL, "B": 4, "H": 4, "S": 1024}) == PROOF
    of = line({length: 4.0 * length**2 for length in LENGTHS})
    found = [Memory("a", "cpu", "float32", CAUSAL, 1024, 4.0 * n, n, of).growth for n in (PROOF - 1, PROOF)]
    assert found == [Growth.UNCLEAR, Growth.QUADRATIC]
