"""The random problems of layers, gradients and decoding: reproducible, of every kind, and judged like those of sdpa."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.evidence.mha_problems import WORK, layer_problem
from attention_conformance.conformance.evidence.record import count_drawn
from attention_conformance.conformance.evidence.series import SERIES
from attention_conformance.conformance.evidence.verdicts import Jury, Kind
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.properties.drawn import decode_problem, once
from attention_conformance.conformance.targets import choose
from attention_conformance.conformance.tests.special_values import specials
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(20)

#: Everything but attention itself.
OTHERS = {name: series for name, series in SERIES.items() if name != "sdpa"}


def kinds(pool: Pool, name: str, implementation: str, problems: int, dtype: str = "") -> list[Kind]:
    """The verdicts on the first problems of a series for an implementation."""
    selection = choose((implementation,), ("cpu",), (dtype,) if dtype else (), pool)
    jury = Jury(pool, selection, read(), SERIES[name])
    return [each.kind for index in range(problems) for each in jury.verdicts(index)]


@pytest.mark.parametrize("name", OTHERS)
def test_an_index_always_gives_the_same_problem(name: str) -> None:
    """An index gives the same inputs to the last bit, so that a measurement can be repeated."""
    series = OTHERS[name]
    assert count_drawn(series, 30) == count_drawn(series, 30)
    for index in range(5):
        one, other = (once(series.problem(index), series.dtype(index)).inputs(series.dtype(index)) for _ in "ab")
        for given in ("arrays", "keywords"):
            for key, value in getattr(one, given).items():
                np.testing.assert_array_equal(value, getattr(other, given)[key], strict=isinstance(value, np.ndarray))


@functools.cache
def thousands(name: str) -> dict[str, Any]:
    """A summary of three thousand problems of a series."""
    return count_drawn(OTHERS[name], 3000)


@pytest.mark.parametrize("name", OTHERS)
def test_every_option_is_drawn(name: str) -> None:
    """Each option and each of its special values occurs in dozens of problems."""
    counts = Counter({field: each["given"] for field, each in thousands(name)["fields"].items()})
    for index in range(3000):
        counts.update(specials(OTHERS[name].problem(index)))
    assert not {option: count for option, count in counts.items() if count <= 40}


@pytest.mark.parametrize("name", OTHERS)
def test_sizes_reach_from_one_to_the_largest(name: str) -> None:
    """Widths range from 1 to 256, keys to hundreds, spreads from 0.01 to 30."""
    fields = thousands(name)["fields"]
    least = {"e" if "e" in fields else "d": 250, "dv": 250, "sk": 500, "spread": 29}
    assert all(fields[size]["largest"] > number for size, number in least.items())
    assert [fields[size]["smallest"] for size in least if size != "spread"] == [1, 1, 1]
    assert fields["spread"]["smallest"] < 0.011


def test_work_is_limited() -> None:
    """The limit of work reduces a layer's rows and samples, but never its widths."""
    shapes = [layer_problem("mha", index).shape for index in range(3000)]
    assert max(s.b * s.heads * s.sq * s.sk * (s.d + s.dv) for s in shapes) <= WORK
    assert any(s.e > 200 and s.heads * s.d > 200 for s in shapes)


def test_a_past_may_end_anywhere() -> None:
    """A past ends before the first key, after the last, or in between."""
    problems = [decode_problem(index) for index in range(300)]
    assert all(0 <= p.past <= p.shape.sk for p in problems)
    assert any(0 < p.past < p.shape.sk - p.shape.sq for p in problems)
    assert any(p.shape.sk - p.shape.sq < p.past < p.shape.sk for p in problems)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_a_correct_implementation_has_no_false_alarm(unprepared: Pool, name: str) -> None:
    """Forty problems are all executed and all inside the bounds."""
    found = kinds(unprepared, name, OTHERS[name].implementations[0], 40)
    assert found.count(Kind.KEPT) == 40


#: A wrong implementation of each series.
WRONG = {
    "decode": "attention_conformance.conformance.faults:causal_bottom_right",
    "mha": "attention_conformance.conformance.faults:layer_scale_of_all_heads",
    "sublayer": "attention_conformance.conformance.faults:norm_always_first",
    "sdpa_grad": "attention_conformance.conformance.faults:group_not_summed",
    "mha_grad": "attention_conformance.conformance.faults:weight_gradient_of_one_sample",
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_a_wrong_implementation_is_an_alarm(unprepared: Pool, name: str) -> None:
    """Some problems of each operator raise an alarm, and few are excused as out of float16's range."""
    found = kinds(unprepared, name, WRONG[name], 60)
    assert found.count(Kind.ALARM) > 3
    assert found.count(Kind.KNOWN) < 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_a_bound_that_is_too_tight_is_an_alarm(unprepared: Pool, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With a unit roundoff a thousand times too small, correct results in float32 are outside."""
    monkeypatch.setitem(bounds.UNIT_ROUNDOFF, "float32", 2.0**-24 / 1000)
    found = kinds(unprepared, name, OTHERS[name].implementations[0], 40, "float32")
    assert found.count(Kind.ALARM) > len(found) / 3
