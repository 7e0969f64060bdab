"""The protocol of a cell: what is checked when, and the effect of a wrong answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.output.document import reason_of, record
from attention_conformance.bench.sampling.sampler import Batch, Opened
from attention_conformance.bench.timing import protocol as protocols
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.protocol import LAST, UNSEEN, Live, Protocol
from attention_conformance.bench.validity.checks import FIRST, Invalid, References
from attention_conformance.bench.validity.outcomes import UNSTABLE, Cell, Outcome, ProcessRun, Skipped
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.interpreters import interpreted
from attention_conformance.impls.process import limits
from attention_conformance.impls.process.pool import Crashed, Spent, tells_core_wait

pytestmark = pytest.mark.slow

CELL = Cell(Target(Implementation("it", "nowhere:function"), "cpu", "float32"), Workload(1, 2, 4, 8))


WARM = Batch("returned", seconds=(0.1, 0.05, 0.05))


def right(number: int) -> np.ndarray:
    """The right output of an input set."""
    call = References().call(CELL.target, CELL.workload, number)
    return reference.sdpa(*call.arrays.values()).output.astype(np.float32)


def opened(output: np.ndarray, **rest: Any) -> Opened:
    """A first call that returned this output."""
    return Opened("returned", results={"output": output}, **rest)


def last(output: np.ndarray, **rest: Any) -> Batch:
    """A last batch whose fresh call returned this output."""
    return Batch("returned", "", (0.1, 0.2), results={"output": output}, **rest)


class Answers:
    """A stand-in for the processes: given answers by job, and the jobs that were requested."""

    def __init__(self, opened: Any, batch: Any = None, warm: Any = WARM, again: Any = None) -> None:
        again = again or Crashed("it is gone", "")
        self.answers = {"open_cell": opened, "warm": warm, "batch": batch, "close_cell": None, "again": again}
        self.jobs: list[str] = []

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The answer to a job; raises it if it is an exception."""
        job = function.partition(":")[2]
        self.jobs.append(job)
        answer = self.answers[job].pop(0) if isinstance(self.answers[job], list) else self.answers[job]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self, implementation: Implementation) -> None:
        """Record it among the jobs."""
        self.jobs.append("ended")

    def spent(self, implementation: Implementation) -> Spent | None:
        """No job waited."""
        return None


def protocol(answers: Answers) -> Protocol:
    """The protocol with given answers, for an implementation without keywords."""
    return Protocol(answers, Plan(limit=15.0), lambda implementation: frozenset())


def measure(answers: Answers, cell: Cell = CELL, same: Protocol | None = None) -> ProcessRun:
    """A process run of a cell with only its last batch, with given answers."""
    using = same or protocol(answers)
    using.admit(cell)
    return using.close(using.open(cell), Outcome(), "time budget")


def test_a_right_cell_gives_its_samples_and_share() -> None:
    """Samples, their preparation costs, and a share below 1 are returned, and the cell is closed."""
    answers = Answers(opened(right(FIRST), prepare_seconds=2.0, first_call_seconds=3.0), last(right(LAST)))
    process_run = measure(answers)
    assert process_run.batches == ((0.1, 0.2),)
    assert (process_run.prepare_seconds, process_run.first_call_seconds) == (2.0, 3.0)
    assert 0 < process_run.share <= 1
    assert answers.jobs == ["open_cell", "warm", "batch", "close_cell"]


def test_waiting_for_a_core_is_a_share_of_the_timed_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is 0.3 of 1.2 s; there is none before any job, for calls on all cores, or without the system's data."""
    monkeypatch.setattr(protocols, "usable_cores", lambda: 2)
    answers = Answers(opened(right(FIRST)), last(right(LAST), call_seconds=0.3, made=2))
    using = protocol(answers)
    assert using.core_wait is None
    answers.spent = lambda implementation: Spent(1.0, 1.2, 1.0, 0.3)  # type: ignore[method-assign]
    measure(answers, same=using)
    assert using.core_wait == (pytest.approx(0.25) if tells_core_wait() else None)
    monkeypatch.setattr(protocols, "usable_cores", lambda: 1)
    assert using.core_wait is None


