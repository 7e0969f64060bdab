"""The case store: each value is made once, and beyond a limit the oldest are forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.store import CASES, CaseStore, array_bytes
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.impls.contract import Profile


@dataclass
class Pair:
    """Two arrays of 8 bytes together."""

    one: np.ndarray
    other: dict[str, np.ndarray]


def pair(number: int) -> Pair:
    """A value that differs from others."""
    return Pair(np.array([number], np.int32), {"same": np.array([number], np.int32)})


@pytest.mark.parametrize("limit", [None, 100])
def test_a_value_is_made_once(limit: int | None) -> None:
    """The second request gives the same object."""
    store, numbers = CaseStore(limit), iter((3, 4))
    value = store.get("key", lambda: pair(next(numbers)))
    assert store.get("key", lambda: pair(next(numbers))) is value
    assert next(numbers) == 4


def test_the_oldest_are_forgotten() -> None:
    """Values up to the limit in bytes are kept, and a single value whatever its size."""
    store = CaseStore(16)
    for number in (1, 2, 3):
        store.get(number, lambda number=number: pair(number))  # type: ignore[misc]
    assert len(store) == 2
    assert store.get(2, lambda: pair(20)).one[0] == 2
    assert store.get(1, lambda: pair(10)).one[0] == 10
    store.get("large", lambda: np.zeros(100))
    assert len(store) == 1


def test_what_cannot_be_made_is_not_kept() -> None:
    """An invalid input raises each time."""
    case = replace(every_case()["invalid-lengths"], store=CaseStore())
    for _ in range(2):
        with pytest.raises(InvalidInput):
            case.expected("float32")
    assert len(case.store) == 1  # the inputs


@pytest.mark.parametrize("name", ["causal-tiles", "mha-bias", "sublayer-post-norm", "grad-bias", "mha-grad-plain"])
def test_a_case_keeps_what_is_known_of_it(name: str) -> None:
    """Inputs, expected results and the bound of each profile are kept for each operator; another store makes others."""
    case = every_case()[name]
    other = replace(case, store=CaseStore())
    for each in (case, other):
        made = [each.inputs("float32"), each.expected("float32"), each.bound("float32", Profile.WIDE)]
        again = [each.inputs("float32"), each.expected("float32"), each.bound("float32", Profile.WIDE)]
        assert all(a is b for a, b in zip(made, again, strict=True))
    assert len(other.store) == 3
    assert case.store is CASES
    assert case.inputs("float32") is not other.inputs("float32")
    for result in case.results():
        one, two = (getattr(x.bound("float32", Profile.WIDE), result) for x in (case, other))
        np.testing.assert_array_equal(one, two)


def test_bytes_of_arrays_are_counted() -> None:
    """Arrays in dataclasses, mappings, lists and tuples are counted; anything else counts nothing."""
    assert array_bytes((pair(1), [np.zeros(2)], "text", None, 5)) == 24
