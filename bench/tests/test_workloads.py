"""Names, selection and inputs of workloads."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import DEFAULT, KNOWN, LENGTHS, Workload, WorkloadError, parse, select


@pytest.mark.parametrize("workload", [*KNOWN, Workload(3, 5, 80, 7, is_causal=True)], ids=lambda one: one.name)
def test_names_round_trip(workload: Workload) -> None:
    """The name of a workload reads back as that workload."""
    assert parse(workload.name) == workload


def test_a_name_is_terse_and_says_every_size() -> None:
    """Names have the documented form."""
    assert Workload(1, 8, 64, 1024, is_causal=True).name == "prefill-b1h8d64s1024-causal"


@pytest.mark.parametrize(
    "name", ["prefill-b1h8d64s0", "prefill-b01h8d64s128", "prefill-b1h8s128", "prefill-b1h8d64s128-full"]
)
def test_what_the_grammar_does_not_allow_is_refused(name: str) -> None:
    """Zero sizes, leading zeros, missing sizes and unknown suffixes are no workloads."""
    with pytest.raises(WorkloadError, match=name):
        parse(name)


def test_an_unknown_name_is_refused_with_the_nearest_ones() -> None:
    """A misspelt name gives the names it may have meant."""
    with pytest.raises(WorkloadError, match=r"did you mean .*prefill-b1h8d64s1024"):
        select(["prefil-b1h8d64s1024"])


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    """A glob without a match is an error, not an empty run."""
    with pytest.raises(WorkloadError, match="no workload matches 'decode-"):
        select(["decode-*"])


def test_a_name_outside_the_known_set_is_accepted() -> None:
    """Any size can be timed by its name."""
    assert select(["prefill-b2h4d128s96"]) == (Workload(2, 4, 128, 96),)


def test_the_default_run_is_not_causal_and_shortest_first() -> None:
    """Without a pattern the default lengths are timed, in the order in which each predicts the next."""
    assert [one.length for one in select([])] == list(LENGTHS)
    assert not any(one.is_causal for one in DEFAULT)


def test_patterns_select_each_workload_once() -> None:
    """Overlapping patterns do not repeat a workload."""
    assert len(select(["*s128", "prefill-b1h8d64s128", "*-causal"])) == 1 + len(LENGTHS)


def test_equal_seeds_give_equal_inputs_and_other_seeds_others() -> None:
    """Inputs can be made again from the workload, the dtype and the seed."""
    workload = Workload(2, 3, 4, 5)
    q, k, v = workload.inputs("bfloat16", seed=1)
    assert q.shape == k.shape == v.shape == (2, 3, 5, 4)
    assert str(q.dtype) == "bfloat16"
    assert np.array_equal(q, workload.inputs("bfloat16", seed=1)[0])
    assert not np.array_equal(q, workload.inputs("bfloat16", seed=2)[0])
    assert not np.array_equal(q, k)