def test_a_wrong_first_output_is_invalid_and_never_sampled() -> None:
    """A wrong value breaks the accuracy clause; no time is taken."""
    answers = Answers(opened(right(FIRST) + np.float32(0.01)))
    with pytest.raises(Invalid, match=r"SDPA-25.*64 of 64 checked elements"):
        measure(answers)
    assert answers.jobs == ["open_cell", "again", "close_cell"]


def outputs(*wrong: bool) -> list[Batch]:
    """Results of equal calls on the first input set, some of them wrong."""
    return [last(right(FIRST) + np.float32(0.01 * each)) for each in wrong]


def wrong_once(**rest: Any) -> Answers:
    """Answers of which only that to the first call is wrong."""
    again = outputs(False, False, False, False, False)
    return Answers(opened(right(FIRST) + np.float32(0.01)), last(right(LAST)), again=again, **rest)


def test_a_result_that_is_wrong_once_is_unstable_and_timed() -> None:
    """Only the first call is wrong: the cell has times, and the number of equal calls that are wrong."""
    answers = wrong_once()
    process_run = measure(answers)
    assert process_run.batches == ((0.1, 0.2),)
    assert process_run.unstable is not None
    clause, text = process_run.unstable
    assert clause == "SDPA-25"
    assert text.startswith("1 of 6 calls on the same inputs are wrong: 64 of 64 checked")
    assert 0 < process_run.share <= 1
    assert answers.jobs == ["open_cell", *["again"] * 5, "warm", "batch", "close_cell"]


def test_a_result_that_is_wrong_at_first_sight_of_inputs_is_invalid() -> None:
    """First calls on first and new inputs are wrong, but right when repeated: every call of a user would be wrong."""
    answers = wrong_once()
    answers.answers["batch"] = last(right(LAST) + np.float32(0.01))
    answers.answers["again"] += [last(right(LAST))] * 5
    with pytest.raises(Invalid, match="SDPA-25: unstable: on the first inputs and on new ones: 1 of 6 calls"):
        measure(answers)
    assert answers.jobs[-1] == "close_cell"


@pytest.mark.parametrize("new", [False, True])
def test_a_last_result_that_is_wrong_is_asked_on_new_inputs_too(new: bool) -> None:
    """A result that is right when repeated on the same inputs is unstable, unless unseen inputs are wrong as well."""
    again = [last(right(LAST))] * 5 + [last(right(UNSEEN) + np.float32(0.01 * new))] + [last(right(UNSEEN))] * 5 * new
    answers = Answers(opened(right(FIRST)), last(right(LAST) + np.float32(0.01)), again=again)
    if new:
        with pytest.raises(Invalid, match="SDPA-25: unstable: on the first inputs and on new ones"):
            measure(answers)
    else:
        assert measure(answers).unstable is not None


def test_an_unstable_cell_goes_on_and_is_counted_by_process_run() -> None:
    """The outcome has all process runs, and the number of those with a wrong result."""
    runs = (measure(wrong_once()), measure(Answers(opened(right(FIRST)), last(right(LAST)))))
    outcome = Outcome().with_run(runs[0]).with_run(runs[1])
    assert (outcome.kind, outcome.clause) == (UNSTABLE, "SDPA-25")
    assert outcome.reason.endswith("; in 1 of 2 process runs")
    found = record(CELL, outcome)
    assert (found.outcome, found.calls) == ("unstable", 4)
    assert reason_of(found).startswith("150 ms (")


def test_a_result_that_is_wrong_each_fifth_time_is_unstable() -> None:
    """Two of six calls are wrong."""
    answers = Answers(opened(right(FIRST) + np.float32(0.01)), again=outputs(False, False, False, False, True))
    with pytest.raises(Invalid, match="unstable: 2 of 6 calls on the same inputs are wrong"):
        measure(answers)


def test_a_result_that_is_wrong_each_time_is_not_called_unstable() -> None:
    """A result that is always wrong is reported as before."""
    answers = Answers(opened(right(FIRST) + np.float32(0.01)), again=outputs(True, True, True, True, True))
    with pytest.raises(Invalid, match=r"^invalid: SDPA-25: 64 of 64 checked"):
        measure(answers)


