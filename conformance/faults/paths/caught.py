"""Proof for faults on paths: the cases that catch one, plugged in as a user's function is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from attention_conformance.conformance.cases import Case
from attention_conformance.conformance.cases.kernels import call_of
from attention_conformance.conformance.faults.kill_matrix import LEAST, implementation
from attention_conformance.conformance.faults.models.on_path import Mistake
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import verdict
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.judging.run_case import blank_of, run_case
from attention_conformance.conformance.run.targets import Target
from attention_conformance.impls.process.pool import Pool


def caught_on_path(fault: Fault, cases: Iterable[Case], pool: Pool, enough: int = LEAST) -> tuple[str, ...]:
    """Names of the smallest cases that catch a fault; it stops where they are enough.

    Parameters
    ----------
    fault
        One of PATH_FAULTS.
    cases
        Those that do not take its path, or lack an option without which it changes nothing, are not run: it is
        correct attention there.
    pool
        Processes to call it in.
    enough
        How many names are asked for.
    """
    make = cast("type[Mistake]", fault.make)
    plugged, caught = implementation(fault), []
    for case in sorted(cases, key=lambda case: case.size):
        call = call_of(case)
        if not make.path.taken(call) or make.shows_with() - call.options:
            continue
        target = Target(plugged, "cpu", case.dtypes[0])
        reply = run_case(target, case, pool, timeout=None)
        if verdict(reply, case, blank_of(target, case)).outcome is Outcome.FAILED:
            caught.append(case.name)
            if len(caught) == enough:
                break
    return tuple(caught)
