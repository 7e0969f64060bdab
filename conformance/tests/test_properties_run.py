"""A property run on a target: failures, the ledger's excuses, early ends, and repeatability."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from attention_conformance.conformance.cases import base, data
from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.store import CASES
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.properties import run as machinery
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.properties.properties import PROPERTIES
from attention_conformance.conformance.properties.run import paste_line
from attention_conformance.conformance.properties.trial import Context
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.tests.property_runs import context, run
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow(20)

REFERENCE = "agrees-with-reference"
#: A real record, changed to apply to the fakes.
EMPTY_ROWS = Deviation(
    "jax-nn-empty-row-1", ("mean_*",), "numpy", "", "SDPA-15", (), Failure.VALUE, "the mean of v", "unreported"
)


def pasted(message: str) -> Case:
    """The case made by the message's last line, as in a file of cases."""
    line = message.splitlines()[-1]
    assert line.startswith("yield case("), message
    names = {**vars(data), **vars(base)}
    return eval(line.removeprefix("yield "), names)  # noqa: S307  (the text is what is tested)


def judged(case: Case, tested: Context) -> Result:
    """The result of a case on the target of a context."""
    return judge_case(tested.target, case, tested.pool, tested.keywords, Ledger(), {}, None).result


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["wrong_scale", "finite_fill", "base_two", "heads_in_turn", "bottom_right"])
def test_the_pasted_case_fails_in_the_same_way(name: str, dtype: str) -> None:
    """The last line of a failure makes a case that fails the same implementation, in the same dtype."""
    tested = context(name, dtype)
    result = run(REFERENCE, tested)
    case = pasted(result.message)
    assert case.dtypes == (dtype,)
    again = judged(case, tested)
    assert (again.outcome, again.failure) == (Outcome.FAILED, Failure.VALUE)
    assert re.search(r"Worst: .*", again.message)[0] == re.search(r"Worst: .*", result.message)[0]  # type: ignore[index]
    assert judged(case, context("right", dtype)).outcome is Outcome.PASSED


@pytest.mark.parametrize("offset", [0, -1])
def test_a_pasted_case_says_whether_it_expects_zeros(offset: int) -> None:
    """A case whose whole output is zero must say so, such as a counterexample of fully masked rows."""
    problem = Problem("fuzz-zeros", Shape(1, 1, 1, 1, 1, 1, 1), is_causal=True, causal_offset=offset)
    case = pasted(paste_line(problem, "SDPA-15", "float16"))
    assert case.zeros == (offset < 0) == (not case.expected("float16").output.any())


def test_a_property_pastes_only_what_fails_by_itself() -> None:
    """A finite fill shows only next to hidden keys: the problem alone passes, and the message says so."""
    message = run("hidden-keys", context("finite_fill")).message
    assert "Paste:    nothing: the problem by itself is computed right" in message
    assert "yield case(" not in message


def test_a_property_pastes_a_problem_that_fails_by_itself() -> None:
    """A wrong order of heads already fails in the whole problem, which becomes a case."""
    tested = context("heads_in_turn")
    assert judged(pasted(run("head-alone", tested).message), tested).outcome is Outcome.FAILED


def test_a_failure_says_everything() -> None:
    """The message has clause, property, problem, calls, the worst element, and the rerun command."""
    message = run("keys-permuted", context("recency"), seed=7).message
    assert message.startswith(
        "recency on cpu in float32, property keys-permuted: wrong by value\nSDPA-16 · Output (MUST)"
    )
    for line in (
        r"Property: The keys in another order, .*\.",
        r"Problem:  fuzz-[0-9a-f]{8}: q \(",
        r"Calls:    the problem as drawn: .* the bound away from its reference",
        r"          its keys in the order \[1, 0\]: ",
        r"Worst:    \w+\[.*\] expected .*, got .*: error .*, bound ",
        r"Rerun:    attention-conformance check recency --device cpu --dtype float32"
        r" -k 'test_fuzz and keys-permuted' --fuzz 150 --fuzz-seed 7",
    ):
        assert re.search(f"^{line}", message, re.MULTILINE), line


class Requests(Pool):
    """A pool that records its requests."""

    def __init__(self) -> None:
        super().__init__(in_process=True)
        self.seen: list[bytes] = []

    def call(self, *arguments: object, timeout: float | None = None) -> object:
        """Record the inputs and call the pool."""
        request: Any = arguments[3]
        self.seen.append(b"".join(array.tobytes() for array in request.arrays.values()) + repr(request).encode())
        return super().call(*arguments, timeout=timeout)  # type: ignore[arg-type]


def requests(seed: int, prop: str = "keys-split") -> list[bytes]:
    """The inputs of every call of a run."""
    pool = Requests()
    run(prop, context("right", pool=pool), examples=20, seed=seed)
    return pool.seen