def test_the_known_cause_of_a_first_call_is_named_for_torch() -> None:
    """The cause applies on the CPU, where MKL computes."""
    target = replace(CELL.target, implementation=replace(CELL.target.implementation, framework=Framework.TORCH))
    process_run = measure(wrong_once(), replace(CELL, target=target))
    assert process_run.unstable is not None
    assert "pytorch 188792" in process_run.unstable[1]


def test_an_output_that_belongs_to_other_inputs_is_invalid() -> None:
    """A function that returns its result for the first set fails the check after the timing."""
    answers = Answers(opened(right(FIRST)), last(right(FIRST)))
    with pytest.raises(Invalid, match="SDPA-25"):
        measure(answers)
    assert answers.jobs[-1] == "close_cell"


def test_an_output_that_changes_after_the_call_is_invalid() -> None:
    """The output is invalid even if it was right when it was copied."""
    with pytest.raises(Invalid, match="asynchronous return: it returns before it is done: output changed"):
        measure(Answers(opened(right(FIRST)), last(right(LAST), unsettled=("output",))))


def test_a_wrong_shape_is_invalid_by_its_clause() -> None:
    """An output in another axis order breaks SDPA-1."""
    with pytest.raises(Invalid, match="SDPA-1:"):
        measure(Answers(opened(right(FIRST).swapaxes(1, 2))))


def test_a_wrong_dtype_is_invalid_by_its_clause() -> None:
    """An output that is wider than the inputs breaks SDPA-27."""
    with pytest.raises(Invalid, match="SDPA-27: the output is float64"):
        measure(Answers(opened(right(FIRST).astype(np.float64))))


def test_unsupported_is_skipped_with_the_reason() -> None:
    """A missing feature is not a failure."""
    with pytest.raises(Skipped, match=r"^unsupported: no such kernel$"):
        measure(Answers(Opened("unsupported", "no such kernel")))


def test_a_crash_is_invalid_and_nothing_is_asked_of_the_dead_worker() -> None:
    """A worker that dies while sampling gives no timing."""
    answers = Answers(opened(right(FIRST)), Crashed("the process was killed by SIGSEGV", ""))
    with pytest.raises(Invalid, match="crashed: the process was killed by SIGSEGV"):
        measure(answers)
    assert answers.jobs == ["open_cell", "warm", "batch"]


def test_a_process_that_lost_its_gpu_ends_and_is_asked_nothing_more() -> None:
    """Every later call would raise the same; on the CPU such a text is the implementation's own."""
    raised = Batch("raised", "AcceleratorError: CUDA error: an illegal memory access was encountered")
    for device, clause, jobs in (("cuda", "crashed", ["ended"]), ("cpu", "error", ["close_cell"])):
        answers = Answers(opened(right(FIRST)), raised)
        with pytest.raises(Invalid, match=f"{clause}: AcceleratorError: CUDA error"):
            measure(answers, replace(CELL, target=replace(CELL.target, device=device)))
        assert answers.jobs == ["open_cell", "warm", "batch", *jobs]


def test_a_cell_over_the_limit_is_skipped_and_predicts_the_longer_ones() -> None:
    """The prediction of the warm calls is the reason, and longer workloads are refused without being opened."""
    answers = Answers(opened(right(FIRST)), warm=Batch("returned", seconds=(10.0,)))
    same = protocol(answers)
    with pytest.raises(Skipped, match=r"predicted 150\.0 s"):
        measure(answers, same=same)
    assert answers.jobs == ["open_cell", "warm", "close_cell"]
    answers.jobs.clear()
    with pytest.raises(Skipped, match=r"predicted 600\.0 s"):
        measure(answers, Cell(CELL.target, Workload(1, 2, 4, 16)), same)
    assert answers.jobs == []


