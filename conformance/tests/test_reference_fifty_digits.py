"""The reference agrees with an independent 50-digit evaluation of the same formulas, on random small inputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.tests import fifty_digits
from attention_conformance.conformance.tests.first_order import agree, limits
from attention_conformance.conformance.tests.hand_examples import OPTIONS, Example, disagreements, examples

pytestmark = pytest.mark.slow

UNIT = 2.0**-53
#: Number of cases per test, so that a failure names its seed and the tests stay short.
SEEDS = range(800)
CHUNK = 40

#: Factors on q, k and v: ordinary, nearly equal scores, peaked softmax, and values near the ends of float64.
SPREADS = ((1.0, 1.0), (1e-3, 1.0), (30.0, 1.0), (3.0, 1e300), (3.0, 1e-300))

#: Options that add roundings to scores.
INEXACT = ("bias", "softcap", "alibi_slopes", "head_scale", "rotary_cos", "rotary_sin", "rotary_interleaved")


def _chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def _length(rng: np.random.Generator, largest: int) -> int:
    return 0 if _chance(rng, 0.04) else int(rng.integers(1, largest + 1))


def _part(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: leading axes left off, others 1."""
    shape = tuple(1 if _chance(rng, 0.3) else length for length in shape)
    return shape[int(rng.integers(0, len(shape))) :]


