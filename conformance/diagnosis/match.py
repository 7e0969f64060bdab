"""Matching of failures with causes: which mistake, or which two together, gives the failed results.

All failures of an implementation are examined together: a cause is searched on some of them, chosen across widths,
lengths, dtypes and options, and then tried on all others; those that it does not give join the search, and a cause that
gives them too replaces it.  Known mistakes of its operator, and of the attention within, are tried first, then formulas
and constants solved for from the results, forms of mistakes with other numbers, other solved numbers, and pairs.  The
cause that gives most failures comes first; the rest is explained in the same way.  Passed cases that would fail with a
cause narrow it to the calls that its failures have in common.  Where nothing fits, nothing is reported.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from attention_conformance.conformance.diagnosis.candidates import candidates_of
from attention_conformance.conformance.diagnosis.common_features import FEATURES, meets
from attention_conformance.conformance.diagnosis.explanation import (
    BESIDE,
    FEW,
    MOST,
    WITNESSES,
    Explanation,
    Passed,
    combined,
    first_against,
    judged_as,
    refuted,
    weighed,
    wording,
)
from attention_conformance.conformance.diagnosis.fitted import fitted
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.diagnosis.unnamed import (
    EMPTY,
    MASKED_ROWS,
    accepted,
    empty,
    lowered,
    overflowed,
    part,
    possible,
    raised,
    shaped,
    undefined,
    unwritten,
)
from attention_conformance.conformance.faults.models.steps import adds_nothing
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import KEPT, Failed, explains, fails
from attention_conformance.conformance.judging.judge import comparisons
from attention_conformance.conformance.judging.outcomes import Failure

#: Remaining failures that join the search at a time, where no cause found gives them.
MORE = 20

#: Failures, of all kinds of calls, on which every fault is tried at a time; explained ones leave the search at once.
TRIED = 12

#: Most failures on which forms of mistakes, of which there are hundreds, are tried.
FORMED = 3 * TRIED

#: Remaining cases from which on a known mistake must explain more than one: it may fit one of them by chance.
MANY = 20

#: Number of times that causes are searched again with failures that those found do not give.
AGAIN = 4

#: Failures that no mistake needs to give, as their own words say what they are.
IN_WORDS = (Failure.ERROR, Failure.DTYPE)

#: Most failed cases on which pairs of faults are searched, one after the other, until a pair fits.
PAIRED = 4

#: A mistake that gives fewer than one in this many of the wrong numbers where it would show is equal by chance.
NEARLY_ALL = 10

#: Most pairs of faults that are tried on one failure.
PAIRS = 3000

#: Forms that are tried together with a mistake that was found.
ON_TOP = ("form-bottom-right", "form-addend")


def examined(failures: Sequence[Failed], most: int = MOST) -> list[Failed]:
    """The failures that causes are searched on, of as many kinds of calls as there are, small ones before large ones.

    Parameters
    ----------
    failures
        Cases of any operators, in any dtypes.
    most
        Number of failures to choose.

    Returns
    -------
    list of Failed
        The failures: each adds, for its size, the most widths, lengths, dtypes and options to those before it.  Those
        that are so large that a trial on them is not kept come last.
    """
    left = sorted(failures, key=lambda f: f.size)
    chosen: list[Failed] = []
    for large in (False, True):
        some = [(failed, kinds_of(failed)) for failed in left if (failed.case.size[0] > KEPT) is large]
        seen: Counter[Hashable] = Counter()
        while some and len(chosen) < most:
            best = max(some, key=lambda each: _worth(each[0], each[1], seen))
            some.remove(best)
            chosen.append(best[0])
            seen.update(best[1])
    return chosen


def kinds_of(failed: Failed) -> frozenset[Hashable]:
    """Features of a failed call that a mistake may depend on, for choosing the failures that are examined."""
    case, shape = failed.case, failed.case.shape
    lengths = {("Sq", shape.sq.bit_length()), ("Sk", shape.sk.bit_length())}
    has = {name for name, feature in FEATURES.items() if feature(case)}
    return frozenset(
        {case.operator, failed.failure, failed.dtype, ("D", shape.d), ("Dv", shape.dv), frozenset(has), *lengths, *has}
    )


def _worth(failed: Failed, kinds: Iterable[Hashable], seen: Counter[Hashable]) -> float:
    """Worth of a failure: what it adds to those chosen before, relative to the cost of trying it."""
    return sum(1 / (1 + seen[kind]) ** 2 for kind in kinds) / math.log2(4 + failed.case.size[0])


def diagnose(failures: Sequence[Failed], passed: Sequence[Passed], *, pairs: bool = True) -> list[Explanation]:
    """Explain the failures of one implementation by faults.

    Parameters
    ----------
    failures, passed
        Cases of any operators, in any dtypes.  Causes are searched on MOST of the failures, and tried on all.
    pairs
        Search for two faults at once where no single one fits, which takes minutes.

    Returns
    -------
    list of Explanation
        The best first; each fits failures that those before it do not.  Empty if no fault gives these results.
    """
    witnesses = sorted(passed, key=lambda p: p.case.size)
    looked = sorted(examined(failures), key=lambda f: f.size)
    barren: set[Failed] | None = set() if pairs else None
    found = _searched([], looked, looked, witnesses, barren)
    gives = functools.cache(lambda faults, failed: (m := combined(faults)) is not None and explains(m, failed))
    for _ in range(AGAIN):
        seen = set(looked)
        rest = [f for f in failures if f not in seen and f.failure not in IN_WORDS]
        more = [failed for failed in rest if not any(gives(each.faults, failed) for each in found)]
        if not found or not more or (not _gives_numbers(found) and mostly_open(found, failures, witnesses)):
            break
        looked = sorted([*looked, *examined(more, MORE)], key=lambda f: f.size)
        before = [_extended(explanation, looked, gives) for explanation in found]
        found = _searched(before, looked, looked, witnesses, barren)
        if found == before:
            break  # nothing gives them
    found = [_exchanged(explanation, found, witnesses) for explanation in found]
    found = [explanation for explanation in found if not _by_chance(explanation, found, looked)]
    found = _without_superfluous([_extended(explanation, failures, gives) for explanation in found])
    found = [weighed(replace(each, only=(), against=()), witnesses) if each.only else each for each in found]
    if mostly_open(found, failures, witnesses):
        found = [explanation for explanation in found if not _of_few_numbers(explanation)]
    left = [failed for failed in failures if not any(failed in explanation.fits for explanation in found)]
    most = mostly_open(found, failures, witnesses)
    confined = [*unwritten(left, witnesses), *([] if most else empty(left, failures, witnesses))]
    found = [e for e in found if not any(e.fits <= other.fits for other in confined)]
    left = [failed for failed in left if not any(failed in explanation.fits for explanation in confined)]
    found += [*confined, *raised(left, witnesses), *accepted(left), *shaped(left), *lowered(left, witnesses)]
    found += overflowed(left, witnesses)
    left = [f for f in left if not any(f in explanation.fits for explanation in found)]
    nameless = list(undefined(left, witnesses, named=not most))
    left = [f for f in left if not any(f in explanation.fits for explanation in (*found, *nameless))]
    return [*sorted(found, key=lambda e: -len(e.fits)), *nameless, *possible(left, found, witnesses)]


def _searched(
    found: Sequence[Explanation],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
    barren: set[Failed] | None,
) -> list[Explanation]:
    """Explanations of the remaining failures, with those that were found before and are kept.

    Pairs of faults are not tried on ``barren`` failures, to which those that no pair gives are added; with None no
    pairs are tried.
    """
    found = list(found)
    left = [failed for failed in left if not any(failed in explanation.fits for explanation in found)]
    exhausted = set[Failed]()
    many = _many(left)
    while left:
        if many and not _many(left):
            exhausted.clear()  # one case is enough now, so all is tried again
        many = _many(left)
        best = next(filter(None, _explanations(found, left, exhausted, failures, passed)), None)
        if best is None and barren is not None:
            best = _pair(left, failures, passed, barren)
        if best is None:
            break
        # A cause that explains all that an earlier one does, and more, replaces it: two mistakes at once.
        found = [e for e in found if not e.fits < best.fits] + [best]
        left = [failed for failed in left if failed not in best.fits]
    return found


def _many(left: Sequence[Failed]) -> bool:
    """Whether so many cases remain that a known mistake must explain more than one; failures IN_WORDS do not count."""
    return len({failed.case for failed in left if failed.failure not in IN_WORDS}) >= MANY


def _extended(
    explanation: Explanation, failures: Sequence[Failed], gives: Callable[[tuple[Fault, ...], Failed], bool]
) -> Explanation:
    """The explanation, extended to all of these failures that it gives."""
    fits = explanation.fits
    return replace(explanation, fits=frozenset(f for f in failures if f in fits or gives(explanation.faults, f)))


def _without_superfluous(found: Sequence[Explanation]) -> list[Explanation]:
    """Explanations without those whose failures are all explained by others; the smallest are dropped first."""
    kept = list(found)
    for each in sorted(found, key=lambda e: len(e.fits)):
        others = frozenset[Failed]().union(*(e.fits for e in kept if e is not each))
        if each.fits <= others:
            kept.remove(each)
    return kept


def _explanations(
    found: Sequence[Explanation],
    left: Sequence[Failed],
    exhausted: set[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Iterator[Explanation | None]:
    """Explanations of some of the remaining failures, a few failures at a time, known mistakes first.

    Failures that no single cause gives become ``exhausted``, so that they are tried again only with found causes.
    """
    yield _combined(found, left, failures, passed)
    fresh = examined([failed for failed in left if failed not in exhausted], len(left))
    for first in range(0, len(fresh), TRIED):
        if len(exhausted) >= FORMED and not _gives_numbers(found) and mostly_open(found, failures, passed):
            break  # of all kinds of calls, and nothing gives any of them: the others have the same mistake
        tried = fresh[first : first + TRIED]
        known = _single(candidates_of, tried, left, failures, passed)
        yield _of_several(known, failures) if _many(left) else known
        yield _solved(tried, left, failures, passed, tables=False)
        if len(exhausted) < FORMED:
            one_of_each = list({failed.case: failed for failed in reversed(tried)}.values())
            yield _of_several(_single(forms_of, one_of_each, left, failures, passed), failures)
            yield _solved(tried, left, failures, passed, tables=True)
        exhausted.update(tried)
    partly = [failed for failed in left if failed.telling or failed.partly_nan]
    tried = examined([f for f in partly if f.failure not in IN_WORDS], BESIDE)
    beside = _one_more(found, tried, left, failures, passed)
    cases = {failed.case for failed in left if failed.failure not in IN_WORDS}
    if beside is None or len(cases) <= BESIDE or len(cases.intersection(f.case for f in beside.fits)) > 1:
        yield beside  # of many cases that are left, one fits one more mistake by chance


def _single(
    candidates: Callable[[str], list[Fault]],
    tried: Sequence[Failed],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """The best single fault of an operator's candidates.

    A fault that gives all remaining failures gives the first one too: if there is one, no other is tried on the rest.
    Among equals it is the one whose clause most of the cases are about.
    """
    faults = [fault for operator in {f.case.operator: None for f in tried} for fault in candidates(operator)]
    clauses = Counter(clause for failed in left for clause in failed.case.clauses)
    faults.sort(key=lambda fault: (fault.name == "form-tile", -clauses[fault.clause]))  # what needs no tile first
    tried = _one_of_each_exception(tried)  # a refusal must give all that are alike
    first = min(tried, key=lambda f: (not f.telling, f.size))
    shown = {fault: explains(fault.make, first) for fault in faults}
    whole = [(fault,) for fault in faults if shown[fault] and all(explains(fault.make, f) for f in left)]
    best = _best(whole, left, failures, passed)
    if best is not None:
        return best
    some = [(fault,) for fault in faults if shown[fault] or any(explains(fault.make, f) for f in tried)]
    return _best(some, left, failures, passed)


def _one_of_each_exception(failures: Sequence[Failed]) -> list[Failed]:
    """Failures without exceptions whose words, apart from numbers, are those of an earlier one."""
    seen: dict[Hashable, Failed] = {}
    for failed in failures:
        seen.setdefault(wording(failed) if failed.failure is Failure.ERROR else failed, failed)
    return list(seen.values())


def _combined(
    found: Sequence[Explanation], left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed]
) -> Explanation | None:
    """Two or three of the mistakes that were found separately, together."""
    faults = list(dict.fromkeys(fault for explanation in found for fault in explanation.faults))
    candidates = [c for n in (2, 3) for c in itertools.combinations(faults, n)]
    return _best([c for c in candidates if combined(c) is not None], left, failures, passed)


def _exchanged(explanation: Explanation, found: Sequence[Explanation], passed: Sequence[Passed]) -> Explanation:
    """Two mistakes, with one of them exchanged for a mistake that was found alone, where that gives the same."""
    alone = {each.faults[0] for each in found if len(each.faults) == 1}
    if len(explanation.faults) != 2 or alone.intersection(explanation.faults):
        return explanation
    for fault, kept in itertools.product(alone, explanation.faults):
        made = combined((kept, fault))
        if made is not None and all(explains(made, f) for f in explanation.fits):
            return weighed(replace(explanation, faults=(kept, fault)), passed)
    return explanation


def _one_more(
    found: Sequence[Explanation],
    tried: Sequence[Failed],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """One more mistake together with one that was found."""
    candidates = []
    known = dict.fromkeys((fault,) for explanation in found for fault in explanation.faults)
    for some in itertools.islice(known, BESIDE):
        operator = some[0].operator
        for fault in (*candidates_of(operator), *(form for form in forms_of(operator) if form.name in ON_TOP)):
            made = combined((*some, fault))
            if made is not None and any(
                fails(fault.make, f.case, f.dtype, f.profile)  # else it only gives the first one another path
                and not adds_nothing(made, some[0].make, f.case, f.dtype)
                and explains(made, f, once=True)
                and not explains(fault.make, f, once=True)  # alone it is a cause of its own, or contradicted
                for f in tried
                if f.case.operator == made.operator
            ):
                candidates.append((*some, fault))
    return _best(candidates, left, failures, passed)


def _solved(
    tried: Sequence[Failed],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
    *,
    tables: bool,
) -> Explanation | None:
    """A parameter that is solved for on each case in the most accurate dtype that fails: in others too much fits."""
    exact = {failed.case: failed for failed in sorted(left, key=lambda f: -float(ml_dtypes.finfo(f.dtype).eps))}
    solved = [exact[case] for case in dict.fromkeys(failed.case for failed in tried)]
    candidates = [
        (fault,)
        for operator in {f.case.operator: None for f in solved}
        for fault in fitted([f for f in solved if f.case.operator == operator], tables=tables)
    ]
    best = _of_several(_best(candidates, left, failures, passed), failures)
    if best is None or not tables:
        return best
    # A number for each size is one for each case, and is accepted where most of the cases that were tried have one.
    values = {f.case for f in tried if f.failure is Failure.VALUE and f.telling}
    return best if 2 * len({f.case for f in best.fits} & values) > len(values) else None


def _of_several(best: Explanation | None, failures: Sequence[Failed]) -> Explanation | None:
    """An explanation of several cases, or of the only one: among hundreds of numbers one fits a case by chance."""
    cases = {failed.case for failed in best.fits} if best is not None else set()
    return best if len(cases) > 1 or len({failed.case for failed in failures}) == 1 else None


def _pair(
    left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed], barren: set[Failed]
) -> Explanation | None:
    """Two faults together, searched where the fewest faults show, because every pair of them must be tried."""
    # An exception that a pair raises too is no evidence, and neither is NaN everywhere.
    numbers = [f for f in left if f.failure not in IN_WORDS and (f.telling or f.partly_nan)]
    small = [f for f in numbers if f.case.size[0] <= KEPT]  # thousands of pairs are tried on each
    one_of_each = {f.case: f for f in small}.values()  # the same case in another dtype shows the same faults
    shows = {f: _showing(f) for f in itertools.islice(one_of_each, TRIED)}
    for failed in sorted(shows, key=lambda f: len(shows[f]))[:PAIRED]:
        if failed in barren:
            continue
        pairs = itertools.islice(itertools.combinations(shows[failed], 2), PAIRS)
        candidates = [p for p in pairs if (made := combined(p)) is not None and explains(made, failed, once=True)]
        if not candidates:
            barren.add(failed)
        best = _best(candidates, left, failures, passed)
        if best is not None:
            return best
    return None


def _showing(failed: Failed) -> list[Fault]:
    faults = candidates_of(failed.case.operator)
    return [fault for fault in faults if fails(fault.make, failed.case, failed.dtype, failed.profile)]


def _best(
    candidates: Sequence[tuple[Fault, ...]],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """The candidate that fits most remaining failures and that passed cases do not contradict, the first of equals."""
    whole = _whole(candidates, left, failures, passed)
    if whole is not None:
        return whole  # no other one is better
    made = ((faults, combined(faults)) for faults in candidates)
    explanations = [
        Explanation(faults, frozenset(f for f in failures if explains(make, f))) for faults, make in made if make
    ]

    refused = [failed for failed in failures if failed.failure is Failure.ERROR]
    witnesses = list(passed[:WITNESSES])

    def new(explanation: Explanation) -> int:
        return len(explanation.fits.intersection(left))

    for _, level in itertools.groupby(sorted(explanations, key=new, reverse=True), key=new):
        some = [e for e in level if _says(e, left) or _says_of_masked_rows(e, left)]
        if not any(_convincing(e, failures) for e in some):  # then only one without contradictions is taken
            some = [e for e in some if not refuted(e, witnesses)]
        held = [weighed(e, passed) for e in some]
        held = [e for e in held if _refuses(e, left) and (_says(e, left) or not (e.against or e.only))]
        weights = [(e.contradicted, len(e.only), len(_failing_with(e, refused))) for e in held]
        best = _narrowest([e for e, weight in zip(held, weights, strict=True) if weight == min(weights)], failures)
        if best is not None and (not best.contradicted or _convincing(best, failures)):
            return best
    return None


def _whole(
    candidates: Sequence[tuple[Fault, ...]],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """The candidate that fits all remaining failures, and that no passed case contradicts; the narrowest of several."""
    found: list[Explanation] = []
    witnesses = list(passed[:WITNESSES])
    for faults in candidates:
        make = combined(faults)
        if make is None or not all(explains(make, failed) for failed in left):
            continue
        explanation = Explanation(faults, frozenset(f for f in failures if explains(make, f)))
        if not _says(explanation, left) or not _refuses(explanation, left):
            continue
        if first_against(make, witnesses) is None:
            found.append(explanation)
    return _narrowest(found, failures)


def _narrowest(equals: Sequence[Explanation], failures: Sequence[Failed]) -> Explanation | None:
    """The one of equally good explanations that would show in the fewest failures that it does not give."""
    return equals[0] if len(equals) == 1 else min(equals, key=lambda e: _elsewhere(e, failures), default=None)


def _elsewhere(explanation: Explanation, failures: Sequence[Failed]) -> int:
    """Number of failures in which the mistake would show, and that have other numbers."""
    others = [f for f in failures if f.failure is Failure.VALUE and f.telling and f not in explanation.fits]
    return len(_failing_with(explanation, others))


def _says(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether it explains anything: by an equal wrong number, or by NaN in exactly the places of several results.

    NaN everywhere does not count: many mistakes give it.
    """
    fits = explanation.fits.intersection(left)
    if any(failed.telling for failed in fits):
        return True
    values = [failed for failed in left if failed.failure is Failure.VALUE]
    partly = {failed.case for failed in fits if failed.partly_nan}
    return len(partly) > 1 or (bool(partly) and 2 * len(fits) > len(values))


