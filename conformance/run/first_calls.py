"""(SDPA-39) First calls: the first parallel call of many fresh processes, judged under deliberate load.

``--fresh N`` forks N processes of each target.  In each, one call of attention is the first thing that its library
does, on several threads and next to busy processes; the same call again is the second.  A difference is reported with
the number of elements, their places, and its size.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, rerun
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply, Request
from attention_conformance.impls.first_calls import FirstCall, FirstCalls
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.process import limits, threads
from attention_conformance.impls.process.pool import Crashed, TimedOut, Worker

CLAUSE = "SDPA-39"

#: Name of a result, instead of a case's name.
NAME = "fresh/first-call"

#: Large enough that libraries share it between threads, and its softmax has half a million numbers.
CASE: Case = sdpa_case(
    "first-call",
    CLAUSE,
    "Large enough that libraries share it between threads.",
    Shape(b=1, hq=8, hkv=8, sq=256, sk=256, d=64, dv=64),
)

#: Fewest threads that the library is given: one does not race.
THREADS = 2

#: Seconds for the calls of one process.
SECONDS = 60.0

#: A process that works until its parent is gone.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"

#: Known causes, by the framework's name in the versions.
KNOWN = {
    "torch": "pytorch#188792: MKL's vector functions choose their kernel at their first call, and where that runs on"
    " several threads one of them may get the less accurate one",
}


@dataclass(frozen=True)
class Difference:
    """Difference of one kind of first call from its process's second call, or from the exact values."""

    processes: int
    text: str


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Busy processes in the background; they end with the context, or with this process."""
    running = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]  # noqa: S603  (our own text)
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def available() -> bool:
    """Whether processes can be forked here."""
    return hasattr(os, "fork")


def judge(target: Target, processes: int, versions: Mapping[str, str], *, load: int | None = None) -> Result:
    """The result of a target's first calls; never raises for what the implementation does.

    Parameters
    ----------
    processes
        Number of first calls.
    versions
        Versions of the packages, to name a known cause.
    load
        Number of busy processes in the background; by default one per usable core.
    """
    implementation = target.implementation
    blank = Result(
        implementation.name,
        target.device,
        target.dtype,
        NAME,
        (CLAUSE,),
        Outcome.PASSED,
        profile=target.profile.value,
    )
    if implementation.operator != SDPA.name or target.device != "cpu":
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason="first calls are judged only for sdpa on the CPU")
    case = fit(CASE, implementation.envelope)
    if case.unfit:
        return replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=case.unfit)
    request = Request(target.device, case.inputs(target.dtype).arrays)
    count = max(THREADS, threads.usable_cores())
    worker = Worker(threads.environment(count), limits.default())
    try:
        with busy(threads.usable_cores() if load is None else load):
            job = "attention_conformance.impls.first_calls:first_calls"
            found: FirstCalls = worker.call(
                job, implementation, request, processes, SECONDS, timeout=SECONDS * (processes + 2)
            )
    except (Crashed, TimedOut) as error:
        return _failed(blank, case, processes, Failure.CRASHED, f"the process that forks: {error}", ())
    except Exception as error:  # any exception of the import
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"{type(error).__name__}: {error}"[:300])
    finally:
        worker.close()
    return _judged(blank, case, target, found, processes, versions)


def _judged(
    blank: Result, case: Case, target: Target, found: FirstCalls, processes: int, versions: Mapping[str, str]
) -> Result:
    refused = [kind for kind in found.kinds if kind.first.status == "unsupported"]
    if refused:
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=refused[0].first.text)
    if found.lost:
        reason = (
            f"{len(found.lost)} of {processes} first calls returned nothing: {', '.join(dict.fromkeys(found.lost))}"
        )
        return _failed(blank, case, processes, Failure.CRASHED, reason, ())
    differing = tuple(filter(None, (_difference(kind, case, target) for kind in found.kinds)))
    if not differing:
        return replace(blank, reason=f"{processes} first calls, each right and equal to the second")
    number = sum(each.processes for each in differing)
    reason = f"{number} of {processes} first calls differ ({number / processes:.2%}): {differing[0].text}"
    details = [f"Seen:     {reason}", *(f"          {each.processes} more: {each.text}" for each in differing[1:])]
    details += [f"Known:    {cause}" for package, cause in KNOWN.items() if package in versions]
    result = replace(blank, outcome=Outcome.ADVISORY, failure=Failure.VALUE, broken=CLAUSE, reason=reason)
    return replace(result, message=_message(result, case, details, processes))


def _failed(
    blank: Result, case: Case, processes: int, failure: Failure, reason: str, details: tuple[str, ...]
) -> Result:
    result = replace(blank, outcome=Outcome.FAILED, failure=failure, broken=CLAUSE, reason=reason)
    return replace(result, message=_message(result, case, [f"Seen:     {reason}", *details], processes))


def _message(result: Result, case: Case, details: list[str], processes: int) -> str:
    kind = result.failure.value if result.failure else ""
    lines = [f"{result.implementation} on {result.device} in {result.dtype}, {NAME}: wrong by {kind}"]
    lines += clause_lines(CLAUSE)
    lines += [f"Inputs:   {inputs_line(case, result.dtype)}", *details]
    lines.append(f"Rerun:    {rerun(result, f'-k test_first_calls --fresh {processes}')}")
    return "\n".join(lines)


def _difference(kind: FirstCall, case: Case, target: Target) -> Difference | None:
    """Difference of a first call, in words; None where it is right and has the bits of the second."""
    if kind.first.status != "returned" or kind.second.status != "returned":
        words = [f"the {name} {_ended(reply)}" for name, reply in (("first", kind.first), ("second", kind.second))]
        both = kind.first.status == kind.second.status and kind.first.text == kind.second.text
        return Difference(kind.processes, f"both calls: {_ended(kind.first)}" if both else ", ".join(words))
    first, second = (reply.results["output"] for reply in (kind.first, kind.second))
    if first.shape != second.shape or first.dtype != second.dtype:
        text = f"the first gives {first.dtype}{first.shape}, the second {second.dtype}{second.shape}"
        return Difference(kind.processes, text)
    exact = case.expected(target.dtype).output
    if first.shape != exact.shape:
        return Difference(kind.processes, f"both calls give {first.shape}, and not {exact.shape}")
    wrong, again = (_wrong(reply, case, target) for reply in (kind.first, kind.second))
    unequal = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    if not wrong.any() and not unequal.any():
        return None
    told = unequal if unequal.any() else wrong
    distance = np.abs(first.astype(np.float64) - (second if unequal.any() else exact))[told]
    farthest = float(np.max(distance)) if np.isfinite(distance).all() else float("nan")
    after = "wrong too" if again.any() else "right"
    text = f"{int(told.sum())} of {told.size} elements, {_where(told)}, by up to {farthest:.2g}"
    beyond = f"; {int(wrong.sum())} beyond the bound" if wrong.any() else "; all within the bound"
    return Difference(kind.processes, f"{text}{beyond}; the second call of the same process is {after}")


def _wrong(reply: Reply, case: Case, target: Target) -> np.ndarray:
    """The elements beyond their bounds."""
    expected = case.expected(target.dtype).output
    bound = case.bound(target.dtype, target.profile).output
    got = reply.results["output"].astype(np.float64)
    return shares(got, expected, bound, target.dtype) > 1


def _ended(reply: Reply) -> str:
    return "returned" if reply.status == "returned" else f"raised {reply.text}"


def _where(told: np.ndarray) -> str:
    """Heads and rows in which elements differ, as ranges."""
    heads, rows = (_range(np.flatnonzero(told.any(axis=axes))) for axes in ((0, 2, 3), (0, 1, 3)))
    return f"heads {heads}, rows {rows}"


def _range(numbers: np.ndarray) -> str:
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == last - first + 1:
        return f"{first} to {last}" if last > first else f"{first}"
    return f"{len(numbers)} between {first} and {last}"
