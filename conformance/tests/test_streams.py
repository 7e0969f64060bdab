"""(SDPA-45) Outcomes of calls in a held stream, and the implementations that are tested."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.run import streams
from attention_conformance.conformance.run_case import blank_of
from attention_conformance.conformance.spec.clauses import BY_OPTION, Level, clauses
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.process.pool import Crashed, TimedOut
from attention_conformance.impls.select import builtin
from attention_conformance.impls.streams import InStream

CASE = every_case()["inputs-unchanged-plain"]
TARGET = Target(builtin()["torch-sdpa"], "cuda", "float32")
BLANK = replace(blank_of(TARGET, CASE), case=streams.NAME, clauses=(streams.CLAUSE,))

RIGHT = {"output": np.asarray(CASE.expected("float32").output, np.float32)}
ZEROS = {"output": np.zeros_like(RIGHT["output"])}


def judged(**fields: Any) -> Result:
    """The result of a call that is right except for these fields."""
    right: Any = {"plain": RIGHT, "in_order": RIGHT, "later": RIGHT, "held": True}
    return streams.judged(InStream("returned", **right | fields), CASE, BLANK)


def test_the_clause_is_one_that_no_case_shows() -> None:
    """The clause is a MUST that only a GPU shows, and no case."""
    assert clauses()[streams.CLAUSE].level is Level.MUST
    assert streams.CLAUSE in BY_OPTION


def test_a_call_in_its_place_passes() -> None:
    """The reason says whether the call was submitted while the stream was held."""
    assert (judged().outcome, judged().reason) == (
        Outcome.PASSED,
        "in its place: submitted while the stream was held",
    )
    assert judged(held=False).reason == "in its place: it waits for the stream itself"


def test_results_of_zeros_were_computed_too_early() -> None:
    """The message has the clause, the observation, how to launch the kernel, and the command."""
    found = judged(in_order=ZEROS, later=ZEROS)
    assert (found.outcome, found.failure, found.broken) == (Outcome.FAILED, Failure.VALUE, "SDPA-45")
    assert found.reason == "it computed before its stream had written its inputs"
    assert "SDPA-45 · Order in a stream (MUST)" in found.message
    assert "torch.cuda.current_stream().cuda_stream" in found.message
    assert "attention-conformance check torch-sdpa --device cuda --dtype float32 -k test_streams" in found.message


def test_results_that_are_right_later_came_too_late() -> None:
    """Work after the call in its stream did not see the results."""
    found = judged(in_order=ZEROS)
    assert found.outcome is Outcome.FAILED
    assert found.reason == "its results were not ready for the next work in its stream, only later"


def test_a_kernel_that_is_not_accurate_is_compared_with_itself() -> None:
    """Order is judged against the kernel's own results, even if they are wrong, which its cases report."""
    off = {"output": 1.5 * RIGHT["output"]}
    assert judged(plain=off, in_order=off, later=off).outcome is Outcome.PASSED
    assert judged(plain=off, in_order=ZEROS, later=off).outcome is Outcome.FAILED


def test_calls_need_not_have_equal_bits() -> None:
    """Sums in another order are within the bound; another shape is another result."""
    nearly = {"output": np.nextafter(RIGHT["output"], np.float32(9))}
    assert judged(in_order=nearly, later=nearly).outcome is Outcome.PASSED
    assert judged(in_order={"output": RIGHT["output"][:1]}).outcome is Outcome.FAILED


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_of_zeros_and_nan_nothing_can_be_said(value: float) -> None:
    """Results of zeros or NaN are unsupported, as late inputs would give the same, or not be seen."""
    same = {"output": np.full_like(ZEROS["output"], value)}
    assert judged(plain=same, in_order=same, later=same).outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize("status", ["raised", "unsupported"])
def test_exceptions_are_left_to_the_cases(status: Any) -> None:
    """An exception is unsupported with its text, and left to the cases."""
    found = streams.judged(InStream(status, "ValueError: no"), CASE, BLANK)
    assert (found.outcome, found.reason) == (Outcome.UNSUPPORTED, "ValueError: no")


@pytest.mark.parametrize(("error", "failure"), [(Crashed, Failure.CRASHED), (TimedOut, Failure.TIMEOUT)])
def test_a_process_that_dies_in_the_stream_fails(error: Any, failure: Failure) -> None:
    """A process that dies here fails, as the cases ran before."""

    class Pool:
        def call(self, *_: Any, **__: Any) -> None:
            raise error("gone", "") if error is Crashed else error("gone")

    found = streams.judge(TARGET, [CASE], Pool(), 1.0)  # type: ignore[arg-type]
    assert (found.outcome, found.failure) == (Outcome.FAILED, failure)


