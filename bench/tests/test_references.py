"""Expected results are computed once, and shared."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.bench.validity import checks
from attention_conformance.bench.validity.checks import FIRST, References
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation, Profile

WORKLOAD = Workload(1, 2, 4, 8)
ONE, OTHER, LOOSE = (
    Target(Implementation(name, "nowhere:f", profiles=profiles), "cpu", "float32")
    for name, profiles in (("one", {}), ("other", {}), ("loose", {"float32": Profile.TF32}))
)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The input sets for which the reference was computed."""
    asked: list[int] = []
    expect = checks.expect

    def recorded(call: checks.Call, seed: int) -> tuple[checks.Part, ...]:
        asked.append(call.number)
        return expect(call, seed)

    monkeypatch.setattr(checks, "expect", recorded)
    return asked


def test_implementations_share_what_is_expected(computed: list[int]) -> None:
    """The first set and a fresh one are shared over all process runs; a looser profile has its own bound."""
    kept = References()
    for _ in range(3):
        for target in (ONE, OTHER):
            for number in (FIRST, 0):
                kept.expect(kept.call(target, WORKLOAD, number), 0)
    assert computed == [FIRST, 0]
    kept.expect(kept.call(LOOSE, WORKLOAD, 0), 0)
    assert computed == [FIRST, 0, 0]


def test_inputs_are_those_that_the_worker_makes() -> None:
    """The first set is the same, and fresh ones by their numbers."""
    kept = References()
    first = arguments.make(WORKLOAD, "float32", 0)
    fresh, _ = arguments.fresh(WORKLOAD, *first, 5)
    assert np.array_equal(kept.call(ONE, WORKLOAD, FIRST).arrays["q"], first[0]["q"])
    assert np.array_equal(kept.call(ONE, WORKLOAD, 5).arrays["k"], fresh["k"])
    assert not np.array_equal(fresh["k"], first[0]["k"])


def test_a_seed_draws_other_inputs() -> None:
    """The inputs are those of a worker with that seed."""
    drawn, _ = arguments.make(WORKLOAD, "float32", 7)
    assert np.array_equal(References(7).call(ONE, WORKLOAD, FIRST).arrays["q"], drawn["q"])
    assert not np.array_equal(References().call(ONE, WORKLOAD, FIRST).arrays["q"], drawn["q"])


def test_a_seed_draws_other_rows() -> None:
    """A kernel that computes only the rows that an earlier run checked is wrong in this run."""
    workload = Workload(1, 2, 8, 512)

    def rows(seed: int) -> list[int]:
        kept = References(seed)
        (part,) = kept.expect(kept.call(ONE, workload, FIRST), 0)
        return [int(row) for row in part.index[2]]

    assert rows(7) == rows(7)
    shared = set(rows(7)) & set(rows(8))
    assert {0, 511} <= shared
    assert len(shared) < len(rows(7)) / 2


def test_a_fresh_set_that_is_needed_once_is_not_kept() -> None:
    """A set that is drawn again is equal to one that is kept."""
    kept = References()
    once = kept.call(ONE, WORKLOAD, 5, keep=False)
    assert len(kept._inputs) == 1
    assert np.array_equal(once.arrays["k"], kept.call(ONE, WORKLOAD, 5).arrays["k"])


def test_another_workload_has_its_own(computed: list[int]) -> None:
    """Inputs of the earlier workload are dropped, but not its expected results."""
    kept = References()
    for workload in (WORKLOAD, Workload(1, 2, 4, 9), WORKLOAD):
        assert kept.call(ONE, workload, FIRST).arrays["q"].shape[2] == workload.length
        kept.expect(kept.call(ONE, workload, FIRST), 0)
    assert len(computed) == 2


def test_only_so_much_is_kept(computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the oldest is computed again."""
    monkeypatch.setattr("attention_conformance.bench.validity.checks.KEPT", 1)
    kept = References()
    for number in (0, 1, 0):
        kept.expect(kept.call(ONE, WORKLOAD, number), 0)
    assert computed == [0, 1, 0]
