"""False alarms in the forms that serve: the same problems, variants that pass, and wrong ones that would not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.conformance.evidence.serving_variants import SERVING, alarm
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.conformance.properties.serving import FORMS
from attention_conformance.impls.contract import Profile
from studies import serving_alarms
from studies.common import Unfit

#: A fault of each form that its random problems show.
WRONG = {
    "varlen": "packed-prefix-seen",
    "varlen_grad": "packed-gradient-top-left",
    "paged": "paged-next-page",
    "quantised": "quantised-value-scale-ignored",
    "merge": "parts-averaged",
    "merge_grad": "merge-gradient-not-centered",
    "blocks": "blocks-one-row-longer",
    "trees": "tree-siblings",
    "latent": "latent-values-of-next-head",
}

each_group = pytest.mark.parametrize("group", serving_alarms.GROUPS)


@each_group
def test_problems_are_the_same_again(group: str) -> None:
    """Every form occurs in every dtype; caches of quantised forms have a format of their own."""
    met = set()
    forms = serving_alarms.GROUPS[group]
    for index in range(4 * len(forms)):
        (form, one, dtype), (_, other, _) = (serving_alarms.problem(index, group) for _ in "ab")
        arrays = [[a.tobytes() for a in each.inputs(dtype).arrays.values()] for each in (one, other)]
        assert arrays[0] == arrays[1]
        met.add((form, dtype))
    assert len(met) == 4 * len(forms)


def test_every_form_is_of_one_group() -> None:
    """None is left out, and none counts twice."""
    assert sorted(form for forms in serving_alarms.GROUPS.values() for form in forms) == sorted(FORMS)


def test_every_form_has_five_variants() -> None:
    """They are correct, each in its own way."""
    assert set(SERVING) == set(FORMS)
    assert all(len(variants) >= 5 for variants in SERVING.values())


@pytest.mark.slow(1)
@each_group
def test_correct_variants_raise_no_alarm(group: str) -> None:
    """All of the first problems are counted, and none uses more than its bound."""
    found = serving_alarms.measure(48, group)["groups"]
    assert set(found) == {group}
    assert (found[group]["problems"], found[group]["alarms"]) == (48, [])
    shares = [share for each in found[group]["shares"].values() for share in each.values()]
    assert 0 < max(shares) <= 1


@pytest.mark.slow(1)
@pytest.mark.parametrize("form", WRONG)
def test_a_wrong_one_would_be_seen(form: str) -> None:
    """A fault of each form raises alarms on the same problems."""
    function = FAULTS[WRONG[form]].make()
    group = next(name for name, forms in serving_alarms.GROUPS.items() if form in forms)
    problems = (serving_alarms.problem(index, group) for index in range(200))
    found = [alarm(form, function, case, dtype, Profile.WIDE) for each, case, dtype in problems if each == form]
    assert any(found)


def judged(problems: int, share: float, alarms: list[Any]) -> dict[str, Any]:
    """The record of one run with one variant."""
    counts, shares = {"blocks": {"eager": problems}}, {"blocks": {"eager": share}}
    found = {"problems": problems, "counts": counts, "shares": shares, "alarms": alarms}
    return found | {"written": f"of {problems}", "load_average": [1.0, 2.0], "machine": {}, "threads": 1}


def test_runs_are_counted_together() -> None:
    """The sum has problems and alarms of both, the larger share, and the date of each."""
    first = serving_alarms.merge_records(None, judged(5, 0.5, [[3, "blocks", "float32", "eager", "why"]]))
    both = serving_alarms.merge_records(first, judged(7, 0.25, []))
    assert (both["problems"], both["counts"]) == (12, {"blocks": {"eager": 12}})
    assert both["shares"] == {"blocks": {"eager": 0.5}}
    assert both["alarms"] == first["alarms"]
    assert [run["written"] for run in both["runs"]] == ["of 5", "of 7"]
    assert "12 random problems of blocks, judged 12 times in 2 runs: 1 false alarms" in serving_alarms.table(
        {"groups": {"masks": both}}
    )


def test_a_run_goes_on_behind_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues its own group; the other one is unchanged, and a complete group is not judged again."""
    kept = {"groups": {"packs": {"problems": 20}, "masks": serving_alarms.measure(3, "masks")["groups"]["masks"]}}
    monkeypatch.setattr(serving_alarms, "STUDY", SimpleNamespace(kept=lambda: kept))
    found = serving_alarms.measure(6, "masks", more=True)["groups"]
    assert found["packs"] == {"problems": 20}
    assert (found["masks"]["problems"], len(found["masks"]["runs"])) == (6, 2)
    assert found["masks"]["counts"]["latent"]["absorbed"] == 2
    assert serving_alarms.measure(3, "masks", more=True)["groups"] == kept["groups"]


def test_a_group_alone_is_not_kept_in_the_place_of_all() -> None:
    """It would drop the figures of the other one."""
    with pytest.raises(Unfit, match="--more keeps them"):
        serving_alarms.whole(group="masks")
    serving_alarms.whole(group="masks", more=True)


@each_group
def test_the_published_figures_have_no_alarm(group: str) -> None:
    """They also say how many problems there were."""
    found = serving_alarms.STUDY.kept()["groups"][group]
    assert found["alarms"] == []
    assert found["problems"] >= serving_alarms.PROBLEMS[group]
    assert found["problems"] == sum(run["problems"] for run in found["runs"])
