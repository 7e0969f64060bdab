"""The random problems of the evidence: the same for the same index, of every kind, and of bounded work."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import Any

from attention_conformance.conformance.evidence.record import count_drawn
from attention_conformance.conformance.evidence.series import SDPA
from attention_conformance.conformance.properties.drawn import (
    DTYPES,
    KEYS,
    OFFSET,
    ROWS,
    SPREAD,
    VALUES,
    WIDTH,
    WORK,
    dtype_of,
    random_problem,
)
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.tests.special_values import SPECIAL, given


@functools.cache
def problems() -> list[Problem]:
    """The problems of the evidence; they are not drawn when this file is collected."""
    return [random_problem(index) for index in range(SDPA.problems)]


@functools.cache
def of_sdpa() -> dict[str, Any]:
    """The evidence's summary of the problems."""
    return count_drawn(replace(SDPA, problem=problems().__getitem__), SDPA.problems)


def ends(name: str) -> tuple[float, float]:
    """The smallest and the largest number of a field."""
    return of_sdpa()["fields"][name]["smallest"], of_sdpa()["fields"][name]["largest"]


def test_an_index_always_gives_the_same_problem() -> None:
    """An index always gives the same problem, so that a measurement can be repeated."""
    assert [random_problem(n) for n in range(50)] == problems()[:50]
    assert [dtype_of(n) for n in range(50)] == [dtype_of(n) for n in range(50)]


def test_shapes_reach_from_one_to_the_largest() -> None:
    """D and Dv range from 1 to 256, keys from 1 to 4096, rows from 1."""
    assert ends("d") == ends("dv") == (1, WIDTH) == (1, 256)
    assert ends("sk") == (1, KEYS) == (1, 4096)
    assert ends("sq") == (1, ROWS)


def test_long_and_wide_meet() -> None:
    """The limit of work reduces rows, heads and batches, but neither D nor Sk."""
    shapes = [problem.shape for problem in problems()]
    assert any(s.sk > 3000 and s.d > 150 and s.dv > 150 for s in shapes)
    assert max(s.b * s.hq * s.sq * s.sk * (s.d + s.dv) for s in shapes) <= WORK


def test_sizes_reach_both_ends_of_their_range() -> None:
    """Spreads reach from 0.01 to 30, offsets from −1e4 to 1e4, values from 0.01 to 100, one key is 50 times as long."""
    for name, (low, high) in {"spread": SPREAD, "values": VALUES}.items():
        assert low <= ends(name)[0] < 1.1 * low
        assert 0.9 * high < ends(name)[1] <= high
    low, high = ends("offset")
    assert -OFFSET[1] <= low < -0.9 * OFFSET[1]
    assert 0.9 * OFFSET[1] < high <= OFFSET[1]
    assert 45 < ends("outlier")[1] <= 50


def test_every_option_is_drawn() -> None:
    """Each option and each of its special values occurs in hundreds of problems."""
    counts = {name: field["given"] for name, field in of_sdpa()["fields"].items()}
    counts |= {name: sum(map(special, problems())) for name, special in SPECIAL.items()}
    assert not {name: count for name, count in counts.items() if count <= 300}


def test_options_are_drawn_independently() -> None:
    """Any two options occur together, and each also occurs without the other."""
    options = ("mask", "bias", "is_causal", "window", "kv_lengths", "scale", "softcap", "return_weights", "return_lse")
    seen: Counter[tuple[str, str, bool, bool]] = Counter()
    for problem in problems()[:4000]:
        has = {name: given(problem, name) for name in options}
        seen.update((a, b, has[a], has[b]) for a in options for b in options if a < b)
    assert len(seen) == 4 * len(options) * (len(options) - 1) // 2
    assert min(seen.values()) > 20


def test_every_pattern_of_broadcast_axes_is_drawn() -> None:
    """Masks and biases have rank 1 to 4, with any of their axes of length 1."""
    axes = {given.axes for p in problems() for given in (p.mask, p.bias) if given}
    assert len(axes) == 2 + 4 + 8 + 16


def test_every_dtype_has_its_share() -> None:
    """Each dtype has its stated share of a hundred problems, give or take one."""
    for dtype, of_hundred in DTYPES.items():
        assert abs(100 * of_sdpa()["dtypes"][dtype] / len(problems()) - of_hundred) < 1
