"""False alarms: the same problems at the sizes of kernels, variants that pass, and a wrong one that would not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attention_conformance.conformance.evidence.variants import CORRECT
from attention_conformance.conformance.faults.kill_matrix import implementation
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.impls.process.pool import Pool
from studies import false_alarms


def test_problems_are_the_same_again_and_at_the_sizes_of_kernels() -> None:
    """They are in three dtypes."""
    for index in range(12):
        (one, dtype), (other, _) = false_alarms.problem(index), false_alarms.problem(index)
        assert one.inputs(dtype).q.tobytes() == other.inputs(dtype).q.tobytes()
        assert one.shape.sk in false_alarms.SIZES.lengths
    assert {false_alarms.problem(index)[1] for index in range(3)} == set(false_alarms.DTYPES)


def test_every_variant_judges_in_turn() -> None:
    """Only variants that have the dtype judge."""
    met = {name for index in range(24) for name in false_alarms.judged_by(index, "float16", 1)}
    assert met == set(CORRECT)
    assert "storage" not in {name for index in range(24) for name in false_alarms.judged_by(index, "float32", 1)}


def test_correct_variants_raise_no_alarm() -> None:
    """They raise none over the first problems."""
    found = false_alarms.measure(24, 2, 60.0)
    assert (found["problems"], found["alarms"]) == (24, [])


def test_a_run_goes_on_behind_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept problems and alarms count, and are not judged again."""
    kept = {"problems": 20, "counts": {"tiles": {"float32": 7}}, "alarms": [[3, "float32", "tiles", "why"]]}
    monkeypatch.setattr(false_alarms, "STUDY", SimpleNamespace(kept=lambda: kept))
    found = false_alarms.measure(24, 1, 60.0, more=True)
    assert (found["problems"], found["alarms"]) == (24, kept["alarms"])
    assert sum(sum(by_dtype.values()) for by_dtype in found["counts"].values()) == 7 + 4


def test_a_wrong_one_would_be_seen() -> None:
    """A fault raises alarms on the same problems."""
    wrong, pool = implementation(FAULTS["scale-twice"]), Pool(in_process=True)
    reasons = [false_alarms.alarm(*false_alarms.problem(index), "wrong", wrong, pool) for index in range(6)]
    assert any(reasons)


def test_the_published_figures_have_no_alarm() -> None:
    """They also say how many problems there were."""
    found = false_alarms.STUDY.kept()
    assert found["alarms"] == []
    assert f"{found['problems']:,} random problems" in false_alarms.table(found)
