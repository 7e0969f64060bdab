"""The random problems of the evidence: the same for the same index, of every kind, and of bounded work."""

from __future__ import annotations

from collections import Counter

from attention_conformance.conformance.evidence.drawn import OF_SDPA, drawn
from attention_conformance.conformance.evidence.problems import (
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
from attention_conformance.conformance.evidence.series import SDPA

#: As many as the evidence is made of.
PROBLEMS = [random_problem(index) for index in range(SDPA.problems)]
DRAWN = drawn(SDPA, SDPA.problems)


def test_an_index_always_gives_the_same_problem() -> None:
    """What was measured can be measured again."""
    assert [random_problem(n) for n in range(50)] == PROBLEMS[:50]
    assert [dtype_of(n) for n in range(50)] == [dtype_of(n) for n in range(50)]


def test_shapes_reach_from_one_to_the_largest() -> None:
    """D and Dv from 1 to 256, keys from 1 to 4096, rows from 1 on."""
    sizes = DRAWN["sizes"]
    assert sizes["D"] == sizes["Dv"] == [1, WIDTH] == [1, 256]
    assert sizes["Sk"] == [1, KEYS] == [1, 4096]
    assert sizes["Sq"] == [1, ROWS]


def test_long_and_wide_meet() -> None:
    """The limit of work cuts rows, heads and batches, and neither D nor Sk."""
    shapes = [problem.shape for problem in PROBLEMS]
    assert any(s.sk > 3000 and s.d > 150 and s.dv > 150 for s in shapes)
    assert max(s.b * s.hq * s.sq * s.sk * (s.d + s.dv) for s in shapes) <= WORK


def test_sizes_reach_both_ends_of_their_range() -> None:
    """Spreads from 0.01 to 30, offsets from −1e4 to 1e4, values from 0.01 to 100, one key 50 times as long."""
    sizes = DRAWN["sizes"]
    for name, (low, high) in {"standard deviation of q and k": SPREAD, "standard deviation of v": VALUES}.items():
        assert low <= sizes[name][0] < 1.1 * low
        assert 0.9 * high < sizes[name][1] <= high
    low, high = sizes["offset of all scores"]
    assert -OFFSET[1] <= low < -0.9 * OFFSET[1]
    assert 0.9 * OFFSET[1] < high <= OFFSET[1]
    assert 45 < sizes["length of one key over the others'"][1] <= 50


def test_every_option_is_drawn() -> None:
    """Each option, and each special value of it, is in hundreds of problems."""
    for name, count in DRAWN["has"].items():
        assert count > 300, name


def test_options_are_drawn_independently() -> None:
    """Any two options meet, and each also comes without the other."""
    options = ("mask", "bias", "is_causal", "window", "kv_lengths", "scale", "softcap", "return_weights", "return_lse")
    seen: Counter[tuple[str, str, bool, bool]] = Counter()
    for problem in PROBLEMS[:4000]:
        given = {name: bool(OF_SDPA[name](problem)) for name in options}
        seen.update((a, b, given[a], given[b]) for a in options for b in options if a < b)
    assert len(seen) == 4 * len(options) * (len(options) - 1) // 2
    assert min(seen.values()) > 20


def test_every_pattern_of_broadcast_axes_is_drawn() -> None:
    """Masks and biases of rank 1 to 4, with any of their axes of length 1."""
    axes = {given.axes for p in PROBLEMS for given in (p.mask, p.bias) if given}
    assert len(axes) == 2 + 4 + 8 + 16


def test_every_dtype_has_its_share() -> None:
    """Of a hundred problems each dtype has as many as it says, give or take one."""
    for dtype, of_hundred in DTYPES.items():
        assert abs(100 * DRAWN["dtypes"][dtype] / len(PROBLEMS) - of_hundred) < 1
