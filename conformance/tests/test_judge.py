"""Judging: tiny implementations, each right or wrong in one way, get the outcome that they deserve."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attention_conformance.conformance.cases import Case, all_cases
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.message import inputs_line
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls import loading
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Implementation, Profile
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.tests import fakes

VERSIONS = {"numpy": "2.0"}
NOTHING_KNOWN = Ledger()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Worker processes shared by the tests of this module."""
    pool = Pool(in_process=False)
    yield pool
    pool.close()


def judged(
    pool: Pool,
    name: str,
    case: str = "plain",
    dtype: str = "float32",
    ledger: Ledger = NOTHING_KNOWN,
    timeout: float = 60,
) -> Result:
    """The result of a fake on a case."""
    implementation = Implementation(name, f"attention_conformance.impls.tests.fakes:{name}")
    keywords = loading.keywords(getattr(fakes, name))
    target = Target(implementation, "cpu", dtype)
    return judge_case(target, all_cases()[case], pool, keywords, ledger, VERSIONS, timeout).result


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", ["plain", "tiles", "softmax-shift-plus-625"])
def test_a_right_one_passes(pool: Pool, case: str, dtype: str) -> None:
    """A correct implementation passes, keeps every profile, and uses a part of the bound."""
    result = judged(pool, "right", case, dtype)
    assert result.outcome is Outcome.PASSED
    assert "wide" in result.meets
    assert result.share is not None
    assert 0 <= result.share <= 1


@pytest.mark.parametrize(
    ("name", "case", "failure", "broken"),
    [
        ("wrong", "scale-default", Failure.VALUE, "SDPA-3"),
        ("slightly_wrong", "values-tell-their-key", Failure.VALUE, "SDPA-25"),
        ("nan", "plain", Failure.VALUE, "SDPA-1"),
        ("base_two", "lse", Failure.VALUE, "SDPA-19"),
        ("too_wide", "plain", Failure.DTYPE, "SDPA-27"),
        ("transposed", "plain", Failure.SHAPE, "SDPA-1"),
        ("a_list", "plain", Failure.ERROR, "SDPA-1"),
        ("raises", "plain", Failure.ERROR, "SDPA-1"),
        ("modifies", "plain", Failure.MODIFIED, "SDPA-28"),
        ("unrepeatable", "repeat", Failure.UNREPEATABLE, "SDPA-29"),
        ("careless", "invalid-lengths", Failure.NO_ERROR, "SDPA-31"),
        ("careless", "nan-query", Failure.VALUE, "SDPA-23"),
        ("aborts", "plain", Failure.CRASHED, "SDPA-1"),
        ("exits", "plain", Failure.CRASHED, "SDPA-1"),
    ],
)
def test_a_wrong_one_fails_in_its_way(pool: Pool, name: str, case: str, failure: Failure, broken: str) -> None:
    """Each way to be wrong is distinguished, and blamed on its clause."""
    result = judged(pool, name, case)
    assert (result.outcome, result.failure, result.broken) == (Outcome.FAILED, failure, broken)


def test_a_hang_is_a_timeout(pool: Pool) -> None:
    """A case that does not end is a timeout, and the next one runs."""
    assert judged(pool, "hangs", timeout=0.5).failure is Failure.TIMEOUT
    assert judged(pool, "right").outcome is Outcome.PASSED


def test_a_crash_leaves_the_other_cases_alone(pool: Pool) -> None:
    """An implementation that crashes on one query passes the rest."""
    assert judged(pool, "crashes_on_one_query", "one-query").failure is Failure.CRASHED
    assert judged(pool, "crashes_on_one_query", "plain").outcome is Outcome.PASSED


def test_noise_is_not_a_result(pool: Pool) -> None:
    """Output printed on both streams changes nothing."""
    assert judged(pool, "prints").outcome is Outcome.PASSED


def test_a_missing_keyword_is_unsupported(pool: Pool) -> None:
    """A keyword that the signature lacks is unsupported, and the reason names it."""
    result = judged(pool, "right", "window-both")
    assert (result.outcome, result.reason) == (Outcome.UNSUPPORTED, "no keyword window")


def test_a_refusal_is_unsupported_with_its_reason(pool: Pool) -> None:
    """NotImplementedError is unsupported, and its text is the reason."""
    result = judged(pool, "refuses")
    assert result.outcome is Outcome.UNSUPPORTED
    assert "only on Tuesdays" in result.reason


def test_a_reply_that_is_no_result_is_no_refusal() -> None:
    """An error about a returned list shows that an invalid input was accepted."""
    case = all_cases()["invalid-widths"]
    blank = Result("trial", "cpu", "float32", case.name, case.clauses, Outcome.PASSED, profile=Profile.WIDE)
    text = "TypeError: expected a NumPy array, got builtins.list"
    result = judge(Reply("raised", text=text, accepted=True), case, blank)
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.NO_ERROR)
    assert result.reason == f"accepted, and what it returned is not a result: {text}"
    assert judge(Reply("raised", text=text), case, blank).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("name", "text", "arrays"),
    [
        ("k.py:f", "AttributeError: 'numpy.ndarray' object has no attribute 'softmax'", True),
        ("k.py:f", "TypeError: sdpa(): argument 'query' must be Tensor, not numpy.ndarray", True),
        ("k.py:f", "TypeError: expected np.ndarray (got Tensor)", True),
        ("k.py:f", "RuntimeError: The size of tensor a (5) must match the size of tensor b (7)", False),
        ("k.py:f@torch", "AttributeError: 'numpy.ndarray' object has no attribute 'softmax'", False),
        ("torch-sdpa", "AttributeError: 'Tensor' object has no attribute 'astype'", False),
    ],
)
def test_an_exception_about_arrays_hints_at_the_framework(name: str, text: str, arrays: bool) -> None:
    """Only a function whose name does not say whose arrays it takes is told how to say it."""
    case = all_cases()["plain"]
    blank = Result(name, "cpu", "float32", case.name, case.clauses, Outcome.PASSED, profile=Profile.WIDE)
    message = judge(Reply("raised", text=text), case, blank).message
    assert ("append @numpy, @torch or @jax" in message) is arrays
    assert ("raise NotImplementedError" in message) is not arrays