def _options(rng: np.random.Generator, shape: tuple[int, int, int, int], width: int) -> dict[str, Any]:
    batch, heads, queries, keys = shape
    options: dict[str, Any] = {}
    if _chance(rng, 0.4):
        options["mask"] = rng.random(_part(rng, shape)) < 0.7
    if _chance(rng, 0.4):
        bias = rng.normal(size=_part(rng, shape)) * rng.choice([1.0, 100.0])
        options["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias)
    if _chance(rng, 0.4):
        options["is_causal"] = True
    if _chance(rng, 0.4):
        sides = [None if _chance(rng, 0.3) else int(rng.integers(0, 4)) for _ in range(2)]
        options["window"] = tuple(sides)
    if _chance(rng, 0.3):
        size = tuple(int(n) for n in rng.integers(1, 5, size=2))
        blocks = tuple(-(-n // of) for n, of in zip((queries, keys), size, strict=True))
        options |= {"block_size": size, "block_mask": rng.random((*_part(rng, shape[:2]), *blocks)) < 0.7}
    if _chance(rng, 0.3):
        options["tree_parents"] = rng.integers(-1, np.arange(queries), (batch, queries))
    for name in ("alibi_slopes", "head_scale"):
        if _chance(rng, 0.3):
            options[name] = rng.normal(size=heads)
    if width > 1 and _chance(rng, 0.2):  # angles for more places than needed; negative places count from the end
        angles = rng.uniform(-3, 3, (64, int(rng.integers(1, width // 2 + 1))))
        options |= {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}
        options["rotary_interleaved"] = _chance(rng, 0.5)
    if options.keys() & {"is_causal", "window", "tree_parents", "alibi_slopes", "rotary_cos"} and _chance(rng, 0.6):
        per_batch = rng.integers(-queries - 1, keys + 2, size=batch)
        options["causal_offset"] = per_batch if _chance(rng, 0.5) else int(rng.integers(-queries - 1, keys + 2))
    if _chance(rng, 0.3):
        options["kv_lengths"] = rng.integers(0, keys + 1, size=batch)
    if _chance(rng, 0.6):
        options["scale"] = float(rng.choice([0.0, 1.0, -0.5, 0.125, 1e-9, rng.normal()]))
    if _chance(rng, 0.3):
        options["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
    return options


def _case(seed: int) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], dict[str, Any], bool]:
    """q, k and v, options, and whether every score is exact in float64.

    One in eight has whole numbers times 2^30 in q and k and scale 1: scores of up to 2^64 without any error,
    which must neither overflow nor mix keys that differ.
    """
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 3))
    heads = kv_heads * int(rng.integers(1, 3))
    batch, queries, keys, width = _length(rng, 2), _length(rng, 4), _length(rng, 5), int(rng.integers(1, 5))
    values = _length(rng, 4)
    shapes = ((batch, heads, queries, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, values))
    options = _options(rng, (batch, heads, queries, keys), width)
    scores, size = SPREADS[int(rng.integers(len(SPREADS)))]
    q, k, v = (rng.normal(size=shape) for shape in shapes)
    if huge := seed % 8 == 0:
        q, k = (np.round(2 * array) * 2.0**30 for array in (q, k))
        options = {name: value for name, value in options.items() if name not in INEXACT} | {"scale": 1.0}
        return (q, k, v), options, huge
    return (q * scores, k * scores, v * size), options, huge


def _arrays(rows: dict[tuple[int, ...], Any], expected: reference.Expected) -> dict[str, np.ndarray]:
    """The rows of the 50-digit evaluation as float64 arrays in the shapes of SPEC.md."""
    output = np.full(expected.output.shape, np.nan)
    weights = np.full(expected.weights.shape, np.nan)
    lse = np.full(expected.lse.shape, np.nan)
    for index, row in rows.items():
        output[index] = [float(number) for number in row.output]
        weights[index] = [float(number) for number in row.weights]
        lse[index] = -np.inf if row.lse is None else float(row.lse)
    return {"output": output, "weights": weights, "lse": lse}


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_reference_agrees_with_fifty_digits(first: int) -> None:
    """Output, weights and log-sum-exp are within a few roundings of the 50-digit values, for every seed."""
    for seed in range(first, first + CHUNK):
        assert _differences(seed) == []


def _differences(seed: int) -> list[str]:
    (q, k, v), options, exact = _case(seed)
    expected = reference.sdpa(q, k, v, **options)
    exactly = _arrays(fifty_digits.sdpa(q, k, v, **options), expected)
    limit = limits(expected, UNIT, exact, **options)
    return [
        f"seed {seed}, {name}: {getattr(expected, name)} is not {array}"
        for name, array in exactly.items()
        if not agree(getattr(expected, name), array, limit[name])
    ]


def _tiled_heads(array: np.ndarray, heads: int) -> np.ndarray:
    return np.tile(array, (1, heads // array.shape[1], 1, 1))


def _rounded_softcap(scores: np.ndarray, softcap: float | None) -> np.ndarray:
    return scores if softcap is None else softcap * np.tanh(scores / softcap) * (1 + 1e-12)


def _mean_softmax(scores: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    weights, lse = _SOFTMAX(scores, allowed)
    return np.where(allowed.any(axis=3, keepdims=True), weights, 1 / max(1, scores.shape[3])), lse


def _score_of_a_wider_head(q: np.ndarray, k: np.ndarray, scale: float | None) -> np.ndarray:
    return _SCORES(q, k, 1 / np.sqrt(q.shape[3] + 1) if scale is None else scale)


def _score_without_zero_scale(q: np.ndarray, k: np.ndarray, scale: float | None) -> np.ndarray:
    return _SCORES(q, k, scale or None)


_SOFTMAX, _SCORES = reference.softmax, reference.scaled_scores


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("repeat_heads", _tiled_heads),
        ("capped_scores", _rounded_softcap),
        ("softmax", _mean_softmax),
        ("scaled_scores", _score_of_a_wider_head),
        ("scaled_scores", _score_without_zero_scale),
    ],
)
def test_a_wrong_reference_is_noticed(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if any one function of the reference is replaced by a wrong one."""
    monkeypatch.setattr(reference, name, wrong)
    assert any(_differences(seed) for seed in SEEDS[:200])


def test_limit_is_tight() -> None:
    """The limit on ordinary inputs is below 1e-12 of the values, so a wrong formula cannot pass."""
    for seed in SEEDS:
        (q, k, v), options, exact = _case(seed)
        if np.max(np.abs(q), initial=0) < 5 and np.max(np.abs(options.get("bias", 0)), initial=0) < 5:
            expected = reference.sdpa(q, k, v, **options)
            assert np.all(limits(expected, UNIT, exact, **options)["output"] <= 1e-12 * np.max(np.abs(v), initial=1))


def test_random_cases_cover_the_options() -> None:
    """The cases have every option, every pair of axes that may differ, empty axes and fully masked rows."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        (q, k, v), options, _ = _case(seed)
        allowed = reference.sdpa(q, k, v, **options).allowed
        seen.update(list(options))
        seen["offset per batch"] += isinstance(options.get("causal_offset"), np.ndarray)
        seen["open window"] += None in options.get("window", ())
        seen["masking bias"] += "bias" in options and bool(np.isneginf(options["bias"]).any())
        seen["grouped"] += q.shape[1] != k.shape[1]
        seen["Dv differs"] += q.shape[3] != v.shape[3]
        seen["Sk differs"] += q.shape[2] != k.shape[2]
        seen["fully masked row"] += allowed.size > 0 and not allowed.any(axis=3).all()
        for axis, length in (("B", q.shape[0]), ("Sq", q.shape[2]), ("Sk", k.shape[2]), ("Dv", v.shape[3])):
            seen[f"no {axis}"] += length == 0
    assert set(OPTIONS) <= set(seen)
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_fifty_digits_agrees_with_the_examples(example: Example) -> None:
    """The 50-digit evaluation agrees with the examples computed by hand."""
    shapes = reference.sdpa(example.q, example.k, example.v, **example.options)
    computed = _arrays(fifty_digits.sdpa(example.q, example.k, example.v, **example.options), shapes)
    assert disagreements(example, computed) == []