def test_a_process_that_lost_its_gpu_in_the_stream_ends() -> None:
    """The process is ended, as every later call would raise the same."""

    class Pool:
        ended = 0

        def call(self, *_: Any, **__: Any) -> InStream:
            return InStream("raised", "AcceleratorError: CUDA error: an illegal memory access was encountered")

        def end(self, implementation: Any) -> None:
            self.ended += 1

    pool: Any = Pool()
    assert streams.judge(TARGET, [CASE], pool).outcome is Outcome.UNSUPPORTED
    assert pool.ended == 1


def test_where_a_call_is_refused_the_next_case_is_tried() -> None:
    """A causal-only kernel is tested with a causal case; if all cases are refused, the last reason is reported."""
    of_sdpa = [case for case in every_case().values() if case.operator == "sdpa"]
    plain, causal, *_ = streams.chosen(of_sdpa, TARGET, frozenset({"is_causal", "scale"}))
    assert [sorted(case.keywords) for case in (plain, causal)] == [[], ["is_causal"]]
    output = np.asarray(causal.expected("float32").output, np.float32)

    class Pool:
        def call(self, _: Any, job: str, implementation: Any, request: Any, **__: Any) -> InStream:
            if "is_causal" not in request.keywords:
                return InStream("unsupported", "causal alone")
            return InStream("returned", "", {"output": output}, {"output": output}, {"output": output}, True)

    pool: Any = Pool()
    assert streams.judge(TARGET, [plain, causal], pool).outcome is Outcome.PASSED
    refused = streams.judge(TARGET, [plain], pool)
    assert (refused.outcome, refused.reason) == (Outcome.UNSUPPORTED, "causal alone")


def test_who_is_asked() -> None:
    """Implementations with torch's arrays are tested, on CUDA."""
    assert streams.asked(TARGET)
    assert not streams.asked(Target(builtin()["torch-sdpa"], "cpu", "float32"))
    assert not streams.asked(Target(builtin()["jax-nn"], "cuda", "float32"))


def test_the_case_is_one_whose_results_zeros_do_not_give() -> None:
    """The cases are plain and valid, with existing keywords and results other than zeros."""
    cases = list(every_case().values())
    of_sdpa = [case for case in cases if case.operator == "sdpa"]
    (found,) = streams.chosen(of_sdpa, TARGET, frozenset())
    assert not found.keywords
    assert not found.invalid
    assert found.expected("float32").output.any()
    several = streams.chosen(of_sdpa, TARGET, frozenset().union(*(case.keywords for case in of_sdpa)))
    assert len({case.keywords for case in several}) == len(several) == streams.TRIED
    zeros = next(case for case in of_sdpa if not case.invalid and not streams._not_of_zeros(case, TARGET))
    assert streams.chosen([zeros], TARGET, zeros.keywords) == ()


def test_on_a_cpu_there_is_no_such_test_and_none_is_skipped() -> None:
    """On a CPU the closing line of a run is unchanged."""
    options = ("--impl", "torch-sdpa", "--device", "cpu", "--dtype", "float32", "-k", "test_streams")
    command = [sys.executable, "-m", "pytest", "--pyargs", "attention_conformance.conformance", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "skipped" not in done.stdout
    assert done.returncode == 5


RECORD = """
[[deviation]]
id = "default-stream"
implementations = ["torch-sdpa"]
package = "torch"
versions = ">=2.11"
clause = "SDPA-45"
cases = ["stream/order"]
failure = "value"
instead = "it is launched in the default stream"
upstream = "unreported"
devices = ["cuda"]
"""


def test_a_record_of_the_ledger_may_be_of_it(tmp_path: Path) -> None:
    """A recorded failure is a known deviation, and a record that is gone fails."""
    (tmp_path / "ledger.toml").write_text(RECORD)
    ledger = read([tmp_path / "ledger.toml"])
    known = apply(ledger, judged(in_order=ZEROS), CASE, {"torch": "2.11.0"})
    assert (known.outcome, known.reason) == (
        Outcome.KNOWN_DEVIATION,
        "it is launched in the default stream [default-stream]",
    )
    gone = apply(ledger, judged(), CASE, {"torch": "2.11.0"})
    assert (gone.outcome, gone.failure) == (Outcome.FAILED, Failure.STALE)
    assert apply(ledger, judged(in_order=ZEROS), CASE, {"torch": "2.10.0"}).outcome is Outcome.FAILED
