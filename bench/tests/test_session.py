"""A session: which cells are measured together, in which order, and how later process runs build on earlier ones."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.memory import predict
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.tests.measured import QUICK, cell, outcomes
from attention_conformance.bench.timing.budget import USABLE
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.progress import Progress
from attention_conformance.bench.timing.protocol import Live, Protocol
from attention_conformance.bench.timing.session import Rounds, Session
from attention_conformance.bench.validity.checks import Invalid, Unstable
from attention_conformance.bench.validity.outcomes import (
    INVALID,
    SKIPPED,
    TIMED,
    UNSTABLE,
    Cell,
    Outcome,
    ProcessRun,
)
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import limits

pytestmark = pytest.mark.slow

SHORT, LONG = "prefill-b1h2d8s16", "prefill-b1h2d8s32"


def attention(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def again(q: Any, k: Any, v: Any) -> np.ndarray:
    """The same under another name."""
    return attention(q, k, v)


def wrong(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention times 1.01."""
    return attention(q, k, v) * np.float32(1.01)


#: Calls of the function below.
CALLS: list[int] = []


def wrong_in_time(q: Any, k: Any, v: Any) -> np.ndarray:
    """Right for the first process run's dozens of calls, and wrong later."""
    CALLS.append(1)
    return attention(q, k, v) * (1 if len(CALLS) < 100 else np.float32(1.01))


def dies(q: Any, k: Any, v: Any) -> np.ndarray:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGABRT)
    return attention(q, k, v)


class Checkpoint:
    """A stand-in that keeps the lines that it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []

    def add(self, cell: str, outcome: Outcome, process_run: int) -> None:
        """Record a line."""
        self.lines.append((cell, outcome.kind, process_run))


def planned(cells: Sequence[Cell], checkpoint: Any = None, plan: Plan = QUICK, **known: Any) -> Session:
    """A session in this process."""
    processes = Processes(1, in_process=True)
    protocol = Protocol(processes, plan, lambda implementation: frozenset())
    return Session(cells, protocol, processes, Progress(None), checkpoint, **known)


def test_process_run_after_process_run_covers_all_workloads() -> None:
    """Every cell is measured once before any is measured again; a workload's cells are measured together."""
    kept = Checkpoint()
    cells = [cell(one, name) for one in (attention, again) for name in (LONG, SHORT)]
    planned(cells, kept, Plan(seconds=0.01, process_runs=2, limit=60)).run()
    assert [process_run for _, _, process_run in kept.lines] == [0] * 4 + [1] * 4
    assert [name.endswith(SHORT) for name, _, _ in kept.lines] == [True, True, False, False] * 2
    assert {kind for _, kind, _ in kept.lines} == {TIMED}


def test_a_cell_that_is_invalid_in_a_later_process_run_has_no_timing() -> None:
    """It gets no further process run, and the others are not disturbed."""
    CALLS.clear()
    plan = Plan(seconds=0.05, process_runs=4, limit=60, noise=0, most_calls=200)
    wrong, right = outcomes(cell(wrong_in_time, SHORT), cell(attention, SHORT), plan=plan).values()
    assert (wrong.kind, wrong.clause) == (INVALID, "SDPA-25")
    assert len(wrong.process_runs) < 4
    assert (right.kind, len(right.process_runs)) == (TIMED, 4)


def test_cells_of_a_process_that_dies_when_one_is_opened_are_opened_again() -> None:
    """Cells before and after it are opened again, though opened beside another process; only it is invalid."""
    shared = [cell(one, SHORT, worker="shared") for one in (attention, dies, again)]
    found = outcomes(*shared, cell(attention, LONG, worker="alone"), cell(wrong_in_time, SHORT), in_process=False)
    kinds = [found[one].kind for one in shared]
    assert kinds == [TIMED, INVALID, TIMED]
    assert found[shared[1]].clause == "crashed"
    assert [len(found[one].process_runs) for one in shared] == [1, 0, 1]


