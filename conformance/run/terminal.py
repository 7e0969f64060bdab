"""Terminal report: failures by cause, adapters, a table implementation × outcomes, claims, where the time went.

The last lines are those that a reader needs first: the causes, the clauses that they break, and what to run.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tabulate import tabulate

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import asked_cases
from attention_conformance.conformance.judging.claims import COLUMNS
from attention_conformance.conformance.judging.outcomes import EXECUTED, Outcome, Result
from attention_conformance.conformance.run.causes import FIRST, Cause, Told, causes, ending, in_full, wrapped
from attention_conformance.conformance.run.progress import SPENT, Spent, spent_rows
from attention_conformance.conformance.run.run_checks import Conclusion

#: What pytest lists at the end unless ``-r`` says otherwise.
DEFAULT_LISTS = "fE"

#: Seconds of the shortest part of a run that is reported.
SHORTEST = 0.5


@contextmanager
def told_by_cause(terminal: Any, told: Mapping[str, Told]) -> Iterator[None]:
    """Hide these failures, by node id, from pytest's own lists while it prints them; ``print_report`` shows them.

    With ``-v``, ``--tb=no`` and ``--tb=line`` nothing is hidden.
    """
    failed = terminal.stats.get("failed", [])
    if _by_cause(terminal):
        terminal.stats["failed"] = [report for report in failed if report.nodeid not in told]
    try:
        yield
    finally:
        if failed:
            terminal.stats["failed"] = failed


def _by_cause(terminal: Any) -> bool:
    return terminal.verbosity < 1 and terminal.config.option.tbstyle not in ("no", "line")


def print_report(
    terminal: Any,
    results: Sequence[Result],
    told: Mapping[str, Told],
    not_installed: Mapping[str, Sequence[str]],
    adapters: Sequence[str],
    envelopes: Sequence[str],
    diagnoses: Sequence[str],
    conclusion: Conclusion,
    spent: Mapping[str, Spent],
    seconds: float,
    path: str | None,
    besides: Mapping[str, float] | None = None,
    left_out: str = "",
) -> None:
    """Print the end of a run.

    Parameters
    ----------
    terminal
        The reporter of pytest.
    told
        The failures with their explanations, by node id; none if a run was cut off.
    not_installed
        Missing packages by implementation.
    adapters, envelopes, diagnoses
        Lines about the adapters, about which calls are taken, and about what explains the failures.
        An adapter that explains failures is reported with them, at the end.
    spent
        Seconds that the results took, by implementation.
    seconds
        Seconds that the run took.
    path
        The result file, if one was written.
    besides
        Seconds of work other than cases, such as imports and probes, by its name.
    left_out
        Sentence on what a quick run left out.
    """
    width = terminal.config.get_terminal_writer().fullwidth if terminal.isatty else None
    found = causes(told.values())
    if told and _by_cause(terminal):
        _print_failures(terminal, found, told, width)
    told_last = "\n".join(ending(found))
    for title, lines in (("adapter", [each for each in adapters if each not in told_last]), ("envelope", envelopes)):
        if lines:
            terminal.section(title)
            terminal.line(_fitted("\n".join(lines), width))
            if title == "adapter" and found:
                terminal.line(f"  First:    {FIRST}")
    terminal.section("conformance")
    for line in conclusion.little:
        terminal.line(line, yellow=True)
    terminal.line(summary(results, not_installed, width or COLUMNS))
    for line in (*conclusion.claims, *conclusion.hints, *conclusion.side_effects):
        terminal.line(line)
    if results:
        terminal.line(time_lines(results, seconds, spent, besides))
    if left_out:
        terminal.line(_fitted(left_out, width), yellow=True)
    if path:
        terminal.line(f"results: {path}")
    for line in conclusion.failures:
        terminal.line(f"FAILED: {line}", red=True)
    if not executed(results):
        terminal.line("FAILED: nothing was executed, so nothing is known", red=True)
    said = {f"{cause.name}: {one.explanation}" for cause in found for one in cause.failures}
    lines = [*ending(found), *(line for line in diagnoses if line not in said)]
    if lines:
        terminal.section("diagnosis")
        terminal.line(_fitted("\n".join(lines), width))


def _print_failures(terminal: Any, found: Sequence[Cause], told: Mapping[str, Told], width: int | None) -> None:
    """Print one message for each cause, and what pytest captured of the cases that are shown in full."""
    nodes = {id(one): node for node, one in told.items()}
    reports = {report.nodeid: report for report in terminal.stats.get("failed", [])}
    terminal.section("FAILURES")
    shown = in_full(found)
    for cause in shown:
        terminal.section(cause.title, sep="_", red=True, bold=True)
        for one in cause.in_full:
            terminal.line(_fitted(one.message, width))
            for name, content in reports[nodes[id(one)]].sections if nodes[id(one)] in reports else ():
                terminal.section(name, sep="-")
                terminal.line(content.rstrip())
            if one is not cause.in_full[-1]:
                terminal.line("")
        for line in cause.others(width):
            terminal.line(line)
    if len(shown) < len(found):
        left = sum(len(cause.failures) for cause in found if cause not in shown)
        terminal.line(f"{left} more failures by {len(found) - len(shown)} more causes; -v shows all messages")
    if set("faA") & set(terminal.config.option.reportchars) and terminal.config.option.reportchars != DEFAULT_LISTS:
        for node in (node for node in told if node in reports):
            crash = getattr(reports[node].longrepr, "reprcrash", None)
            terminal.line(f"FAILED {node} - {crash.message}" if crash else f"FAILED {node}")


def _fitted(text: str, width: int | None) -> str:
    """A text wrapped to a terminal's width; whole lines without a terminal, so that a search finds them."""
    return wrapped(text, width) if width else text


