"""A session over functions of a test module, in this process: the outcomes that a run would have."""

from __future__ import annotations

from typing import Any

from attention_conformance.bench.processes import Processes
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.progress import Progress
from attention_conformance.bench.timing.protocol import Protocol
from attention_conformance.bench.timing.session import Session
from attention_conformance.bench.validity.outcomes import Cell, Outcome
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import describe
from attention_conformance.impls.contract import Implementation

#: Short: one process run, at least five batches.
QUICK = Plan(seconds=0.01, process_runs=1, limit=60.0)


def cell(function: Any, workload: str, **fields: Any) -> Cell:
    """A workload on a function that is importable by its module and name."""
    implementation = Implementation(function.__name__, f"{function.__module__}:{function.__name__}", **fields)
    return Cell(Target(implementation, "cpu", "float32"), parse(workload))


def outcomes(*cells: Cell, plan: Plan = QUICK, in_process: bool = True) -> dict[Cell, Outcome]:
    """The outcomes of the cells."""
    processes = Processes(1, in_process)
    features = {one.target.implementation: describe(one.target.implementation).keywords for one in cells}
    session = Session(cells, Protocol(processes, plan, features.__getitem__), processes, Progress(None))
    session.run()
    return session.outcomes


def outcome(function: Any, workload: str, plan: Plan = QUICK, **fields: Any) -> Outcome:
    """The outcome of one cell."""
    (found,) = outcomes(cell(function, workload, **fields), plan=plan).values()
    return found
