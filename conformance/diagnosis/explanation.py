"""Explanations: a cause of failures, what it explains, and how it is checked against the cases that passed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.diagnosis.candidates import INNER
from attention_conformance.conformance.diagnosis.common_features import choices, narrowing, shared
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import Failed, explains, fails
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

#: Most cases that an explanation may fit by chance.
FEW = 3

#: Most failures that causes are searched on.
MOST = 80

#: Most passed cases that an explanation is checked against, the smallest first.
WITNESSES = 200

#: Numbers in the words of an exception, which differ from call to call.
NUMBERS = re.compile(r"\d+")

#: Most found mistakes that each further mistake is combined with, and most failures that the two are tried on.
BESIDE = 3


@dataclass(frozen=True)
class Passed:
    """A case that passed."""

    case: AnyCase
    dtype: str
    profile: Profile


@dataclass(frozen=True)
class Explanation:
    """A cause: one mistake, or two together, the failures that it explains, and the passed cases that contradict it."""

    faults: tuple[Fault, ...]
    fits: frozenset[Failed]
    #: Passed cases that the fault would fail, in the calls that it is narrowed to.
    against: tuple[Passed, ...] = ()
    #: Conditions, in words, of the calls in which it happens; () for all calls.
    only: tuple[str, ...] = ()

    @property
    def contradicted(self) -> int:
        """Number of passed cases that it would fail."""
        return len(self.against)

    def fit(self, failed: Failed) -> bool:
        """Whether it explains a failure, even one that was not examined when it was found."""
        make = combined(self.faults)
        return failed in self.fits or (make is not None and explains(make, failed))

    @property
    def title(self) -> str:
        """Description of what is wrong."""
        what = " together with ".join(f"“{fault.title}{self._windows(fault)}”" for fault in self.faults)
        return f"{what}, only {' and '.join(self.only)}" if self.only else what

    def _windows(self, fault: Fault) -> str:
        """Note that windows move with the diagonal of a causal mask, where calls that are not causal show it."""
        options = [failed.case.options for failed in self.fits]
        moved = any(each.get("window") is not None and not each.get("is_causal") for each in options)
        if not moved or not _moves_diagonal(fault.make) or "window" in fault.title:
            return ""
        return ", windows from the bottom right too" if "bottom-right" in fault.title else ", and windows with it"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the faults."""
        return tuple(fault.name for fault in self.faults)

    @property
    def sources(self) -> tuple[str, ...]:
        """Threads where it happened before, one of each fault in turn."""
        turns = itertools.zip_longest(*(fault.sources for fault in self.faults))
        return tuple(dict.fromkeys(source for turn in turns for source in turn if source))


def wording(failed: Failed) -> str:
    """The words of an exception without their numbers, which differ from call to call."""
    return NUMBERS.sub("…", failed.reply.text)


def judged_as(failed: Failed) -> tuple[Reply, AnyCase, str, Profile]:
    """Parts of the judge's comparisons of a failure."""
    return failed.reply, failed.case, failed.dtype, failed.profile


def weighed(explanation: Explanation, passed: Sequence[Passed]) -> Explanation:
    """An explanation with the passed cases that contradict it, narrowed to the calls that its failures share."""
    make = combined(explanation.faults)
    if make is None:
        return explanation
    against = [p for p in passed[:WITNESSES] if fails(make, p.case, p.dtype, p.profile)]
    if not against:
        return explanation
    fits = [(f.case, f.dtype) for f in explanation.fits]
    only, kept = narrowing(fits, [(p.case, p.dtype) for p in against])
    return replace(explanation, only=only, against=tuple(against[n] for n in kept))


def first_against(make: type[Model], witnesses: list[Passed]) -> Passed | None:
    """A passed case that a mistake would fail, which moves to the front: it is likely to fail the next mistake too."""
    for n, p in enumerate(witnesses):
        if fails(make, p.case, p.dtype, p.profile):
            witnesses.insert(0, witnesses.pop(n))
            return p
    return None


def refuted(explanation: Explanation, witnesses: list[Passed]) -> bool:
    """Whether passed cases contradict an explanation to whatever calls it is narrowed.

    It stops at the first few that do, which move to the front of ``witnesses``; more could not change that.
    """
    make = combined(explanation.faults)
    if make is None:
        return False
    conditions = shared([(f.case, f.dtype) for f in explanation.fits])
    narrowed = choices(conditions)
    against: list[Passed] = []
    for p in witnesses:
        if fails(make, p.case, p.dtype, p.profile):
            against.append(p)
            met = {words for words, meets in conditions.items() if meets((p.case, p.dtype))}
            narrowed = [words for words in narrowed if not met.issuperset(words)]
            if not narrowed:
                witnesses.sort(key=lambda w: w not in against)
                return True
    return False


def _moves_diagonal(make: type[Model]) -> bool:
    """Whether a model moves the diagonal, and all that is counted from it."""
    attention = getattr(make, "attention", make)
    names = ("default_offset", "offset", "diagonal")
    return issubclass(attention, Attention) and any(getattr(attention, n) is not getattr(Attention, n) for n in names)


def combined(faults: Sequence[Fault]) -> type[Model] | None:
    """A model with all these faults; None where one is a subclass of another, or they differ in their operator."""
    made = [fault.make for fault in faults]
    if len(made) == 1:
        return made[0]
    if len({make.operator for make in made}) > 1 or any(issubclass(a, b) for a, b in itertools.permutations(made, 2)):
        return None
    members: dict[str, type[Model]] = {}
    try:
        for name, right in INNER.items():
            if within := {getattr(make, name, right) for make in made} - {right}:
                members[name] = _merged(within)
        return type("Combined", tuple(made), members)
    except TypeError:  # their method resolution orders conflict
        return None


def _merged(models: Iterable[type[Model]]) -> type[Model]:
    """The inner model that combines several faulty ones.  Raises TypeError where they conflict."""
    classes = sorted(models, key=lambda each: (-len(each.__mro__), each.__name__))  # subclasses before their base
    return classes[0] if len(classes) == 1 else type("Combined", tuple(classes), {})
