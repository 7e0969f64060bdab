"""Terminal report: adapters, what explains failures, a table implementation × outcomes, claims, where the time went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.judging.outcomes import EXECUTED, Outcome, Result
from attention_conformance.conformance.run.run_checks import Conclusion


def print_report(
    terminal: Any,
    results: Sequence[Result],
    not_installed: Mapping[str, Sequence[str]],
    adapters: Sequence[str],
    envelopes: Sequence[str],
    diagnoses: Sequence[str],
    conclusion: Conclusion,
    seconds: float,
    path: str | None,
) -> None:
    """Print what a run ends with.

    Parameters
    ----------
    terminal
        The reporter of pytest.
    not_installed
        Missing packages by implementation.
    adapters, envelopes, diagnoses
        What was found out about adapters, which calls are taken, and what explains the failures, one line each.
    seconds
        How long the run took.
    path
        The result file, if one was written.
    """
    for title, lines in (("adapter", adapters), ("envelope", envelopes), ("diagnosis", diagnoses)):
        if lines:
            terminal.section(title)
            terminal.line("\n".join(lines))
    terminal.section("conformance")
    for line in conclusion.little:
        terminal.line(line, yellow=True)
    terminal.line(summary(results, not_installed))
    for line in (*conclusion.claims, *conclusion.hints, *conclusion.side_effects):
        terminal.line(line)
    if results:
        terminal.line(time_lines(results, seconds))
    if path:
        terminal.line(f"results: {path}")
    for line in conclusion.failures:
        terminal.line(f"FAILED: {line}", red=True)
    if not executed(results):
        terminal.line("FAILED: nothing was executed, so nothing is known", red=True)


def summary(results: Sequence[Result], not_installed: Mapping[str, Sequence[str]]) -> str:
    """The table of a run, one row per implementation and device, and below it what is not installed."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.implementation, result.device].append(result)
    shown = [o for o in Outcome if o is not Outcome.NOT_APPLICABLE or any(r.outcome is o for r in results)]
    rows = [_row(*key, group, shown) for key, group in groups.items()]
    headers = ("implementation", "device", *(o.value.replace("-", " ") for o in shown), "worst share", "meets")
    by_packages: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, packages in not_installed.items():
        by_packages[tuple(packages)].append(name)
    missing = [f"not installed: {', '.join(key)} ({', '.join(names)})" for key, names in by_packages.items()]
    table = tabulate(
        rows,
        headers,
        tablefmt="simple",
        disable_numparse=True,
        colalign=("left", "left", *["right"] * (len(shown) + 1), "left"),
    )
    return "\n".join([table, *missing])


def _row(implementation: str, device: str, results: Sequence[Result], shown: Sequence[Outcome]) -> tuple[str, ...]:
    counts = Counter(result.outcome for result in results)
    shares = [r.share for r in results if r.share is not None and r.outcome is Outcome.PASSED]
    worst = f"{max(shares):.2f}" if shares else "–"
    numbers = (str(counts[outcome]) for outcome in shown)
    return (implementation, device, *numbers, worst, meets_text(results))


def meets_text(results: Iterable[Result]) -> str:
    """The strictest profile that every value result of a dtype meets, as "float16 fused, …"."""
    by_dtype: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.outcome is Outcome.PASSED and result.share is not None:
            by_dtype[result.dtype].append(result)
    texts = []
    for dtype, group in by_dtype.items():
        met = [p.value for p in bounds.profiles(dtype) if all(p.value in r.meets for r in group)]
        texts.append(f"{dtype} {met[0] if met else 'none'}")
    return ", ".join(texts)


def executed(results: Iterable[Result]) -> int:
    """How many results come from an implementation that really ran."""
    return sum(result.outcome in EXECUTED for result in results)


def time_lines(results: Sequence[Result], seconds: float) -> str:
    """Where the time went: inside the implementations' calls, and their preparation."""
    run = sum(r.run_seconds for r in results)
    prepare = sum(r.prepare_seconds for r in results)
    return f"{len(results)} results in {seconds:.0f} s: {prepare:.0f} s preparing, {run:.0f} s in first calls"
