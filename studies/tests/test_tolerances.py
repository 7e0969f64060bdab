"""Tolerances of other tests: right attention passes them all, and each refuses a fault that shows."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.evidence.variants import storage
from attention_conformance.conformance.faults import FAULTS
from studies.tolerances import TESTS, LibraryTest, judged


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.source.partition(" ")[0])
def test_right_attention_passes_rule_and_bound(test: LibraryTest) -> None:
    """It does in the dtype of the test."""
    assert judged(test, storage) == (True, True)


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.source.partition(" ")[0])
def test_a_fault_that_shows_is_refused_by_both(test: LibraryTest) -> None:
    """The fault leaves out the causal mask."""
    assert judged(test, lambda q, k, v, **options: storage(q, k, v)) == (False, False)


def test_a_small_mistake_is_refused_by_the_bound_alone() -> None:
    """An approximate reciprocal is off by less than 0.01."""
    tutorial = TESTS[2]
    assert judged(tutorial, FAULTS["reciprocal-approximate"].make()) == (True, False)
