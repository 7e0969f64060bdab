"""The comment at the head of a script: what it shows, what is expected, and with which versions it was seen."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping, Sequence

from conformance.cases import AnyCase
from conformance.clauses import clauses
from conformance.judging.message import inputs_line
from conformance.outcomes import Failure, Result
from conformance.script.elements import Element
from conformance.targets import Target

#: What is said of each way to fail, before the reason.
_SEEN = {
    Failure.VALUE: "wrong numbers",
    Failure.SHAPE: "a result of another shape",
    Failure.DTYPE: "a result of another dtype",
    Failure.ERROR: "an exception on a valid input",
    Failure.NO_ERROR: "an invalid input is accepted",
    Failure.MODIFIED: "an input is modified",
    Failure.UNREPEATABLE: "equal calls give unequal results",
    Failure.CRASHED: "the process dies",
    Failure.TIMEOUT: "the call does not return",
}


def head(
    result: Result, target: Target, case: AnyCase, elements: Sequence[Element], versions: Mapping[str, str]
) -> list[str]:
    """The lines of the comment; ``versions`` are those of the packages that the script uses."""
    assert result.failure is not None
    implementation = target.implementation
    summary = f" ({implementation.summary})" if implementation.summary else ""
    lines = [f"{implementation.name}{summary}, {target.dtype} on {target.device}: {_SEEN[result.failure]}.", ""]
    clause = clauses().get(result.broken or case.clauses[0])
    if clause is not None:
        lines.append(f"Clause:   {clause.id} · {clause.title}: {clause.sentence}")
    lines.append(f"Seen:     {result.reason}")
    if elements:
        worst = elements[0]
        lines.append(
            f"Worst:    {worst.result}{list(worst.index)} = {worst.got:.9g}, expected {worst.expected:.9g}"
            f" ± {worst.bound:.3g}"
        )
    lines += [f"Input:    {case.why}", f"          {inputs_line(case, target.dtype)}"]
    system = [f"Python {platform.python_version()}", f"{platform.system()} {platform.machine()}"]
    lines += [f"Versions: {', '.join([*(f'{name} {text}' for name, text in versions.items()), *system])}", ""]
    lines.append(
        f"Case {case.name} of attention-conformance, which this script does not need.  {_exit(result.failure)}"
    )
    return [commented for line in lines for commented in _comment(line)]


def _exit(failure: Failure) -> str:
    if failure is Failure.CRASHED:
        return "It dies as long as this is so, and exits with 0 once it is right."
    if failure is Failure.TIMEOUT:
        return "It runs on as long as this is so, and exits with 0 once it is right."
    return "It exits with 1 as long as this is so, and with 0 once it is right."


def _comment(line: str) -> list[str]:
    hanging = " " * 10 if line[9:10] == " " and line[:1] != " " and ": " in line[:10] else ""
    hanging = " " * 10 if line.startswith(" " * 10) else hanging
    if not line:
        return ["#"]
    return textwrap.wrap(
        line, 120, initial_indent="# ", subsequent_indent=f"# {hanging}", break_long_words=False, break_on_hyphens=False
    )
