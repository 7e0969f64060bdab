"""Verdict of the gate: the record that ``--json`` writes, and its text."""

from __future__ import annotations

from typing import Literal

import msgspec

Decision = Literal["accepted", "rejected", "cannot tell"]

#: Exit status of each decision.
STATUS: dict[str, int] = {"accepted": 0, "rejected": 1, "cannot tell": 3}


class Reason(msgspec.Struct, frozen=True):
    """One reason: its kind (reasons of GATE.md), a sentence, and the problem and the clause where there is one."""

    kind: str
    text: str
    problem: str = ""
    clause: str = ""


class Asked(msgspec.Struct, frozen=True):
    """Requirements of the task."""

    operator: str
    require: list[str]
    #: (B, Hq, Hkv, Sq, Sk, D, Dv) each; none for every size.
    shapes: list[list[int]]
    dtypes: list[str]
    device: str
    own_work: bool
    #: The problem's file of KernelBench's form, and the meaning of its inputs; "" without one.
    problem: str = ""


class Timed(msgspec.Struct, frozen=True):
    """Seconds of calls, each on new inputs and checked."""

    shape: list[int]
    dtype: str
    #: Seconds by the worker's clock, which was bound before the candidate was loaded.
    seconds: list[float]
    #: Seconds of the whole job, by the parent's clock, and of a job that calls nothing.
    parent_seconds: list[float]
    overhead_seconds: float
    median_seconds: float
    #: Operations per second ÷ those of the best matrix product; None where none was measured.
    share_of_peak: float | None


class Verdict(msgspec.Struct, frozen=True, tag_field="kind", tag="gate verdict"):
    """The verdict, as the file has it."""

    verdict: Decision
    candidate: str
    task: Asked
    #: Seed that every input is drawn from: the same seed gives the same problems.
    seed: int
    reasons: list[Reason]
    #: Numbers of problems that were run, and of right answers.
    asked: int
    right: int
    #: Calls of libraries' own attention by name, counted in the calls that were checked for them.
    library_calls: dict[str, int]
    #: Notes that do not decide: the function's own claims, which are not believed, and programs that it started.
    notes: list[str]
    timing: list[Timed]
    #: Mechanism that keeps the worker from the network.
    network: str
    seconds: float
    budget_seconds: float
    format: Literal["attention-conformance gate 1"] = "attention-conformance gate 1"


def text(verdict: Verdict) -> str:
    """The verdict as the terminal shows it: the decision first, then the reasons."""
    lines = [f"{verdict.verdict}: {verdict.candidate}"]
    lines += [f"  task {verdict.task.problem}"] * bool(verdict.task.problem)
    lines += [f"  {each.kind}: {each.text}" for each in verdict.reasons]
    lines.append(f"  {verdict.right} of {verdict.asked} problems right, seed {verdict.seed}")
    for each in verdict.timing:
        share = "" if each.share_of_peak is None else f", {each.share_of_peak:.0%} of the best matrix product"
        sizes = ",".join(map(str, each.shape))
        lines.append(f"  {sizes} {each.dtype}: {1e3 * each.median_seconds:.3g} ms a call{share}")
    lines += [f"  calls {name}" for name in verdict.library_calls]
    lines += [f"  note: {note}" for note in verdict.notes]
    return "\n".join(lines)
