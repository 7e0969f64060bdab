"""The study of the diagnosis: a cause is named by its own words alone, and everything else that is said is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attention_conformance.conformance.diagnosis.match import Explanation
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.trials import Failed
from studies import diagnosis, held_out, library_functions
from studies.diagnosis import CAUSES, Found, counted, examined, graded


def found(*names: str) -> Found:
    """The text of a diagnosis that names these faults."""
    explanations = tuple(Explanation((FAULTS[name],), frozenset[Failed]()) for name in names)
    return Found(3, 5, explanations, (), 0.1)


def test_a_cause_is_named_by_its_words() -> None:
    """Of two causes one is."""
    one = graded("causal_and_scale", found("scale-of-model-width"))
    assert [bool(cause["named"]) for cause in one["causes"]] == [True, False]
    assert one["wrong"] == []


def test_what_names_no_cause_is_wrong() -> None:
    """However true it may be of another function."""
    one = graded("modulo_heads", found("causal-bottom-right", "heads-tiled"))
    assert one["wrong"] == ["“causal mask aligned bottom-right” (0)"]
    assert counted({"functions": [one]}, held_out=False) == (1, 1, 1, 2)


def test_a_cause_seen_after_is_not_counted() -> None:
    """It was no prediction."""
    one = graded("memory_efficient", found("empty-axes-refused"))
    causes, named, wrong, _ = counted({"functions": [one]}, held_out=False)
    assert (causes, named, wrong) == (3, 0, 0)


def test_every_cause_has_a_function_and_words() -> None:
    """And none says what every explanation says."""
    assert {cause.function for cause in CAUSES} <= set(vars(library_functions)) | set(vars(held_out))
    assert not [cause for cause in CAUSES if re.search(cause.says, "“inputs of unequal dtype accepted”")]
    assert len([cause for cause in CAUSES if not cause.after]) >= 40


def test_a_held_out_function_is_counted_apart() -> None:
    """Its cause is none of those on which the diagnosis was mended, and a function is wholly of one kind."""
    one = graded("nemo", found("causal-bottom-right"))
    assert counted({"functions": [one]}, held_out=False) == (0, 0, 0, 0)
    assert counted({"functions": [one]}, held_out=True) == (1, 0, 1, 1)
    kinds = {(cause.function, cause.held_out) for cause in CAUSES}
    assert len(kinds) == len(diagnosis.functions())


@pytest.mark.slow(5)
def test_a_mechanism_is_diagnosed() -> None:
    """From the small cases of its operator."""
    one = graded("clamped_head", examined(library_functions.clamped_head))
    assert [cause["named"] for cause in one["causes"]] == [["“query head h reads key head min(h, Hkv − 1)”"]]
    assert one["passed"] > one["failed"] > 0


@pytest.mark.slow(5)
def test_right_attention_has_no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails, so nothing is said."""

    def right(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return FAULTS["mask-ignored"].make()(q, k, v)

    monkeypatch.setattr(diagnosis, "LARGEST", 600)
    assert examined(right).explanations == ()
