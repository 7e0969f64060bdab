"""Diagnosis within envelopes: which ones are measured, and what is kept of the others."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.conformance.faults import envelopes
from studies import diagnosis_in_envelopes as study
from studies.common import Study, Unfit

#: Two faults that are caught, one that is not, and one on a path, which has no diagnosis of its own.
FAULTS = {
    "scale-twice": {"state": "twice", "caught": {"plain": "float32"}},
    "mask-ignored": {"state": "twice", "caught": {"mask": "float32"}},
    "scale-missing": {"state": "hidden"},
    "flex-divisible-lengths-to-tile": {"state": "twice", "caught": {"lengths": "float32"}},
}
KEPT = {"every": 1, "envelopes": [{"envelope": "anything", "faults": 9}, {"envelope": "static", "faults": 9}]}


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = {"envelopes": [{"name": name, "faults": FAULTS} for name in ("anything", "static")]}
    monkeypatch.setattr(envelopes, "published", lambda: matrices)
    monkeypatch.setattr(Study, "kept", lambda _: KEPT)
    answers: dict[str, Any] = {"scale-twice": ("scale-twice",), "mask-ignored": ("bias-ignored",)}
    monkeypatch.setattr(study, "first", lambda name, *_: answers[name])


def test_an_envelope_is_measured_and_others_stay() -> None:
    """Rows are in the order of the envelopes, whichever was named."""
    found = study.measure(1, ["static"])["envelopes"]
    assert found[0] == {"envelope": "anything", "faults": 9}
    assert found[1]["envelope"] == "static"
    assert (found[1]["faults"], found[1]["asked"], found[1]["first"]) == (2, 2, 1)
    assert found[1]["other"] == {"mask-ignored": ["bias-ignored"]}


def test_without_one_all_that_are_published_are_measured() -> None:
    """No kept row stays."""
    assert [row["faults"] for row in study.measure(1, [])["envelopes"]] == [2, 2]


def test_an_envelope_without_a_matrix_is_refused() -> None:
    """The sentence has its name; another share of the faults than the kept one is refused too."""
    with pytest.raises(Unfit, match="no kill matrix is published of elsewhere"):
        study.measure(1, ["elsewhere"])
    with pytest.raises(Unfit, match="what is kept is of every 1th fault"):
        study.measure(8, ["static"])
