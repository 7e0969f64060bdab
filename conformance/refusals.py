"""Features that are declared and then refused: a keyword that the signature has, and every call with it lacks.

A case that needs the keyword and is refused may be refused for another reason, its shape or another keyword.  So the
keyword is blamed only where a call that differs in nothing else, and leaves it out, ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.cases import AnyCase, every_case
from conformance.judge import LACKING
from conformance.outcomes import EXECUTED, Outcome, Result

#: Keywords that a call gives together, and that are refused together.
TOGETHER = ("past_key", "past_value")


@dataclass(frozen=True)
class Refused:
    """A keyword that an implementation declares, and refuses in all its cases."""

    implementation: str
    keyword: str
    #: How many cases need it.
    cases: int

    @property
    def line(self) -> str:
        """In words."""
        return f"{self.implementation}: feature {self.keyword} is declared and refused in {self._all}"

    @property
    def hint(self) -> str:
        """In words, of an implementation that does not name its keywords, so that it declared nothing."""
        implied = "which **kwargs or the differentiated function implies"
        return f"{self.implementation}: feature {self.keyword}, {implied}, is refused in {self._all}"

    @property
    def _all(self) -> str:
        return f"all {self.cases} cases that need it" if self.cases > 1 else "the one case that needs it"


def refused(results: Iterable[Result]) -> list[Refused]:
    """The keywords that implementations declare and refuse everywhere, while calls without them run."""
    known = every_case()
    groups: dict[str, list[tuple[AnyCase, Result]]] = defaultdict(list)
    for result in results:
        if result.case in known and not result.reason.startswith(LACKING):
            groups[result.implementation].append((known[result.case], result))
    return [each for name, group in groups.items() for each in _of(name, group)]


def _of(name: str, group: Collection[tuple[AnyCase, Result]]) -> list[Refused]:
    ran = {(_call(case, case.keywords), r.device, r.dtype) for case, r in group if r.outcome in EXECUTED}
    by_keyword: Mapping[str, list[tuple[AnyCase, Result]]] = defaultdict(list)
    for case, result in group:
        for keyword in case.keywords:
            by_keyword[keyword].append((case, result))
    found = []
    for keyword, uses in by_keyword.items():
        if keyword == TOGETHER[1] or any(r.outcome is not Outcome.UNSUPPORTED for _, r in uses):
            continue
        removed = set(TOGETHER) if keyword == TOGETHER[0] else {keyword}
        if any((_call(case, case.keywords - removed), r.device, r.dtype) in ran for case, r in uses):
            found.append(Refused(name, keyword, len({case.name for case, _ in uses})))
    return found


def _call(case: AnyCase, keywords: Collection[str]) -> tuple[Any, ...]:
    """What a refusal may depend on: two cases with equal ones differ in the numbers alone."""
    return case.operator, case.shape, case.memory, case.invalid, frozenset(keywords)