def test_the_same_seed_gives_the_same_examples() -> None:
    """A seed repeats a run, to the last bit of every input."""
    assert requests(3) == requests(3)


def test_another_seed_gives_other_examples() -> None:
    """Runs with two seeds share no example."""
    assert not set(requests(3)) & set(requests(4))


def test_a_recorded_deviation_is_not_a_failure() -> None:
    """The mean of v in a fully masked row, as recorded in the ledger, is a known deviation that names its record."""
    result = run(REFERENCE, context("mean_of_rows", records=(EMPTY_ROWS,)))
    assert (result.outcome, result.failure, result.broken) == (Outcome.KNOWN_DEVIATION, Failure.VALUE, "SDPA-15")
    assert "jax-nn-empty-row-1" in result.reason
    assert run(REFERENCE, context("mean_of_rows")).outcome is Outcome.FAILED


def test_a_recorded_deviation_excuses_nothing_else() -> None:
    """A wrong scale fails although fully masked rows are excused, and its worst element is not an excused one."""
    result = run(REFERENCE, context("mean_and_scale", records=(EMPTY_ROWS,)))
    assert result.outcome is Outcome.FAILED
    assert judged(pasted(result.message), context("mean_of_rows")).outcome is Outcome.PASSED


def test_a_recorded_deviation_excuses_no_other_kind() -> None:
    """A record of an error does not excuse a wrong value."""
    tested = context("mean_of_rows", records=(replace(EMPTY_ROWS, failure=Failure.ERROR),))
    assert run(REFERENCE, tested).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("says", "outcome"),
    [("", Outcome.KNOWN_DEVIATION), ("too many keys", Outcome.KNOWN_DEVIATION), ("x", Outcome.FAILED)],
)
def test_a_recorded_exception_excuses_no_other_one(says: str, outcome: Outcome) -> None:
    """A record that quotes its exception excuses only an exception with these words."""
    record = replace(EMPTY_ROWS, id="jax-nn-float16", implementations=("raises_*",), failure=Failure.ERROR, says=says)
    assert run(REFERENCE, context("raises_on_three_keys", records=(record,))).outcome is outcome


@pytest.mark.parametrize(
    ("name", "failure", "broken"),
    [
        ("raises_on_three_keys", Failure.ERROR, "SDPA-25"),
        ("modifies", Failure.MODIFIED, "SDPA-28"),
        ("forgetful", Failure.UNREPEATABLE, "SDPA-29"),
    ],
)
def test_other_ways_to_fail_are_told_apart(name: str, failure: Failure, broken: str) -> None:
    """An exception, a modified input and an unrepeatable result fail any property as what they are."""
    result = run(REFERENCE, context(name))
    assert (result.outcome, result.failure, result.broken) == (Outcome.FAILED, failure, broken)


def test_what_is_refused_is_not_an_example() -> None:
    """Refused examples are replaced by others; if there are none, the reason is reported."""
    assert run(REFERENCE, context("refuses_causal"), examples=20).reason == "20 examples"
    result = run("causal-prefix", context("refuses_causal"), examples=20)
    assert result.outcome is Outcome.UNSUPPORTED
    assert result.reason == "NotImplementedError: no causal kernel on Mondays"


@pytest.fixture
def processes() -> Pool:
    """Worker processes."""
    return Pool(in_process=False)


def test_a_crash_is_a_failure_and_does_not_cost_a_process_for_every_shrink(
    processes: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some crashes shrinking stops, and the smallest example so far is reported."""
    monkeypatch.setattr(machinery, "CRASHES", 3)
    result = run(REFERENCE, context("aborts_on_three_keys", pool=processes))
    processes.close()
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.CRASHED)
    assert "killed by SIGABRT" in result.message
    assert "yield case(" in result.message


def test_a_hang_is_waited_for_once(processes: Pool) -> None:
    """A call without an end is reported as found, without shrinking."""
    result = run(REFERENCE, context("hangs_on_three_keys", pool=processes, timeout=1.0))
    processes.close()
    assert (result.outcome, result.failure) == (Outcome.FAILED, Failure.TIMEOUT)
    assert "no answer within 1 s" in result.message


def test_an_example_is_forgotten() -> None:
    """Random problems are not kept in memory, unlike fixed cases."""
    before = len(CASES)
    run(REFERENCE, context("right"), examples=10)
    assert len(CASES) == before


def test_every_property_calls_twice_or_knows_the_answer() -> None:
    """Every property but two makes more than one call, as it relates calls."""
    calls: dict[str, int] = {}
    for prop in PROPERTIES:
        pool = Requests()
        run(prop, context("right", pool=pool), examples=1)
        calls[prop] = len(pool.seen)
    assert {name for name, count in calls.items() if count == 1} == {REFERENCE, "constant-v"}
    assert calls["linear-in-v"] == calls["keys-split"] == 3
