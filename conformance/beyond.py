"""What a run says besides its cases: before them of adapters, and after them what fails it, hints, and claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance import undeclared
from conformance.adapter import Finding, check
from conformance.cases import AnyCase
from conformance.claims import claim_lines, required, shortcomings, wrapped
from conformance.outcomes import Result
from conformance.refusals import refused
from conformance.remarks import side_effect_lines
from conformance.targets import Selection, Target
from impls.process.pool import Pool


@dataclass(frozen=True)
class Adapters:
    """What was found out about plugged-in functions before they were judged."""

    #: By implementation and device.
    findings: Mapping[tuple[str, str], Finding] = field(default_factory=dict)
    hints: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The findings in words, one a line."""
        return [
            line
            for (name, device), found in self.findings.items()
            for line in wrapped(f"{name} on {device}: {found.text}")
        ]

    def as_json(self) -> dict[str, Any]:
        """What the header of the result file says of them; nothing where nothing was found."""
        plain = [{"implementation": n, "device": d, "text": f.text} for (n, d), f in self.findings.items()]
        return {"adapters": plain} if plain else {}


def look(keys: Sequence[tuple[Target, AnyCase]], selection: Selection, pool: Pool, timeout: float) -> Adapters:
    """Check the adapters of what is plugged in and about to be judged; built-in implementations have none."""
    groups: dict[tuple[str, str], dict[Target, None]] = defaultdict(dict)
    for target, _ in keys:
        if target.implementation.folder:
            groups[target.implementation.name, target.device][target] = None
    findings, hints = {}, []
    for (name, device), group in groups.items():
        targets = list(group)
        found = check(targets, selection.keywords[name], pool, timeout)
        if found is not None:
            findings[name, device] = found
        elif {target.dtype for target in targets} == set(targets[0].implementation.dtypes):
            hints += [f"{name} on {device}: {text}" for text in _undeclared(targets[0], selection, pool, timeout)]
    return Adapters(findings, tuple(hints))


def _undeclared(target: Target, selection: Selection, pool: Pool, timeout: float) -> Iterator[str]:
    """What works without being declared, in words."""
    works = undeclared.dtypes(target, pool, timeout)
    if works:
        yield f"a tiny input comes out right in {', '.join(works)} too, which attention.dtypes does not name"
    declared = selection.keywords[target.implementation.name]
    for name, keyword in undeclared.keywords(target, declared, pool, timeout):
        yield f"its parameter {name} does what {keyword} is to do: name it {keyword}, and it is judged"


@dataclass(frozen=True)
class Closing:
    """What is said when all cases are judged."""

    #: Why the run fails, whatever became of its cases.
    failures: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()


def close(
    results: Sequence[Result],
    implied: Collection[str],
    not_installed: Mapping[str, Sequence[str]],
    require: Sequence[str],
    *,
    complete: bool,
    hints: Sequence[str] = (),
) -> Closing:
    """What results amount to; a run that was cut off says nothing of what is refused everywhere.

    ``implied`` names implementations whose keywords are only implied (conformance.targets).
    """
    everywhere = refused(results) if complete else []
    failures = [each.line for each in everywhere if each.implementation not in implied]
    failures += shortcomings(required(require), results, not_installed)
    hints = [*hints, *(each.hint for each in everywhere if each.implementation in implied)]
    return Closing(
        tuple(failures),
        _lines(f"hint: {hint}" for hint in hints),
        tuple(claim_lines(results)),
        _lines(side_effect_lines(results)),
    )


def _lines(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for text in texts for line in wrapped(text))
