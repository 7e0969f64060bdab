"""Changes of conformance and accuracy, case by case, from the results of two runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.reports.compare.changes import Change, Kind, Level
from attention_conformance.reports.compare.rules import Rules
from attention_conformance.reports.input.read import CASE
from attention_conformance.reports.text import words

Key = tuple[str, str, str, str]

#: A share of the bound below this is ignored for a case, whatever its factor: it is mere rounding.
LEAST_SHARE = 0.1

_KEPT = (Outcome.PASSED, Outcome.ADVISORY)

#: Kind and level of a step from one outcome to another.  None is "not run"; an unequal pair that is not here is
#: another outcome, which is a note.
STEPS: dict[tuple[Outcome | None, Outcome | None], tuple[Kind, Level]] = {
    **{(old, Outcome.FAILED): (Kind.FAILURE, Level.WORSE) for old in (*Outcome, None) if old is not Outcome.FAILED},
    **{(old, Outcome.KNOWN_DEVIATION): (Kind.DEVIATION, Level.WORSE) for old in _KEPT},
    **{
        (old, Outcome.KNOWN_DEVIATION): (Kind.DEVIATION, Level.NOTE)
        for old in (Outcome.FAILED, Outcome.UNSUPPORTED, None)
    },
    **{(old, Outcome.UNSUPPORTED): (Kind.SUPPORT, Level.WORSE) for old in (*_KEPT, Outcome.KNOWN_DEVIATION)},
    **{(old, None): (Kind.RESULT, Level.WORSE) for old in Outcome},
    **{(Outcome.FAILED, new): (Kind.PASS, Level.BETTER) for new in _KEPT},
    **{(Outcome.KNOWN_DEVIATION, new): (Kind.VANISHED, Level.BETTER) for new in _KEPT},
    **{(Outcome.UNSUPPORTED, new): (Kind.SUPPORTED, Level.BETTER) for new in _KEPT},
    **{(None, new): (Kind.NEW_RESULT, Level.NOTE) for new in (*_KEPT, Outcome.UNSUPPORTED)},
}


def changes(base: Iterable[Result], new: Iterable[Result], rules: Rules, *, cut: bool = False) -> list[Change]:
    """Every case whose outcome, way of failing or accuracy changed, in the order of the base run.

    A result that a run lacks because it was ``cut`` off is not worse: nothing is known about it.

    Parameters
    ----------
    base
        Results of the base run.
    new
        Results of the new run.
    rules
        Thresholds and what is ignored.
    cut
        Whether the new run was cut off.

    Returns
    -------
    list[Change]
        Changes in the order of the base run.
    """
    before, after = ({key_of(result): result for result in side} for side in (base, new))
    found = []
    for key in dict.fromkeys((*before, *after)):
        rules.consult(**dict(zip(CASE, key, strict=True)))
        old, now = before.get(key), after.get(key)
        change = _outcome_change(key, old, now) or _accuracy_change(key, old, now, rules)
        if change is not None and not (cut and change.kind is Kind.RESULT):
            found.append(with_rules(change, rules, case=change.name))
    return found


def with_rules(change: Change, rules: Rules, **name: str) -> Change:
    """The change, ignored if a rule says so.

    Parameters
    ----------
    change
        Change that may be ignored.
    rules
        Thresholds and what is ignored.
    name
        Name of the case or the workload, by the word of a rule.

    Returns
    -------
    Change
        The change with its level.
    """
    place = {"implementation": change.implementation, "device": change.device, "dtype": change.dtype, **name}
    if change.level is Level.WORSE and rules.ignored(change.kind.value, **place):
        return msgspec.structs.replace(change, level=Level.IGNORED)
    return change


def _outcome_change(key: Key, old: Result | None, new: Result | None) -> Change | None:
    """Change from one outcome to the other, None if there is none."""
    before, after = (None if one is None else one.outcome for one in (old, new))
    texts = _outcome_text(old), _outcome_text(new)
    if before is after:
        if after is Outcome.FAILED and _way(old) != _way(new):
            return Change(Kind.OTHER_FAILURE, Level.NOTE, *key, *texts)
        return None
    kind, level = STEPS.get((before, after), (Kind.OTHER_OUTCOME, Level.NOTE))
    return Change(kind, level, *key, *texts)


def _accuracy_change(key: Key, old: Result | None, new: Result | None, rules: Rules) -> Change | None:
    """Change of the share of the bound by more than the rules allow, for a case that is kept in both runs."""
    if old is None or new is None or old.outcome not in _KEPT or new.outcome not in _KEPT:
        return None
    place = dict(zip(CASE, key, strict=True))
    return drift(key, old.share, new.share, rules.threshold("accuracy", **place), LEAST_SHARE)


def drift(key: Key, old: float | None, new: float | None, factor: float, least: float) -> Change | None:
    """The change of a share by more than a factor, None if either is not known or both are small.

    Parameters
    ----------
    key
        Implementation, device, dtype and case.
    old
        Error ÷ bound in the base run.
    new
        Error ÷ bound in the new run.
    factor
        Factor beyond which a drift counts.
    least
        The larger share has to reach this.

    Returns
    -------
    Change | None
        The change.
    """
    if old is None or new is None or not max(old, new) >= least:
        return None
    texts = _of_the_bound(old), _of_the_bound(new)
    if new > old * factor:
        return Change(Kind.ACCURACY, Level.WORSE, *key, *texts)
    if old > new * factor:
        return Change(Kind.MORE_ACCURATE, Level.BETTER, *key, *texts)
    return None


def key_of(result: Result) -> Key:
    """Key of a result.

    Parameters
    ----------
    result
        A result of conformance.

    Returns
    -------
    Key
        Implementation, device, dtype and case.
    """
    return result.implementation, result.device, result.dtype, result.case


def _way(result: Result | None) -> Mapping[str, Any]:
    return (
        {}
        if result is None
        else {"failure": result.failure, "broken": result.broken, "error_pattern": result.error_pattern}
    )


def _of_the_bound(share: float) -> str:
    return f"{share:.3g} {'of' if share <= 1 else 'times'} the bound"


def _outcome_text(result: Result | None) -> str:
    if result is None:
        return "not run"
    share = "" if result.share is None or math.isinf(result.share) else f", {_of_the_bound(result.share)}"
    what = f"{words(result.outcome.value)}{share}"
    return f"{what}: {result.reason}" if result.reason else what