def summary(results: Sequence[Result], not_installed: Mapping[str, Sequence[str]], width: int = COLUMNS) -> str:
    """The table of a run, one row per implementation and device, and below it what is not installed.

    Columns with nothing but 0 are left out if the table is wider than ``width``.
    """
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.implementation, result.device].append(result)
    shown = [o for o in Outcome if o is not Outcome.NOT_APPLICABLE or any(r.outcome is o for r in results)]
    table = _table(groups, shown)
    if max(map(len, table.splitlines())) > width:
        there = {Outcome.PASSED, Outcome.FAILED, *(result.outcome for result in results)}
        table = _table(groups, [outcome for outcome in shown if outcome in there])
    by_packages: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, packages in not_installed.items():
        by_packages[tuple(packages)].append(name)
    missing = [f"not installed: {', '.join(key)} ({', '.join(names)})" for key, names in by_packages.items()]
    return "\n".join([table, *missing])


def _table(groups: Mapping[tuple[str, str], Sequence[Result]], shown: Sequence[Outcome]) -> str:
    headers = ("implementation", "device", *(o.value.replace("-", " ") for o in shown), "worst share", "meets")
    rows = [headers, *(_row(*key, group, shown) for key, group in groups.items())]
    rule = tuple("-" * max(len(row[i]) for row in rows) for i in range(len(headers)))
    sides = ("left", "left", *["right"] * (len(shown) + 1), "left")
    return tabulate([headers, rule, *rows[1:]], tablefmt="plain", disable_numparse=True, colalign=sides)


def _row(implementation: str, device: str, results: Sequence[Result], shown: Sequence[Outcome]) -> tuple[str, ...]:
    counts = Counter(result.outcome for result in results)
    shares = [r.share for r in results if r.share is not None and r.outcome is Outcome.PASSED]
    worst = f"{max(shares):.2f}" if shares else "–"
    numbers = (str(counts[outcome]) for outcome in shown)
    return (implementation, device, *numbers, worst, meets_text(results))


@functools.cache
def _accuracy() -> frozenset[str]:
    """The clauses of accuracy, one of each operator."""
    return frozenset(case.blame.accuracy for case in asked_cases().values())


def meets_text(results: Iterable[Result]) -> str:
    """The strictest profile that every value result of a dtype meets, as "float16 fused, …".

    Results that are wrong by accuracy alone count too; those of another mistake say nothing about where is rounded.
    """
    by_dtype: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        imprecise = result.outcome is Outcome.FAILED and result.broken in _accuracy()
        if result.share is not None and (result.outcome is Outcome.PASSED or imprecise):
            by_dtype[result.dtype].append(result)
    texts = []
    for dtype, group in by_dtype.items():
        met = [p.value for p in bounds.profiles(dtype) if all(p.value in r.meets for r in group)]
        texts.append(f"{dtype} {met[0] if met else 'none'}")
    return ", ".join(texts)


def executed(results: Iterable[Result]) -> int:
    """Number of results from an implementation that really ran."""
    return sum(result.outcome in EXECUTED for result in results)


def time_lines(
    results: Sequence[Result], seconds: float, spent: Mapping[str, Spent], besides: Mapping[str, float] | None = None
) -> str:
    """Lines on where all of the time went, and the processor time of each implementation.

    Parameters
    ----------
    seconds
        Seconds that the run took.
    spent
        Seconds that the results took, by implementation.
    besides
        Seconds of work other than cases, by its name.

    Returns
    -------
    str
        One line, in which parts after the first two are left out if below half a second; for several implementations,
        which are judged at the same time, also a table.
    """
    run = sum(r.run_seconds for r in results)
    prepare = sum(r.prepare_seconds for r in results)
    calls, references = (sum(getattr(s, part) for s in spent.values()) for part in ("calls", "references"))
    parts = {
        "around them": max(calls - run - prepare, 0.0),
        "references and bounds": references,
        "judging": max(sum(s.seconds for s in spent.values()) - calls - references, 0.0),
        **(besides or {}),
    }
    parts["collecting and reporting"] = seconds - run - prepare - sum(parts.values())
    more = "".join(f", {taken:.0f} s {name}" for name, taken in parts.items() if taken >= SHORTEST)
    line = f"{len(results)} results in {seconds:.0f} s: {prepare:.0f} s preparing, {run:.0f} s in first calls{more}"
    if len(spent) < 2:  # the line says it all
        return line
    table = tabulate(
        spent_rows(spent), SPENT, tablefmt="plain", disable_numparse=True, colalign=("left", *["right"] * 4)
    )
    return f"{line}\n{table}"
