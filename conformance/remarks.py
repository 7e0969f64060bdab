"""Side effects: what calls did besides and fails nothing, said once: printing, many warnings, changed variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from conformance.outcomes import Result


def side_effect_lines(results: Iterable[Result]) -> list[str]:
    """One line per kind of side effect of an implementation on a device: in how many cases, and the first of them."""
    found: dict[tuple[str, str, str], list[tuple[Result, str]]] = defaultdict(list)
    for result in results:
        for side_effect in result.side_effects:
            kind, _, what = side_effect.partition(": ")
            found[result.implementation, result.device, kind].append((result, what))
    lines = []
    for (name, device, kind), group in found.items():
        first, what = group[0]
        many = f"in {len(group)} cases, first" if len(group) > 1 else "in one case,"
        lines.append(f"side effect: {name} on {device}: {kind} {many} {first.case} in {first.dtype}: {what}")
    return lines
