"""The words of a property's failure: what was to hold, the shrunk problem, where it broke, and what to paste.

Only makes text; nothing is decided here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from conformance.bounds import UNIT_ROUNDOFF
from conformance.cases import Case
from conformance.cases.base import reference_of
from conformance.clauses import clauses
from conformance.fuzz.trial import Answer
from conformance.judging.compare import compare
from conformance.judging.message import inputs_line, share_text
from conformance.outcomes import Result
from conformance.problem import Problem


def failure_message(
    result: Result, sentence: str, case: Case, calls: Sequence[Answer], details: Sequence[str], rerun: str, paste: str
) -> str:
    """The whole message; ``case`` is the shrunk problem's, ``paste`` its line or "" if it does not fail by itself."""
    kind = result.failure.value if result.failure else ""
    name = result.case.partition("/")[2]
    lines = [f"{result.implementation} on {result.device} in {result.dtype}, property {name}: wrong by {kind}"]
    if result.broken in clauses():
        clause = clauses()[result.broken]
        lines.append(f"{clause.id} · {clause.title} ({clause.level.value}): {clause.sentence}")
    lines.append(f"Property: {sentence}")
    lines.append(f"Problem:  {case.name}: {inputs_line(case, result.dtype)}")
    heads = ["Calls:   ", *["         "] * (len(calls) - 1)]
    lines += [f"{head} {against_reference(answer)}" for head, answer in zip(heads, calls, strict=True)]
    lines += details
    lines.append(f"Rerun:    {rerun}")
    if paste:
        lines += ["Paste:    into a file of conformance/cases, as a case that fails in the same implementation:", paste]
    else:
        lines.append("Paste:    nothing: the problem as drawn is computed rightly, and only the calls together show it")
    return "\n".join(lines)


def against_reference(answer: Answer) -> str:
    """A call, and how far it is from its own reference: "its keys reversed: 0.2 of the bound from the reference"."""
    if not answer.results:
        return f"{answer.what}: {answer.reply.status}"
    share = max(
        compare(name, each.value, each.exact, each.bound, _stored(name, answer)).share
        for name, each in answer.results.items()
    )
    return f"{answer.what}: {share_text(share)} the bound away from its reference"


def _stored(name: str, answer: Answer) -> str:
    """A dtype that holds the result, whose range decides what may overflow."""
    dtype = str(answer.reply.results[name].dtype)
    return dtype if dtype in UNIT_ROUNDOFF else "float64"


def rerun_line(result: Result, examples: int, seed: int) -> str:
    """The command that draws the same examples for this property and target again."""
    name = result.case.partition("/")[2]
    return (
        f"pytest conformance --impl {shlex.quote(result.implementation)} --device {result.device}"
        f" --dtype {result.dtype} -k 'test_fuzz and {name}' --fuzz {examples} --fuzz-seed {seed}"
    )


def paste_line(problem: Problem, clause: str, dtype: str) -> str:
    """The line that makes the problem a named case, in the one dtype that it failed in."""
    source = problem.source(clause, "Found by a property test.").removesuffix(")")
    zeros = "" if reference_of(problem.case().make_inputs(dtype)).output.any() else ", zeros=True"
    return f"{source}, dtypes={(dtype,)!r}{zeros})"
