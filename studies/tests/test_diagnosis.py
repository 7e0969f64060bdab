"""The study of the diagnosis: a cause is named only by its own words, and every other explanation is wrong."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.diagnosis.explanation import Explanation
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.trials import Failed
from studies import diagnosis, library_functions
from studies.causes import CAUSES
from studies.common import Study, Unfit
from studies.diagnosis import MODULES, Found, counted, examined, graded


def found(*names: str) -> Found:
    """The text of a diagnosis that names these faults."""
    explanations = tuple(Explanation((FAULTS[name],), frozenset[Failed]()) for name in names)
    return Found(3, 5, explanations, (), 0.1)


def test_a_cause_is_named_by_its_words() -> None:
    """One of two causes is named."""
    one = graded("causal_and_scale", found("scale-of-model-width"))
    assert [bool(cause["named"]) for cause in one["causes"]] == [True, False]
    assert one["wrong"] == []


def test_what_names_no_cause_is_wrong() -> None:
    """It is wrong even if it is true of another function."""
    one = graded("modulo_heads", found("causal-bottom-right", "heads-tiled"))
    assert one["wrong"] == ["“causal mask aligned bottom-right” (0)"]
    assert counted([one], 0) == (1, 1, 1, 2)


def test_a_cause_seen_after_is_not_counted() -> None:
    """It was no prediction."""
    one = graded("memory_efficient", found("empty-axes-refused"))
    causes, named, wrong, _ = counted([one], 0)
    assert (causes, named, wrong) == (3, 0, 0)


def test_every_cause_has_a_function_and_words() -> None:
    """No words fit every explanation."""
    assert {cause.function for cause in CAUSES} <= {name for module in MODULES for name in vars(module)}
    assert not [cause for cause in CAUSES if re.search(cause.says, "“inputs of unequal dtype accepted”")]
    assert len([cause for cause in CAUSES if not cause.after]) >= 40


def test_a_held_out_function_is_counted_apart() -> None:
    """The diagnosis was not improved on its cause, and all causes of a function are of one kind."""
    one = graded("nemo", found("causal-bottom-right"))
    assert counted([one], 0) == (0, 0, 0, 0)
    assert counted([one], 1) == (1, 0, 1, 1)
    kinds = {(cause.function, cause.held_out) for cause in CAUSES}
    assert len(kinds) == len(diagnosis.functions())


def test_the_second_set_is_of_other_libraries() -> None:
    """It has enough causes for a figure, of many functions; the module of each set has its functions."""
    second = {cause.function for cause in CAUSES if cause.held_out == 2}
    assert len(second) >= 18
    assert len([cause for cause in CAUSES if cause.held_out == 2 and not cause.after]) >= 40
    assert second <= set(vars(MODULES[2]))
    assert {cause.function for cause in CAUSES if cause.held_out == 1} <= set(vars(MODULES[1]))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Numbers of a held-out function whose first run differs from its last, and of a function looked at before."""
    rows = {
        "first": [graded("nemo", found("causal-bottom-right"))],
        "functions": [graded("modulo_heads", found("heads-tiled")), graded("nemo", found())],
        "machine": {"versions": {"nemo-toolkit": "3", "flax": "1"}},
    }
    monkeypatch.setattr(Study, "kept", lambda _: rows)
    return rows


def test_the_first_run_of_a_held_out_function_stays(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of a new one is its first; a function that was looked at before has none."""
    monkeypatch.setattr(diagnosis, "examined", lambda _: found("bias-ignored"))
    measured = diagnosis.measure(["nemo", "palm", "modulo_heads"])
    said = {row["function"]: row["wrong"] for row in measured["first"]}
    assert said == {"nemo": kept["first"][0]["wrong"], "palm": ["“the bias ignored” (0)"]}
    assert [row["wrong"] for row in measured["functions"]] == [["“the bias ignored” (0)"]] * 3


def test_a_function_without_its_package_keeps_its_row(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The row has the version of that run; a function without a row is refused."""

    def absent(_: Any) -> Found:
        raise Unfit("no package")

    monkeypatch.setattr(diagnosis, "examined", absent)
    measured = diagnosis.measure(["nemo"])
    assert (measured["functions"], measured["absent"]) == ([kept["functions"][1]], ["nemo"])
    assert measured["versions"]["nemo-toolkit"]
    with pytest.raises(Unfit, match="no package"):
        diagnosis.measure(["palm"])


def test_both_runs_of_a_held_out_function_are_on_the_page(kept: dict[str, Any]) -> None:
    """One that was not run again says so; its figures are those of the first run, and of the last where they differ."""
    run = kept | {"absent": [], "threads": 1, "load_average": [1.0, 1.0], "written": "now"}
    text = diagnosis.held_out_table(run)
    assert "| none: wrong |  | “causal mask aligned bottom-right” (0) | – |" in text
    assert "| not run again |" in diagnosis.held_out_table(run | {"absent": ["nemo"]})
    text = diagnosis.table(run)
    assert "| held out, first set, at its first run | 0 of 1 (0%) | 1 of 1 (100%) |" in text
    assert "| held out, first set, now | 0 of 1 (0%) | 0 of 0 (0%) |" in text
    assert "second set, now" not in text
    assert "`nemo`" not in text
    assert "not there: `nemo`." in diagnosis.table(run | {"absent": ["nemo"]})


@pytest.mark.slow(5)
def test_a_mechanism_is_diagnosed() -> None:
    """It is diagnosed from the small cases of its operator."""
    one = graded("clamped_head", examined(library_functions.clamped_head))
    assert [cause["named"] for cause in one["causes"]] == [["“query head h reads key head min(h, Hkv − 1)”"]]
    assert one["passed"] > one["failed"] > 0


@pytest.mark.slow(5)
def test_right_attention_has_no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails, so there is no explanation."""

    def right(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return FAULTS["mask-ignored"].make()(q, k, v)

    monkeypatch.setattr(diagnosis, "LARGEST", 600)
    assert examined(right).explanations == ()
