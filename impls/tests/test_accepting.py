"""Invalid input: a function that accepts it does not pass because the suite raises something before or after it."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import call
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.loading import attributes_of, keywords, load_function, operator_of
from attention_conformance.impls.select import plug_in, with_attributes
from attention_conformance.impls.tests import accepting

FUNCTIONS = sorted(
    name for name, each in vars(accepting).items() if getattr(each, "__module__", "") == accepting.__name__
)


def outcomes(text: str) -> dict[str, Result]:
    """The outcome of every invalid case of a function's operator that the function takes, by name."""
    plugged = plug_in(f"attention_conformance.impls.tests.{text}")
    function = load_function(plugged)
    plugged = with_attributes(plugged, attributes_of(function))
    operator = operator_of(function, plugged.function_of or plugged.operator)
    taken = keywords(function, operator) | {"grad_output", "grad_lse"}
    found = {}
    for name, case in every_case().items():
        if case.operator == plugged.operator and case.invalid and not case.unfit and case.keywords <= taken:
            blank = Result(text, "cpu", "float32", name, case.clauses, Outcome.PASSED, profile=Profile.WIDE)
            found[name] = judge(call(plugged, request(case, "float32", "cpu")), case, blank)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_accepted_does_not_pass(name: str) -> None:
    """In any signature, a function that accepts invalid input fails, or the case cannot be asked."""
    framework = "@torch" if name == "tensor_in_a_list" else ""
    found = outcomes(f"accepting:{name}{framework}")
    assert found
    for case, result in found.items():
        assert result.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED), (case, result.reason)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_what_is_accepted_and_cannot_be_differentiated_does_not_pass(framework: str) -> None:
    """A list has no gradients; that the suite cannot differentiate it is no refusal of the input."""
    pytest.importorskip(framework)
    found = outcomes(f"accepting:tensor_in_a_list@{framework}+gradients")
    assert {result.failure for result in found.values()} == {Failure.NO_ERROR}


def test_what_cannot_be_handed_over_is_unsupported() -> None:
    """A mismatch that a signature cannot express, with one array for both or arrays split by count, is unsupported."""
    for name, case, words in (
        ("merge_state", "merge-invalid-parts", "log-sum-exps of 2 parts for outputs of 3"),
        ("with_kvcache", "paged-invalid-lengths", "kv_lengths of 3 for 4 sequences"),
        ("with_kvcache", "paged-invalid-table", "block_table of 3 for 4 sequences"),
    ):
        result = outcomes(f"accepting:{name}")[case]
        assert result.outcome is Outcome.UNSUPPORTED
        assert f"{words} cannot be handed over in this signature" in result.reason