def test_a_cell_that_is_opened_again_is_unstable_still() -> None:
    """A result that was wrong once before its process died counts in this process run, as does its worst share."""
    shared = [cell(attention, SHORT, worker="shared"), cell(again, SHORT, worker="shared")]
    using = planned(shared).protocol
    ended: dict[Cell, Outcome] = {}
    rounds = Rounds(using, dict.fromkeys(shared, Outcome()), random.Random(1), ended.__setitem__)  # noqa: S311
    really, opened = using.open, list[Cell]()

    def once(cell: Cell, process_run: int = 0) -> Live:
        live = really(cell, process_run)
        if cell not in opened:
            live.unstable, live.share = Unstable("SDPA-25", "1 of 6 calls", 0.5, True), 0.75
            opened.append(cell)
        return live

    def dies(live: Live) -> None:
        using.batch = batches  # type: ignore[method-assign]
        raise Invalid("crashed", "it is gone")

    batches = using.batch
    using.open, using.batch = once, dies  # type: ignore[method-assign]
    rounds.run(shared)
    assert sorted(one.kind for one in ended.values()) == [INVALID, UNSTABLE]
    (left,) = (one for one in ended.values() if one.kind == UNSTABLE)
    assert left.share >= 0.75


def test_cells_are_opened_side_by_side_and_what_that_raises_is_theirs() -> None:
    """Each is opened once, before the first batch; one that is wrong at first is invalid, and the others are timed."""
    cells = [cell(attention, SHORT), cell(wrong, SHORT), cell(again, SHORT)]
    using = planned(cells).protocol
    opened: list[str] = []
    really = using.open

    def recorded(cell: Cell, process_run: int = 0) -> Live:
        opened.append(cell.target.implementation.name)
        return really(cell, process_run)

    def side_by_side(tasks: Sequence[tuple[Implementation, Callable[[], None]]]) -> None:
        for _, task in tasks:
            task()

    using.open = recorded  # type: ignore[method-assign]
    ended: dict[Cell, Outcome] = {}
    rounds = Rounds(using, dict.fromkeys(cells, Outcome()), random.Random(1), ended.__setitem__, side_by_side)  # noqa: S311
    rounds.run(cells)
    assert sorted(opened) == ["again", "attention", "wrong"]
    assert {one.target.implementation.name: ended[one].kind for one in cells} == {
        "attention": TIMED,
        "wrong": INVALID,
        "again": TIMED,
    }


def test_what_was_measured_before_is_not_measured_again() -> None:
    """A resumed session makes the missing process runs, and keeps the others unchanged."""
    done, begun, ended, new = (cell(one, name) for one in (attention, again) for name in (SHORT, LONG))
    old = ProcessRun(((0.5,) * 5,), 0.1)
    known = {
        done: Outcome(process_runs=(old, old)),
        begun: Outcome(process_runs=(old,)),
        ended: Outcome(SKIPPED, reason="out of memory"),
    }
    kept = Checkpoint()
    resumed = planned([done, begun, ended, new], kept, Plan(seconds=0.01, process_runs=2, limit=60), outcomes=known)
    resumed.run()
    assert kept.lines == [(new.id, TIMED, 0), (begun.id, TIMED, 1), (new.id, TIMED, 1)]
    assert resumed.outcomes[begun].process_runs[0] == old
    assert resumed.outcomes[done] == Outcome(process_runs=(old, old))


def test_cells_that_do_not_fit_together_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part fits; a cell that does not fit is not admitted."""
    cells = [cell(attention, "prefill-b1h8d64s512") for _ in range(5)]
    w = cells[0].workload
    call = predict.quadratic_bytes(w, "float32")
    each, here = predict.there_bytes(w, "float32", "cpu", call), predict.here_bytes(w, "float32")
    room = (here + 2.5 * each) / USABLE
    monkeypatch.setattr(limits, "available", lambda: int(room))
    assert [len(part) for part in planned(cells)._parts(cells)] == [2, 2, 1]
    monkeypatch.setattr(limits, "available", lambda: 2**50)
    assert [len(part) for part in planned(cells)._parts(cells)] == [5]


def test_batches_are_taken_in_another_order_in_every_pass() -> None:
    """Four cells need several batches; the same seed gives the same orders."""
    cells = [
        Cell(Target(Implementation(name, f"{__name__}:attention"), "cpu", "float32"), cell(attention, SHORT).workload)
        for name in "abcd"
    ]

    def orders() -> list[str]:
        using = planned(cells, plan=Plan(seconds=60, process_runs=1, noise=0, most_calls=2 * 5 * 5, limit=60)).protocol
        taken: list[str] = []
        batch = using.batch

        def recorded(live: Any) -> None:
            taken.append(live.cell.target.implementation.name)
            batch(live)

        using.batch = recorded  # type: ignore[method-assign]
        Rounds(using, dict.fromkeys(cells, Outcome()), random.Random(1), lambda cell, outcome: None).run(cells)  # noqa: S311
        return ["".join(taken[start : start + 4]) for start in range(0, 16, 4)]

    first = orders()
    assert all(sorted(order) == list("abcd") for order in first)
    assert len(set(first)) > 1
    assert orders() == first
