"""The wall between judge and judged: what a plug-in sends over the worker's connection only affects its own case."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.conformance.tests.test_misbehaviour import judged as judged_misbehaving
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.tests import forging

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Worker processes shared by all tests of this module, as in a run."""
    pool = Pool()
    yield pool
    pool.close()


def judged(pool: Pool, name: str) -> Result:
    """The result of a case on a function of ``forging``."""
    implementation = Implementation(name, f"{forging.__name__}:{name}", worker="numpy")
    target = Target(implementation, "cpu", "float32")
    return judge_case(target, all_cases()["plain"], pool, frozenset(), Ledger(), {}, 60.0).result


@pytest.mark.parametrize(
    "name",
    [
        "sends_a_pickle",
        "sends_a_pickle_through_an_object",
        "forges_an_answer",
        "forges_another_record",
        "sends_a_huge_header",
        "sends_without_end",
    ],
)
def test_what_is_sent_from_inside_a_call_is_garbage(
    pool: Pool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case fails and says so, nothing sent is executed here, and the next case gets a fresh process."""
    monkeypatch.setenv(forging.MARK, str(tmp_path / "mark"))
    pool.close()
    result = judged(pool, name)
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.CRASHED)
    assert result.reason.startswith("sent garbage: ")
    assert not (tmp_path / "mark").exists()
    assert judged_misbehaving(pool, "right").outcome is Outcome.PASSED


def test_a_worker_within_the_worker_is_betrayed_by_the_answer_to_its_call(pool: Pool) -> None:
    """A worker that takes the seal too is exposed by its real answer, which comes after the seal or in a later call."""
    pool.close()
    reasons = [judged(pool, "takes_the_seal").reason, judged_misbehaving(pool, "right").reason]
    assert [reason.startswith("sent garbage: ") for reason in reasons].count(True) == 1
    assert judged_misbehaving(pool, "right").outcome is Outcome.PASSED


def test_a_forged_exception_does_not_end_the_run(pool: Pool) -> None:
    """A forged exception is only the outcome of its case."""
    assert judged(pool, "forges_an_exception").failure is Failure.CRASHED
    assert judged_misbehaving(pool, "right").outcome is Outcome.PASSED


def test_a_closed_connection_is_a_crash(pool: Pool) -> None:
    """A closed connection is a crash, like a process that ended."""
    assert judged(pool, "closes_the_connection").failure is Failure.CRASHED
    assert judged_misbehaving(pool, "exits_at_once").failure is Failure.CRASHED
    assert judged_misbehaving(pool, "right").outcome is Outcome.PASSED


def test_what_arrives_between_two_requests_is_seen(pool: Pool) -> None:
    """A process that sent more than one answer does not get the next request."""
    assert judged(pool, "answers_twice").outcome is Outcome.PASSED
    time.sleep(0.6)
    assert judged_misbehaving(pool, "right").reason == "sent garbage: bytes that nothing asked for"
    assert judged_misbehaving(pool, "right").outcome is Outcome.PASSED
