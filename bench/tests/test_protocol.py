"""The protocol of a cell: what is checked when, and what a wrong answer leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import arguments, budget
from bench.checks import StruckOut
from bench.memory import SETS
from bench.protocol import Cell, NotTimed, Protocol
from bench.sampler import Opened, Plan, Samples
from bench.workloads import Workload
from conformance import reference
from conformance.targets import Target
from impls.contract import Implementation
from impls.isolation import Crashed

CELL = Cell(Target(Implementation("it", "nowhere:function"), "cpu", "float32"), Workload(1, 2, 4, 8))


def right(seed: int) -> np.ndarray:
    """The right output of an input set."""
    arrays, _ = arguments.make(CELL.workload, "float32", seed)
    return reference.sdpa(*arrays.values()).output.astype(np.float32)


def opened(output: np.ndarray, **rest: Any) -> Opened:
    """A first call that returned an output."""
    return Opened("returned", results={"output": output}, **rest)


class Answers:
    """A stand-in for the pool: given answers by job, and which jobs were asked for."""

    def __init__(self, opened: Any, samples: Any = None) -> None:
        self.answers = {"open_cell": opened, "sample": samples, "close_cell": None}
        self.jobs: list[str] = []

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None) -> Any:
        """The answer to a job; raises it if it is an exception."""
        job = function.partition(":")[2]
        self.jobs.append(job)
        if isinstance(self.answers[job], Exception):
            raise self.answers[job]
        return self.answers[job]


def protocol(answers: Answers) -> Protocol:
    """The protocol with given answers, of an implementation without keywords."""
    return Protocol(answers, Plan(rounds=5, limit=5.0), lambda implementation: frozenset())  # type: ignore[arg-type]


def measure(answers: Answers) -> Any:
    """Measure CELL by given answers."""
    return protocol(answers).measure(CELL)


def test_a_right_cell_gives_its_samples_and_share() -> None:
    """Samples, what was paid before them, and a share below 1 come back, and the cell is closed."""
    answers = Answers(
        opened(right(0), prepare_seconds=2.0, first_call_seconds=3.0),
        Samples("returned", "", (0.1, 0.2), 0.5, last=2, results={"output": right(2)}),
    )
    measured = measure(answers)
    assert measured.seconds == (0.1, 0.2)
    assert (measured.prepare_seconds, measured.first_call_seconds) == (2.0, 3.0)
    assert 0 < measured.share <= 1
    assert answers.jobs == ["open_cell", "sample", "close_cell"]


def test_a_wrong_first_output_is_struck_out_and_never_sampled() -> None:
    """A wrong value breaks the accuracy clause; no time is taken."""
    answers = Answers(opened(right(0) + np.float32(0.01)))
    with pytest.raises(StruckOut, match=r"SDPA-25.*64 of 64 checked elements"):
        measure(answers)
    assert answers.jobs == ["open_cell", "close_cell"]


def test_an_output_that_belongs_to_other_inputs_is_struck_out() -> None:
    """A function that returns what it computed for the first set fails the check after the timing."""
    samples = Samples("returned", "", (0.1,), 0.5, last=SETS - 1, results={"output": right(0)})
    with pytest.raises(StruckOut, match="SDPA-25"):
        measure(Answers(opened(right(0)), samples))


def test_a_wrong_shape_is_struck_out_by_its_clause() -> None:
    """An output in another axis order breaks SDPA-1."""
    with pytest.raises(StruckOut, match="SDPA-1:"):
        measure(Answers(opened(right(0).swapaxes(1, 2))))


def test_a_wrong_dtype_is_struck_out_by_its_clause() -> None:
    """An output that is wider than the inputs breaks SDPA-27."""
    with pytest.raises(StruckOut, match="SDPA-27: the output is float64"):
        measure(Answers(opened(right(0).astype(np.float64))))


def test_unsupported_is_left_out_with_the_reason() -> None:
    """What an implementation does not have is not a failure."""
    with pytest.raises(NotTimed, match=r"^unsupported: no such kernel$"):
        measure(Answers(Opened("unsupported", "no such kernel")))


def test_a_crash_is_struck_out_and_nothing_is_asked_of_the_dead_worker() -> None:
    """A worker that dies while sampling gives no timing."""
    answers = Answers(opened(right(0)), Crashed("the process was killed by SIGSEGV", ""))
    with pytest.raises(StruckOut, match="crashed: the process was killed by SIGSEGV"):
        measure(answers)
    assert answers.jobs == ["open_cell", "sample"]


def test_a_cell_over_the_limit_is_left_out_and_predicts_the_longer_ones() -> None:
    """The prediction of the warm calls is the reason, and longer workloads are refused without being opened."""
    answers = Answers(opened(right(0)), Samples("over", predicted=50.0))
    same = protocol(answers)
    with pytest.raises(NotTimed, match=r"predicted 50\.0 s"):
        same.measure(CELL)
    answers.jobs.clear()
    with pytest.raises(NotTimed, match=r"predicted 200\.0 s"):
        same.measure(Cell(CELL.target, Workload(1, 2, 4, 16)))
    assert answers.jobs == []


def test_a_keyword_that_is_not_accepted_is_unsupported() -> None:
    """A causal workload is not put to an implementation without ``is_causal``."""
    answers = Answers(Opened("returned"))
    with pytest.raises(NotTimed, match="unsupported: no keyword is_causal"):
        protocol(answers).measure(Cell(CELL.target, Workload(1, 2, 4, 8, is_causal=True)))
    assert answers.jobs == []


def test_running_out_of_memory_is_left_out_with_the_reason() -> None:
    """A library that cannot allocate is not wrong."""
    with pytest.raises(NotTimed, match=r"^out of memory: OutOfMemoryError: tried to allocate 9 GiB$"):
        measure(Answers(Opened("memory", "OutOfMemoryError: tried to allocate 9 GiB")))


def test_what_would_not_fit_is_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason has what the cell needs and what is free, and no worker hears of it."""
    monkeypatch.setattr(budget, "available_bytes", lambda: 2**30)
    answers = Answers(opened(right(0)))
    with pytest.raises(NotTimed, match=r"needs \d+\.\d GiB, 1\.0 GiB are free"):
        protocol(answers).measure(Cell(CELL.target, Workload(1, 8, 64, 2**15)))
    assert answers.jobs == []


def test_past_keys_need_an_implementation_with_a_cache() -> None:
    """One without the keywords is not timed."""
    answers = Answers(Opened("returned"))
    decode = Workload(1, 2, 4, 1, kind="decode", other=8)
    with pytest.raises(NotTimed, match="unsupported: no keyword is_causal, past_key, past_value"):
        protocol(answers).measure(Cell(CELL.target, decode))
    assert answers.jobs == []
