"""A rank that dies, hangs or disagrees is the outcome of its case, with its number, and leaves no process behind."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.loading import attributes_of, load
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

FUNCTIONS = "attention_conformance.impls.tests.rank_functions"


@pytest.fixture(scope="module")
def others() -> list[psutil.Process]:
    """Processes of other tests, which may exist before."""
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def pool(others: list[psutil.Process]) -> Iterator[Pool]:
    """One worker for all tests, which starts new ranks when the last ones are gone."""
    pytest.importorskip("torch")
    found = Pool()
    yield found
    found.close()


def judged(name: str, pool: Pool) -> Result:
    """The result of a function over two ranks on a case."""
    plugged = plug_in(f"{FUNCTIONS}:{name}@torch")
    one = with_attributes(plugged, attributes_of(load(plugged.target, plugged.folder)))
    case = fit(every_case()["plain"], one.envelope)
    return judge_case(Target(one, "cpu", "float32"), case, pool, frozenset(), Ledger(), {}, 120).result


def started(others: list[psutil.Process]) -> list[psutil.Process]:
    """The worker and its ranks."""
    return [each for each in psutil.Process().children(recursive=True) if each not in others]


def ended(processes: list[psutil.Process]) -> bool:
    """Whether all processes end within the seconds that a busy machine may need."""
    return not psutil.wait_procs(processes, timeout=30)[1]


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("name", "failure", "said"),
    [
        ("dies", Failure.CRASHED, "rank 1 of 2: the process was killed by SIGSEGV"),
        ("hangs", Failure.TIMEOUT, "rank 1 of 2: no answer within"),
        ("disagrees", Failure.ERROR, "rank 1 of 2 disagrees with rank 0"),
    ],
)
def test_what_a_rank_does_is_the_outcome_of_its_case(
    name: str, failure: Failure, said: str, pool: Pool, others: list[psutil.Process]
) -> None:
    """The outcome names the rank; if it died or hung, the other rank is ended too."""
    result = judged(name, pool)
    assert (result.outcome, result.failure) == (Outcome.FAILED, failure)
    assert said in result.reason
    ranks = [each for each in started(others) if each.ppid() != psutil.Process().pid]
    assert len(ranks) >= 2 if name == "disagrees" else ended(ranks)


@pytest.mark.slow(20)
def test_the_case_after_that_is_judged_and_no_rank_is_left_when_the_run_ends(
    pool: Pool, others: list[psutil.Process]
) -> None:
    """Fresh ranks answer the next case, and end with their worker."""
    assert judged("right", pool).outcome is Outcome.PASSED
    processes = started(others)
    assert len(processes) >= 3
    pool.close()
    assert ended(processes)