def _says_of_masked_rows(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether it explains NaN in just the fully masked rows of a single case: enough where no passed case contradicts.

    Everything else that it explains must be such a case too, in every dtype in which it fails, or lack other rows.
    """
    fits = explanation.fits.intersection(left)
    cases = {failed.case for failed in fits}
    alike = {failed for failed in left if failed.case in cases}  # the same case in other dtypes
    lost = all(_lost_in_masked_rows(failed) for failed in fits)
    return alike <= explanation.fits and lost and any(failed.partly_nan for failed in fits)


def _lost_in_masked_rows(failed: Failed) -> bool:
    """Whether the fully masked rows of the output are entirely NaN, and other rows, if there are any, are right."""
    output = failed.reply.results.get("output")
    if failed.failure is not Failure.VALUE or failed.telling or output is None:
        return False
    lost, masked = np.isnan(output.astype(np.float64)), _masked_rows(failed, output.shape)
    wrong = next(c.outside for c in comparisons(*judged_as(failed)) if c.name == "output")
    return bool(np.array_equal(lost, masked) and np.array_equal(wrong, masked))


def _masked_rows(failed: Failed, shape: tuple[int, ...]) -> np.ndarray:
    """Fully masked rows of an output; for a layer, whose rows combine all heads, the rows that any head masks fully."""
    heads = getattr(failed.case.expected(failed.dtype), "heads", None)
    if heads is None:
        return part(MASKED_ROWS, shape, failed)
    empty: np.ndarray = ~heads.allowed.any(axis=3).all(axis=1)
    return np.broadcast_to(empty[..., None], shape) if empty.shape == shape[:-1] else np.zeros(shape, bool)


def _refuses(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether exceptions are explained by a refusal of exactly those calls: they have no numbers to be equal."""
    fits = explanation.fits.intersection(left)
    if any(failed.failure is not Failure.ERROR for failed in fits):
        return True
    texts = {wording(failed) for failed in fits}
    alike = {f for f in left if f.failure is Failure.ERROR and wording(f) in texts}
    return alike <= fits and not explanation.only and not explanation.against


def _failing_with(explanation: Explanation, failures: Sequence[Failed]) -> list[Failed]:
    """The failures that its mistake would fail in the calls that it is narrowed to, with equal results or not."""
    make = combined(explanation.faults)
    calls = [f for f in failures if meets(explanation.only, (f.case, f.dtype))]
    return [f for f in calls if make is not None and fails(make, f.case, f.dtype, f.profile)]


def mostly_open(found: Sequence[Explanation], failures: Sequence[Failed], passed: Sequence[Passed]) -> bool:
    """Whether most calls have a wrong number that nothing gives: other failures come with it, or from the same cause.

    Few cases, or only NaN, that a mistake gives are then weak evidence.  Calls with nothing to compute do not count.
    """
    ordinary = [f for f in failures if not any(has(f) for has in EMPTY.values())]
    telling = [failed for failed in ordinary if failed.failure is Failure.VALUE and failed.telling]
    unexplained = [failed for failed in telling if not any(failed in explanation.fits for explanation in found)]
    right = sum(not each.case.invalid for each in passed)
    return 2 * len(unexplained) > len(telling) + right


def _gives_numbers(found: Sequence[Explanation]) -> bool:
    """Whether any wrong number is explained."""
    return any(f.failure is Failure.VALUE and f.telling for explanation in found for f in explanation.fits)


def _of_few_numbers(explanation: Explanation) -> bool:
    """Whether it gives the results of a few cases, which are neither exceptions nor NaN in just the masked rows."""
    fits = explanation.fits
    if len({failed.case for failed in fits}) > FEW or any(f.failure is not Failure.VALUE for f in fits):
        return False
    return not all(_lost_in_masked_rows(failed) for failed in fits)


def _by_chance(explanation: Explanation, found: Sequence[Explanation], failures: Sequence[Failed]) -> bool:
    """Whether a mistake gives a few cases, and the numbers are others in most cases where it would show.

    For more than a few cases the numbers must be others in nearly all: saturated ones are equal for many reasons.
    Cases that another explanation gives, by this mistake together with a second one, count for it.
    """
    few = len({failed.case for failed in explanation.fits}) <= FEW
    if not few and not any(failed.telling for failed in explanation.fits):
        return False
    refused = sum(failed.failure is Failure.ERROR for failed in failures)
    if few and 2 * refused > len(failures) and not any(_speaks(failed) for failed in explanation.fits):
        return True
    beside = [e.fits for e in found if set(e.faults) > set(explanation.faults)]
    equal = explanation.fits.union(*beside)
    shown = _failing_with(explanation, [f for f in failures if f.failure is Failure.VALUE and f.telling])
    return (2 if few else NEARLY_ALL) * len(equal.intersection(shown)) < len(shown)


def _speaks(failed: Failed) -> bool:
    """Whether few mistakes give a failure: many give all weight to one key or to none, and zeros, for other reasons."""
    if failed.failure is not Failure.VALUE:
        return True
    return failed.case.shape.sk > 1 and any(np.any(numbers.values) for numbers in failed.numbers.values())


def _convincing(explanation: Explanation, failures: Sequence[Failed]) -> bool:
    """Whether it is worth reporting although cases passed that would fail with it: then it happens only sometimes.

    NaN by itself does not convince, as many mistakes give it.
    """
    values = [failed for failed in failures if failed.failure is Failure.VALUE]
    told = any(failed.telling for failed in explanation.fits)
    return told and 2 * len(explanation.fits.intersection(values)) > len(failures)
