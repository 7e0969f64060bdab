"""Models, presets and the selection of workloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance import bench
from attention_conformance.bench.workloads.presets import DEFAULT, KNOWN, LENGTHS, MODELS, PRESETS, SMALL, Model, select
from attention_conformance.bench.workloads.workload import Workload, WorkloadError, parse

README = (Path(bench.__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.name)
def test_a_model_is_in_the_readme_with_its_source(model: Model) -> None:
    """The table has its name, its workload, its shape and the link."""
    row = f"| `model/{model.name}` | `{model.workload}` | {model.shape} | [{model.source}]({model.link}) |"
    assert row in README


def test_no_row_of_the_readme_is_of_an_unknown_model() -> None:
    """The table has as many rows as there are models."""
    assert README.count("| `model/") == len(MODELS)


def test_a_model_is_selected_by_both_of_its_names() -> None:
    """The name of the model and the name of its workload are the same workload."""
    assert select(["model/gpt2"]) == select(["prefill-b1h12d64s1024-causal"])
    assert len(select(["model/gpt2", "prefill-b1h12d64s1024-causal"])) == 1


def test_models_are_selected_by_a_pattern() -> None:
    """A glob over the names of models gives all of them."""
    assert set(select(["model/*"])) == {parse(model.workload) for model in MODELS}


def test_an_unknown_model_is_refused_with_the_nearest_ones() -> None:
    """The refusal of a misspelt model names those that it may mean."""
    with pytest.raises(WorkloadError, match=r"did you mean .*model/gpt2"):
        select(["model/gtp2"])


def test_an_unknown_name_is_refused_with_the_nearest_kind() -> None:
    """The refusal of a misspelt name gives the name that it may mean."""
    with pytest.raises(WorkloadError, match=r"did you mean prefill-b1h8d64s1024"):
        select(["prefil-b1h8d64s1024"])


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    """A glob without a match is an error with the nearest names, not an empty run."""
    with pytest.raises(WorkloadError, match=r"no workload matches '.*\*'; did you mean decode-b1h8d64s1k1024"):
        select(["decode-b1h9d64s1k1024*"])


def test_an_unknown_preset_is_refused() -> None:
    """The refusal of a misspelt preset names the presets."""
    with pytest.raises(WorkloadError, match="did you mean quick"):
        select([], "quik")


def test_a_preset_and_names_add_up() -> None:
    """Named workloads run in addition to the preset."""
    assert set(select(["prefill-b2h4d128s96"], "quick")) == {*PRESETS["quick"], Workload(2, 4, 128, 96)}


def test_a_name_outside_the_known_set_is_accepted() -> None:
    """Any size can be timed by its name."""
    assert select(["prefill-b2h4d128s96"]) == (Workload(2, 4, 128, 96),)


def test_the_default_run_is_plain_attention_and_one_small_workload_of_each_operator() -> None:
    """Without a pattern the default lengths are timed, and every other operator and decoding once."""
    chosen = select([])
    plain = [one for one in chosen if one.family == "prefill-b1h8d64s*"]
    assert [one.length for one in plain] == list(LENGTHS)
    assert set(chosen) - set(plain) == set(SMALL)
    assert [one.kind for one in DEFAULT if one.operator != "sdpa"].count("sublayer") == 1
    assert {one.operator for one in chosen} >= {"sdpa", "sdpa_grad", "mha", "sublayer"}


def test_the_shorter_workload_of_a_family_comes_first() -> None:
    """The cost of the shorter one predicts the longer one."""
    for preset in PRESETS:
        chosen = select([], preset)
        assert list(chosen) == sorted(chosen, key=lambda one: (one.family, one.sweep))


def test_patterns_select_each_workload_once() -> None:
    """Overlapping patterns do not repeat a workload."""
    assert len(select(["prefill-b1h8d64s128", "prefill-b1h8d64s12[8]", "prefill-b1h8d64s128"])) == 1


def test_the_full_preset_sweeps_length_width_and_batch() -> None:
    """Lengths to 16384, widths to 256, batches to 32, and every model."""
    full = PRESETS["full"]
    assert {one.length for one in full if one.family == "prefill-b1h8d64s*"} >= {128, 16384}
    assert {one.width for one in full} >= {16, 80, 256}
    assert {one.batch for one in full} >= {1, 2, 16, 32}
    assert {parse(model.workload) for model in MODELS} <= set(full)


def test_known_names_are_names_of_workloads_or_models() -> None:
    """A name that is not a model's reads back as the workload that it selects."""
    for name, workload in KNOWN.items():
        assert name.startswith("model/") or parse(name) == workload
