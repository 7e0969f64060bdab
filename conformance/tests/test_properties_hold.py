"""Every property holds for a right implementation, and fails for one that is wrong in the way the property tests."""

from __future__ import annotations

import functools
import re

import pytest

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.properties.properties import PROPERTIES
from attention_conformance.conformance.spec.clauses import Level, clauses
from attention_conformance.conformance.tests.property_runs import context, run

pytestmark = pytest.mark.slow

#: The fake that each property must reject.
WRONG = {
    "agrees-with-reference": "wrong_scale",
    "keys-permuted": "recency",
    "scores-shifted": "no_maximum",
    "batch-alone": "first_mask",
    "head-alone": "heads_in_turn",
    "linear-in-v": "clipped_values",
    "constant-v": "epsilon",
    "causal-prefix": "bottom_right",
    "keys-split": "base_two",
    "hidden-keys": "finite_fill",
    "past-split-off": "past_masked",
    "in-two-steps": "causal_from_first_key",
}


@functools.cache
def rejected(prop: str, dtype: str) -> Result:
    """The result of a property for the fake that it must reject; the counterexample is shrunk only in float32."""
    return run(prop, context(WRONG[prop], dtype), shrink=dtype == "float32")


each_property = pytest.mark.parametrize("prop", list(PROPERTIES))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@each_property
def test_a_right_one_has_every_property(prop: str, dtype: str) -> None:
    """A correct implementation passes, with the requested number of examples."""
    result = run(prop, context("right", dtype), examples=15)
    assert (result.outcome, result.reason) == (Outcome.PASSED, "15 examples"), result.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_property
def test_a_wrong_one_fails_its_property(prop: str, dtype: str) -> None:
    """Each property rejects its fake, against its own clause, in half precision too."""
    result = rejected(prop, dtype)
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.VALUE), prop
    assert result.broken in (PROPERTIES[prop].clause, "SDPA-16")
    assert result.message


@each_property
def test_nan_everywhere_has_no_property(prop: str) -> None:
    """An implementation that always returns NaN, which equals nothing, fails, even if its calls agree."""
    assert run(prop, context("all_nan"), examples=5, shrink=False).outcome is Outcome.FAILED


@each_property
def test_a_failure_shrinks_to_a_few_numbers(prop: str) -> None:
    """The counterexample is small enough to be redone by hand: few rows and keys, narrow heads."""
    message = rejected(prop, "float32").message
    (shape,) = re.findall(r"q \((\d+), (\d+), (\d+), (\d+)\), k \(\d+, \d+, (\d+), \d+\)", message)
    batch, heads, rows, width, keys = map(int, shape)
    assert batch * heads * rows * keys <= 24, message
    assert width <= 8, message


def test_every_property_follows_from_a_clause_that_binds() -> None:
    """A property names a MUST clause of the spec and says in one sentence what holds."""
    for prop in PROPERTIES.values():
        assert clauses()[prop.clause].level is Level.MUST
        assert prop.sentence.endswith(".")
        assert prop.sentence.count(".") == 1


def test_every_property_has_something_to_reject() -> None:
    """Every property has a fake that fails it."""
    assert list(WRONG) == list(PROPERTIES)


def test_a_property_without_its_keyword_is_unsupported() -> None:
    """Merging needs lse; an implementation that cannot return it is unsupported, not wrong."""
    result = run("keys-split", context("right", accepts=frozenset({"mask"})))
    assert (result.outcome, result.reason) == (Outcome.UNSUPPORTED, "no keyword return_lse")


def test_positions_are_split_only_where_an_offset_can_be_given() -> None:
    """Splitting causal keys needs a causal offset; without the keyword no causal problems are drawn."""
    narrow = frozenset({"is_causal", "return_lse"})
    assert PROPERTIES["keys-split"].space(narrow, few=False).keywords == {"return_lse"}
    assert "is_causal" in PROPERTIES["keys-split"].space(narrow | {"causal_offset"}, few=False).keywords
