"""Failure messages: clause, worst element, where the wrong elements lie, and the command that runs only this again.

Only text is made here; nothing is decided.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.compare import Comparison
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.spec.clauses import clauses

PLURAL = {"batch": "batches"}

#: Most characters of an array that is written out.
LISTED_WIDTH = 40

#: Runs of indices that are listed before the list is cut.
LISTED_RUNS = 6


def failure_message(result: Result, case: AnyCase, details: Sequence[str]) -> str:
    """The whole message of a failed case: what is broken, the details, and the rerun line.

    Parameters
    ----------
    result
        Result of the case.
    case
        The case.
    details
        Lines between the clause and the rerun line.

    Returns
    -------
    str
        Several lines.
    """
    kind = result.failure.value if result.failure else ""
    lines = [f"{result.implementation} on {result.device} in {result.dtype}, case {case.name}: wrong by {kind}"]
    lines += clause_lines(result.broken)
    lines.append(f"The case: {case.why}")
    if case.fitted:
        lines.append("Sizes:    the smallest inside the implementation's envelope, not those that the text names")
    lines.append(f"Inputs:   {inputs_line(case, result.dtype)}")
    lines += details
    lines.append(f"Rerun:    {rerun(result, f'--case {result.case}')}")
    return "\n".join(lines)


def clause_lines(broken: str | None) -> list[str]:
    """The broken clause in full, on one line; no line if it is unknown.

    Parameters
    ----------
    broken
        The id of a clause.

    Returns
    -------
    list[str]
        One line or none.
    """
    if broken not in clauses():
        return []
    clause = clauses()[broken]
    return [f"{clause.id} · {clause.title} ({clause.level.value}): {clause.sentence}"]


def with_lines(message: str, lines: Sequence[str]) -> str:
    """A failure message with more lines, before the one that says how to run it again.

    Parameters
    ----------
    message
        Message as ``failure_message`` makes it.
    lines
        Lines to add.

    Returns
    -------
    str
        The longer message.
    """
    head, separator, rerun_line = message.rpartition("\nRerun: ")
    return "\n".join([head, *lines]) + separator + rerun_line if lines else message


def rerun(result: Result, what: str) -> str:
    """The command that judges the implementation of a result again, with the options of ``what``.

    Parameters
    ----------
    result
        Result of the case.
    what
        Options such as ``--case plain``.

    Returns
    -------
    str
        One line.
    """
    target = f"{shlex.quote(result.implementation)} --device {result.device} --dtype {result.dtype}"
    return f"attention-conformance check {target} {what}"


def inputs_line(case: AnyCase, dtype: str) -> str:
    """Shapes of the arguments and the options, in one line.

    Parameters
    ----------
    case
        The case.
    dtype
        Dtype of the inputs.

    Returns
    -------
    str
        One line.
    """
    inputs = case.inputs(dtype)
    parts = [f"{name} {array.shape}" for name, array in inputs.arrays.items()]
    for name, value in inputs.keywords.items():
        if isinstance(value, np.ndarray) and (
            value.size not in range(1, 5) or len(repr(value.tolist())) > LISTED_WIDTH
        ):
            parts.append(f"{name} {value.shape}")
        else:
            parts.append(f"{name}={value.tolist() if isinstance(value, np.ndarray) else value!r}")
    if case.memory != "contiguous":
        parts.append(f"memory: {case.memory}")
    return ", ".join(parts)


def comparison_lines(comparison: Comparison, axes: Sequence[str]) -> list[str]:
    """The worst element and where the wrong ones are; ``axes`` are the names of the result's axes.

    Parameters
    ----------
    comparison
        Comparison of one result that is wrong.
    axes
        The names of the result's axes.

    Returns
    -------
    list[str]
        Lines of the message.
    """
    c = comparison
    index = ", ".join(map(str, c.index))
    error = abs(c.got - c.expected)
    lines = [
        f"Worst:    {c.name}[{index}] expected {c.expected:.9g}, got {c.got:.9g}:"
        f" error {error:.3g}, bound {c.bound:.3g} ({share_text(c.share)} the bound)",
        f"Wrong:    {c.wrong} of {c.total} {'checked ' if c.whole else ''}elements of {c.name}",
    ]
    if 0 < c.wrong < c.total:
        places = zip(axes, c.where, c.whole or c.outside.shape, strict=True)
        lines[-1] += ": " + ", ".join(place(*each) for each in places)
    return lines


def place(axis: str, indices: Sequence[int], length: int) -> str:
    """Place on an axis: its sorted indices in words, as "every head", "rows 1–4 of 7", "every key but 3".

    Parameters
    ----------
    axis
        Name of the axis, such as "row".
    indices
        Sorted, from 0.
    length
        Length of the axis.

    Returns
    -------
    str
        A few words.
    """
    if len(indices) == length:
        return f"every {axis}" if length > 1 else f"{axis} 0"
    if len(indices) == length - 1 > 1:
        missing = next((at for at, index in enumerate(indices) if at != index), length - 1)
        return f"every {axis} but {missing}"
    name = axis if len(indices) == 1 else PLURAL.get(axis, f"{axis}s")
    return f"{name} {runs(indices)} of {length}"


def share_text(share: float) -> str:
    """A share of the bound as a factor: "0.31 of", "4.2e+05 times".

    Parameters
    ----------
    share
        Error ÷ bound.

    Returns
    -------
    str
        A factor and its preposition; "beyond" for an infinite share.
    """
    if np.isinf(share):
        return "beyond"
    return f"{share:.2g} of" if share <= 1 else f"{share:.3g} times"


def runs(indices: Sequence[int]) -> str:
    """Sorted indices with runs joined: 0, 2–5, 9.

    Parameters
    ----------
    indices
        Sorted.

    Returns
    -------
    str
        The indices as text, such as "0, 2–5, 9".
    """
    found: list[list[int]] = []
    for index in indices:
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    texts = [f"{a}" if a == b else f"{a}–{b}" for a, b in found]
    return ", ".join(texts[:LISTED_RUNS]) + (", …" if len(texts) > LISTED_RUNS else "")


class FailureText:
    """Text of a failure as pytest shows it: the whole message once, and its first words in the list of failures.

    The message's first line, after its last colon, says what went wrong; its second begins with the clause, if one is
    broken.  Pytest takes the list's text from ``reprcrash.message`` and, where ``CI`` is set or with ``-vv``, prints
    all of it, so that a CI job would show every message twice.  JUnit files take their short message from there, too.
    """

    def __init__(self, message: str) -> None:
        self.message = message
        first, *others = message.split("\n", 2)
        clause = re.match(r"[A-Z]+-\d+(?= )", others[0]) if others else None
        kind = first.rpartition(": ")[2]
        self.reprcrash = SimpleNamespace(message=f"{kind}, {clause[0]}" if clause else kind)

    def __str__(self) -> str:
        return self.message

    def toterminal(self, terminal: Any) -> None:
        """Write the whole message (pytest calls this)."""
        terminal.line(self.message)
