"""Study of faults that are called as implementations: what counts as named first, and which parts are measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.conformance.faults import FAULTS
from studies import diagnosis_of_faults as study
from studies.common import Unfit


def test_a_fault_that_is_named_is_first() -> None:
    """It is named by its own name."""
    found = study.named(FAULTS["alibi-ignored"])
    assert found["first"]
    assert found["failed"] > 1


@pytest.mark.parametrize("said", [[], [SimpleNamespace(faults=(FAULTS["causal-bottom-right"],), title="", names=())]])
def test_a_fault_that_another_one_is_said_for_is_not(said: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault without an explanation is not first either."""
    monkeypatch.setattr(study, "diagnose", lambda *_, **__: said)
    assert not study.named(FAULTS["alibi-ignored"])["first"]


def test_a_clause_that_the_page_has_not_is_refused() -> None:
    """The clause's faults would be in the numbers and not in the page."""
    with pytest.raises(Unfit, match="no faults of SDPA-1"):
        study.measure(["SDPA-1"])