def test_a_call_that_is_longer_than_a_batch_is_a_batch() -> None:
    """A batch of such a call has no second call."""
    asked: list[Any] = []

    class Asked(Answers):
        def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: Any = None) -> Any:
            asked.append(arguments[2:3])
            return super().call(implementation, function, *arguments, timeout=timeout)

    for seconds, calls in ((0.03, 1), (0.001, Plan().batch_calls)):
        live = Live(CELL, opened(right(FIRST)), 0.0, seconds)
        protocol(Asked(None, last(right(LAST)))).batch(live)
        assert asked.pop() == (calls,)


def test_a_process_run_has_fresh_inputs_of_its_own() -> None:
    """Only the checked inputs are shared, so what an earlier run left on the disk does not help the other calls."""
    asked: list[Any] = []

    class Asked(Answers):
        def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: Any = None) -> Any:
            asked.append(arguments[3])
            return super().call(implementation, function, *arguments, timeout=timeout)

    for process_run in (0, 1):
        live = Live(CELL, opened(right(FIRST)), 0.0, 0.03, process_run=process_run)
        for _ in range(2):
            protocol(Asked(None, last(right(LAST)))).batch(live)
    assert len(set(asked)) == 4
    assert LAST not in asked


def test_batches_grow_once_a_call_is_quick() -> None:
    """A machine that was busy during the warm calls does not reduce every later batch to a single call."""
    live = Live(CELL, opened(right(FIRST)), 0.0, call_seconds=0.5)
    using = protocol(Answers(None, Batch("returned", seconds=(0.001,))))
    using.batch(live)
    assert live.call_seconds == 0.001


def test_threads_are_those_of_all_batches_together() -> None:
    """A short batch, whose CPU time is only coarsely known, does not decide."""
    batches = [Batch("returned", seconds=(0.001,), cores=7.0), Batch("returned", seconds=(0.01, 0.01), cores=1.9)]
    assert Live(CELL, opened(right(FIRST)), 0.0, 0.01, batches).threads == 2
    assert Live(CELL, opened(right(FIRST)), 0.0, 0.01, [Batch("returned", seconds=(1.0,))]).threads == 1


def test_a_keyword_that_is_not_accepted_is_unsupported() -> None:
    """A causal workload is not run on an implementation without ``is_causal``."""
    answers = Answers(Opened("returned"))
    with pytest.raises(Skipped, match="unsupported: no keyword is_causal"):
        measure(answers, Cell(CELL.target, Workload(1, 2, 4, 8, is_causal=True)))
    assert answers.jobs == []


@pytest.mark.parametrize("language", ["triton", "pallas"])
def test_interpreted_kernels_are_not_timed(language: str) -> None:
    """An interpreter's time is not the kernel's; compiled for a GPU the kernel is timed."""
    kernel = Implementation("it", "nowhere:function", kernels=language)
    answers = Answers(Opened("returned"))
    with pytest.raises(Skipped, match="not timed: its kernels are interpreted"):
        measure(answers, Cell(Target(kernel, "cpu", "float32"), CELL.workload))
    assert answers.jobs == []
    assert not interpreted(kernel, "cuda")


def test_running_out_of_memory_is_skipped_with_the_reason() -> None:
    """A library that cannot allocate is not wrong."""
    with pytest.raises(Skipped, match=r"^out of memory: OutOfMemoryError: tried to allocate 9 GiB$"):
        measure(Answers(Opened("memory", "OutOfMemoryError: tried to allocate 9 GiB")))


def test_what_would_not_fit_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has the memory that the cell needs and that is free, and no worker is asked."""
    monkeypatch.setattr(limits, "available", lambda: 2**30)
    answers = Answers(opened(right(FIRST)))
    with pytest.raises(Skipped, match=r"needs \d+\.\d GiB, 1\.0 GiB are free"):
        measure(answers, Cell(CELL.target, Workload(1, 8, 64, 2**15)))
    assert answers.jobs == []


def test_past_keys_need_an_implementation_with_a_cache() -> None:
    """An implementation without the keywords is not timed."""
    answers = Answers(Opened("returned"))
    decode = Workload(1, 2, 4, 1, kind="decode", other=8)
    with pytest.raises(Skipped, match="unsupported: no keyword is_causal, past_key, past_value"):
        measure(answers, Cell(CELL.target, decode))
    assert answers.jobs == []