def test_an_invalid_input_must_be_refused(pool: Pool) -> None:
    """An exception on an invalid input passes, with the exception as the reason."""
    result = judged(pool, "right", "invalid-widths")
    assert result.outcome is Outcome.PASSED
    assert "ValueError" in result.reason


def test_a_should_clause_advises(pool: Pool) -> None:
    """Breaking a SHOULD clause fails nothing."""
    result = judged(pool, "masked_nan_leaks", "masked-nan-causal")
    assert (result.outcome, result.broken) == (Outcome.ADVISORY, "SDPA-22")


def deviation(case: str, failure: Failure = Failure.VALUE, versions: str = ">=1") -> Ledger:
    """A ledger with one record about the fake that scales wrongly."""
    record = Deviation(
        "known", ("wrong", "right"), "numpy", versions, "SDPA-3", (case,), failure, "scales by 1/D", "unreported"
    )
    return Ledger((record,))


def test_a_recorded_failure_deviates(pool: Pool) -> None:
    """A failure that the ledger records is a known deviation, with the recorded behaviour."""
    result = judged(pool, "wrong", ledger=deviation("plain"))
    assert (result.outcome, result.broken) == (Outcome.KNOWN_DEVIATION, "SDPA-3")
    assert result.reason == "scales by 1/D [known]"


def test_a_deviation_that_is_gone_fails(pool: Pool) -> None:
    """A record whose case passes is out of date: the run fails and says which record to remove."""
    result = judged(pool, "right", ledger=deviation("plain"))
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.STALE)
    assert "remove record known" in result.message


def test_a_deviation_of_an_unsupported_case_is_gone_too(pool: Pool) -> None:
    """A record about a case that does not run is out of date."""
    assert judged(pool, "right", "window-both", ledger=deviation("window-*")).failure is Failure.STALE


def test_another_failure_than_recorded_fails(pool: Pool) -> None:
    """A record covers one way to fail; another way is a failure, and the message says so."""
    result = judged(pool, "wrong", ledger=deviation("plain", Failure.CRASHED))
    assert result.outcome is Outcome.FAILED
    assert "record known expects it to fail by crashed, not by value" in result.message


def test_a_record_of_other_versions_is_not_in_force(pool: Pool) -> None:
    """A record applies only to the versions that it names."""
    assert judged(pool, "wrong", ledger=deviation("plain", versions="<2")).outcome is Outcome.FAILED


def test_the_message_says_what_a_user_needs(pool: Pool) -> None:
    """The message has clause and sentence, the worst element, the wrong elements, and the rerun command."""
    message = judged(pool, "wrong", "values-tell-their-key").message
    assert "SDPA-16 · Output (MUST): The output of row i is" in message
    assert "Worst:    output[" in message
    assert "bound" in message
    assert "Wrong:    160 of 160 elements of output" in message
    assert "attention-conformance check wrong --device cpu --dtype float32 --case values-tell-their-key" in message


def test_an_empty_array_is_shown_by_its_shape() -> None:
    """The numbers of an array without elements are brackets, which show neither its rank nor its lengths."""
    case = next(c for c in all_cases().values() if c.past == 0 and "past_key" in c.keywords)
    shape = case.inputs("float32").keywords["past_key"].shape
    assert f"past_key {shape}" in inputs_line(case, "float32")


def test_the_message_says_where_the_wrong_elements_are(pool: Pool) -> None:
    """Batches, heads, rows and columns that have a wrong element are listed as runs."""
    message = judged(pool, "slightly_wrong", "values-tell-their-key").message
    assert "every batch, every head, every row, column 7 of 8" in message


def test_imprecision_is_told_from_error(pool: Pool) -> None:
    """A result that keeps a looser profile's bound is blamed on accuracy, and the message names that profile."""
    implementation = Implementation(
        "half", "attention_conformance.conformance.tests.test_judge:half_weights", profiles={"float16": Profile.WIDE}
    )
    result = judge_case(
        Target(implementation, "cpu", "float16"), all_cases()["tiles"], pool, frozenset(), Ledger(), VERSIONS, 60
    ).result
    assert (result.outcome, result.broken) == (Outcome.FAILED, "SDPA-25")
    assert "keeps the bound of profile fused, declares wide" in result.reason


def half_weights(q, k, v):  # type: ignore[no-untyped-def]
    """Attention in float32 whose weights are rounded to the dtype of q."""
    scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) * np.float32(q.shape[3] ** -0.5)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    weights = (powers / powers.sum(3, keepdims=True)).astype(q.dtype).astype(np.float32)
    return (weights @ v.astype(np.float32)).astype(q.dtype)


def test_a_wrong_value_is_blamed_on_what_the_case_is_about() -> None:
    """A value that is wrong in a case about repetition breaks the clause about values."""

    def blamed(case: Case) -> str:
        return case.blame.wrong_value(case.clauses)

    assert blamed(all_cases()["repeat-causal-mask"]) == "SDPA-16"
    assert blamed(all_cases()["memory-sliced"]) == "SDPA-30"
    assert blamed(all_cases()["causal-square"]) == "SDPA-9"
