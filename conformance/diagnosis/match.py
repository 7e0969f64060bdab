"""Matching of failures with causes: which mistake, or which two together, gives the results that failed.

All failures of an implementation are looked at together: a cause is searched on some of them, chosen across widths,
lengths, dtypes and options, and then held against all others; those that it does not give join the search, and what
gives them too takes its place.  Known mistakes of its operator, and of the attention within, are tried first, then
forms of them with other numbers, then parameters that are solved for from the results, then pairs.  The cause that
gives most failures comes first; what is left is explained in the same way.  Passed cases that would fail with a cause
narrow it to the calls that its failures have in common.  Where nothing fits, nothing is said.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.diagnosis.candidates import candidates_of
from attention_conformance.conformance.diagnosis.common_features import FEATURES, meets, narrowing
from attention_conformance.conformance.diagnosis.fitted import fitted
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.faults.models.mha import Layer
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.models.steps import adds_nothing
from attention_conformance.conformance.faults.models.varlen import Packed
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import KEPT, Failed, explains, fails
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.judge import comparisons
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

#: Failures on which every fault is tried at a time, of all kinds of calls: as soon as some are explained, those go out.
TRIED = 12

#: Failures on which forms of mistakes are tried, of which there are hundreds.
FORMED = 3 * TRIED

#: Cases that are left of which a known mistake has to explain more than one: one of them it fits by chance.
MANY = 20

#: Cases that an explanation may fit by chance.
FEW = 3

#: Failures that causes are searched on, and those of the rest, at a time, that none of these causes gives.
MOST, MORE = 80, 20

#: How often causes are searched again with failures that those found do not give.
AGAIN = 4

#: Failures that no mistake has to give, as their own words say what they are.
IN_WORDS = (Failure.ERROR, Failure.DTYPE)

#: Failed cases that pairs of faults are searched for, one after the other, until a pair fits.
PAIRED = 4

#: Passed cases that may speak against an explanation, the smallest first.
WITNESSES = 200

#: Numbers in the words of an exception, which differ from call to call.
NUMBERS = re.compile(r"\d+")

#: Mistakes that were found, and failures, on which each further mistake is tried together with one of them.
BESIDE = 3

#: Pairs of faults that are tried on one failure.
PAIRS = 3000


#: Mistakes that may all be said of results with no wrong number but NaN or inf, by "either … or …".
EITHER = 3

#: Forms that may give NaN or inf alone, beside the known mistakes.
LOSING = ("form-addend", "form-product")

#: Forms that are tried on top of a mistake that was found.
ON_TOP = ("form-bottom-right", "form-addend")


@dataclass(frozen=True)
class Passed:
    """A case that passed."""

    case: AnyCase
    dtype: str
    profile: Profile


@dataclass(frozen=True)
class Explanation:
    """A cause: one mistake, or two together, the failures that it gives, and the passed cases that contradict it."""

    faults: tuple[Fault, ...]
    fits: frozenset[Failed]
    #: Passed cases that the fault would fail, in the calls that it is narrowed to.
    against: tuple[Passed, ...] = ()
    #: What the calls have in which it happens, in words; () for all.
    only: tuple[str, ...] = ()

    @property
    def contradicted(self) -> int:
        """How many passed cases it would fail."""
        return len(self.against)

    def fit(self, failed: Failed) -> bool:
        """Whether it explains a failure, one that was not looked at when it was found too."""
        make = combined(self.faults)
        return failed in self.fits or (make is not None and explains(make, failed))

    @property
    def title(self) -> str:
        """What is wrong, in words."""
        what = " together with ".join(f"“{fault.title}{self._windows(fault)}”" for fault in self.faults)
        return f"{what}, only {' and '.join(self.only)}" if self.only else what

    def _windows(self, fault: Fault) -> str:
        """That windows move with the diagonal of a causal mask, where calls that are not causal show it."""
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
        """Where it happened before, one thread of each fault in turn."""
        turns = itertools.zip_longest(*(fault.sources for fault in self.faults))
        return tuple(dict.fromkeys(source for turn in turns for source in turn if source))


def examined(failures: Sequence[Failed], most: int = MOST) -> list[Failed]:
    """The failures that causes are searched on, of as many kinds of calls as there are, small ones before large ones.

    Parameters
    ----------
    failures
        Cases of any operators, in any dtypes.
    most
        How many to choose.

    Returns
    -------
    list of Failed
        Each is the one that has most that those before it have not, for its size: widths, lengths, dtypes and options.
        Those on which a trial is not kept, as they are large, come last.
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
    """What a mistake may depend on in a failed call, for the choice of those that are looked at."""
    case, shape = failed.case, failed.case.shape
    lengths = {("Sq", shape.sq.bit_length()), ("Sk", shape.sk.bit_length())}
    has = {name for name, feature in FEATURES.items() if feature(case)}
    return frozenset(
        {case.operator, failed.failure, failed.dtype, ("D", shape.d), ("Dv", shape.dv), frozenset(has), *lengths, *has}
    )


def _worth(failed: Failed, kinds: Iterable[Hashable], seen: Counter[Hashable]) -> float:
    """How much a failure adds to those that are chosen, for what it costs to try on."""
    return sum(1 / (1 + seen[kind]) ** 2 for kind in kinds) / math.log2(4 + failed.case.size[0])


def diagnose(failures: Sequence[Failed], passed: Sequence[Passed], *, pairs: bool = True) -> list[Explanation]:
    """Explain the failures of one implementation by faults.

    Parameters
    ----------
    failures, passed
        Cases of any operators, in any dtypes.  Causes are searched on MOST of the failures, and held against all.
    pairs
        Search for two faults at once where no single one fits, which takes minutes.

    Returns
    -------
    list of Explanation
        The best first; each fits failures that those before it do not.  Empty if no fault gives these results.
    """
    witnesses = sorted(passed, key=lambda p: p.case.size)
    looked = sorted(examined(failures), key=lambda f: f.size)
    found = _searched([], looked, looked, witnesses, pairs=pairs)
    gives = functools.cache(lambda faults, failed: (m := combined(faults)) is not None and explains(m, failed))
    for _ in range(AGAIN):
        seen = set(looked)
        rest = [f for f in failures if f not in seen and f.failure not in IN_WORDS]
        more = [failed for failed in rest if not any(gives(each.faults, failed) for each in found)]
        if not found or not more:
            break
        looked = sorted([*looked, *examined(more, MORE)], key=lambda f: f.size)
        before = [_extended(explanation, looked, gives) for explanation in found]
        found = _searched(before, looked, looked, witnesses, pairs=pairs)
        if found == before:
            break  # nothing gives them
    found = [_settled(explanation, found, witnesses) for explanation in found]
    found = [explanation for explanation in found if not _by_chance(explanation, found, looked)]
    found = _without_superfluous([_extended(explanation, failures, gives) for explanation in found])
    found = [_weighed(replace(each, only=(), against=()), witnesses) if each.only else each for each in found]
    left = [failed for failed in failures if not any(failed in explanation.fits for explanation in found)]
    confined = [*unwritten(left, witnesses), *empty(left, failures, witnesses)]
    found = [e for e in found if not any(e.fits <= other.fits for other in confined)]
    left = [failed for failed in left if not any(failed in explanation.fits for explanation in confined)]
    found += [*confined, *raised(left, witnesses), *accepted(left), *shaped(left), *lowered(left, witnesses)]
    found += overflowed(left, witnesses)
    left = [f for f in left if not any(f in explanation.fits for explanation in found)]
    nameless = list(undefined(left, witnesses))
    left = [f for f in left if not any(f in explanation.fits for explanation in (*found, *nameless))]
    return [*sorted(found, key=lambda e: -len(e.fits)), *nameless, *possible(left, found, witnesses)]


def _searched(
    found: Sequence[Explanation],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
    *,
    pairs: bool,
) -> list[Explanation]:
    """Explanations of the failures that are left, with those that were found before and stay."""
    found = list(found)
    left = [failed for failed in left if not any(failed in explanation.fits for explanation in found)]
    exhausted = set[Failed]()
    many = _many(left)
    while left:
        if many and not _many(left):
            exhausted.clear()  # one case is enough now, so that what was tried on many is tried again
        many = _many(left)
        best = next(filter(None, _explanations(found, left, exhausted, failures, passed)), None)
        if best is None and pairs:
            best = _pair(left, failures, passed)
        if best is None:
            break
        # What explains all that an earlier one does, and more, takes its place: two mistakes at once.
        found = [e for e in found if not e.fits < best.fits] + [best]
        left = [failed for failed in left if failed not in best.fits]
    return found


def _many(left: Sequence[Failed]) -> bool:
    """Whether so many cases are left that a known mistake has to explain more than one; refusals are told by words."""
    return len({failed.case for failed in left if failed.failure not in IN_WORDS}) >= MANY


def _extended(
    explanation: Explanation, failures: Sequence[Failed], gives: Callable[[tuple[Fault, ...], Failed], bool]
) -> Explanation:
    """An explanation with all of some failures that it gives."""
    fits = explanation.fits
    return replace(explanation, fits=frozenset(f for f in failures if f in fits or gives(explanation.faults, f)))


def _without_superfluous(found: Sequence[Explanation]) -> list[Explanation]:
    """Explanations without those all of whose failures one of the others gives, the least first to go."""
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
    """What explains some of the failures that are left, a few of them after the other, known mistakes first.

    Failures that nothing alone gives become ``exhausted``, so that they are tried again only beside what is found.
    """
    yield _together(found, left, failures, passed)
    fresh = examined([failed for failed in left if failed not in exhausted], len(left))
    for first in range(0, len(fresh), TRIED):
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
    yield _beside(found, examined([f for f in partly if f.failure not in IN_WORDS], BESIDE), left, failures, passed)


def _single(
    candidates: Callable[[str], list[Fault]],
    tried: Sequence[Failed],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """One fault of those that an operator has.

    One that gives all that is left gives the first failure too: where there is one, no other need be tried on the rest.
    Of equals it is the one whose clause most of the cases are about.
    """
    faults = [fault for operator in {f.case.operator: None for f in tried} for fault in candidates(operator)]
    clauses = Counter(clause for failed in left for clause in failed.case.clauses)
    faults.sort(key=lambda fault: -clauses[fault.clause])
    tried = _one_of_each_exception(tried)  # a refusal has to give all that are alike
    first = min(tried, key=lambda f: (not f.telling, f.size))
    shown = {fault: explains(fault.make, first) for fault in faults}
    whole = [(fault,) for fault in faults if shown[fault] and all(explains(fault.make, f) for f in left)]
    best = _best(whole, left, failures, passed)
    if best is not None:
        return best
    some = [(fault,) for fault in faults if shown[fault] or any(explains(fault.make, f) for f in tried)]
    return _best(some, left, failures, passed)


def _one_of_each_exception(failures: Sequence[Failed]) -> list[Failed]:
    """Failures without exceptions in the same words as an earlier one's, but for the numbers in them."""
    seen: dict[Hashable, Failed] = {}
    for failed in failures:
        seen.setdefault(_exception(failed) if failed.failure is Failure.ERROR else failed, failed)
    return list(seen.values())


def _exception(failed: Failed) -> str:
    """The words of an exception without their numbers, which differ from call to call."""
    return NUMBERS.sub("…", failed.reply.text)


def _together(
    found: Sequence[Explanation], left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed]
) -> Explanation | None:
    """Mistakes that were found one by one, two or three of them on one case."""
    faults = list(dict.fromkeys(fault for explanation in found for fault in explanation.faults))
    candidates = [c for n in (2, 3) for c in itertools.combinations(faults, n)]
    return _best([c for c in candidates if combined(c) is not None], left, failures, passed)


def _settled(explanation: Explanation, found: Sequence[Explanation], passed: Sequence[Passed]) -> Explanation:
    """Two mistakes together with one of them exchanged for one that was found alone, where that gives the same."""
    alone = {each.faults[0] for each in found if len(each.faults) == 1}
    if len(explanation.faults) != 2 or alone.intersection(explanation.faults):
        return explanation
    for fault, kept in itertools.product(alone, explanation.faults):
        made = combined((kept, fault))
        if made is not None and all(explains(made, f) for f in explanation.fits):
            return _weighed(replace(explanation, faults=(kept, fault)), passed)
    return explanation


def _beside(
    found: Sequence[Explanation],
    tried: Sequence[Failed],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """One more mistake on top of one that was found."""
    candidates = []
    known = dict.fromkeys((fault,) for explanation in found for fault in explanation.faults)
    for some in itertools.islice(known, BESIDE):
        operator = some[0].operator
        for fault in (*candidates_of(operator), *(form for form in forms_of(operator) if form.name in ON_TOP)):
            made = combined((*some, fault))
            if made is not None and any(
                not adds_nothing(made, some[0].make, f.case, f.dtype)
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
    """A parameter that is solved for, on each case in the most accurate dtype that fails: others fit too much."""
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
    # A number for each size is one for each case, and is believed where most of those that were tried have one.
    values = {f.case for f in tried if f.failure is Failure.VALUE and f.telling}
    return best if 2 * len({f.case for f in best.fits} & values) > len(values) else None


def _of_several(best: Explanation | None, failures: Sequence[Failed]) -> Explanation | None:
    """An explanation of several cases, or of the only one: of hundreds of numbers one fits a single case by chance."""
    cases = {failed.case for failed in best.fits} if best is not None else set()
    return best if len(cases) > 1 or len({failed.case for failed in failures}) == 1 else None


def _pair(left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed]) -> Explanation | None:
    """Two faults together, searched where the fewest faults show, because every pair of them has to be tried."""
    numbers = [f for f in left if f.failure not in IN_WORDS]  # to raise what some pair raises too says nothing
    small = [f for f in numbers if f.case.size[0] <= KEPT]  # thousands of pairs are tried on each
    one_of_each = {f.case: f for f in small}.values()  # the same case in another dtype shows the same faults
    shows = {f: _showing(f) for f in itertools.islice(one_of_each, TRIED)}
    for failed in sorted(shows, key=lambda f: len(shows[f]))[:PAIRED]:
        pairs = itertools.islice(itertools.combinations(shows[failed], 2), PAIRS)
        candidates = [p for p in pairs if (made := combined(p)) is not None and explains(made, failed, once=True)]
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
    """The candidate that fits most of what is left and that passed cases do not speak against, the first of equals."""
    whole = _whole(candidates, left, failures, passed)
    if whole is not None:
        return whole  # no other one is better
    made = ((faults, combined(faults)) for faults in candidates)
    explanations = [
        Explanation(faults, frozenset(f for f in failures if explains(make, f))) for faults, make in made if make
    ]

    refused = [failed for failed in failures if failed.failure is Failure.ERROR]

    def new(explanation: Explanation) -> int:
        return len(explanation.fits.intersection(left))

    for _, level in itertools.groupby(sorted(explanations, key=new, reverse=True), key=new):
        weighed = [_weighed(e, passed) for e in level if _says(e, left) or _says_of_masked_rows(e, left)]
        weighed = [e for e in weighed if _refuses(e, left) and (_says(e, left) or not (e.against or e.only))]
        best = min(weighed, key=lambda e: (e.contradicted, len(e.only), len(_shown(e, refused))), default=None)
        if best is not None and (not best.contradicted or _convincing(best, failures)):
            return best
    return None


def _whole(
    candidates: Sequence[tuple[Fault, ...]],
    left: Sequence[Failed],
    failures: Sequence[Failed],
    passed: Sequence[Passed],
) -> Explanation | None:
    """The first candidate that fits all that is left, and that no passed case speaks against."""
    for faults in candidates:
        make = combined(faults)
        if make is None or not all(explains(make, failed) for failed in left):
            continue
        explanation = Explanation(faults, frozenset(f for f in failures if explains(make, f)))
        if _says(explanation, left):
            explanation = _weighed(explanation, passed)
            if not explanation.against and not explanation.only and _refuses(explanation, left):
                return explanation
    return None


class Words(Model):
    """No model: a cause that is words alone, and gives no results of its own."""

    operator = ""


def raised(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Exceptions and results of another dtype that no mistake gives, in their own words and by calls."""
    groups: dict[str, list[Failed]] = {}
    for failed in failures:
        if failed.failure is Failure.ERROR:
            groups.setdefault(f"an exception: {_exception(failed)[:200]}", []).append(failed)
        elif failed.failure is Failure.DTYPE and failed.reply.results:
            got = next(iter(failed.reply.results.values())).dtype
            groups.setdefault(f"results of a {failed.dtype} call are {got}", []).append(failed)
    for text, some in groups.items():
        only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in passed])
        fault = Fault("raised", some[0].case.clauses[0], text, (), Words)
        yield Explanation((fault,), frozenset(some), (), () if kept else only)


def accepted(failures: Sequence[Failed]) -> Iterator[Explanation]:
    """Invalid inputs that are accepted and whose results no mistake gives: what is not checked, by clause."""
    groups: dict[str, list[Failed]] = {}
    for failed in failures:
        if failed.failure is Failure.NO_ERROR:
            groups.setdefault(failed.case.clauses[0], []).append(failed)
    for clause, some in groups.items():
        cases = list(dict.fromkeys(failed.case.why.rstrip(".") for failed in some))
        more = f", and {len(cases) - EITHER} more" if len(cases) > EITHER else ""
        title = f"an invalid input is accepted: {'; '.join(cases[:EITHER])}{more}"
        yield Explanation((Fault("accepted", clause, title, (), Words),), frozenset(some))


def overflowed(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """NaN in rows that have a masked key whose score overflows, and nothing else that is wrong.

    No mistake says in which rows: a sum of products overflows, or not, by the order of its terms.  Where none of these
    rows is right, the masked value may be what overflows.
    """
    some = [failed for failed in failures if _lost_by_overflow(failed)]
    have = [p for p in passed if not p.case.invalid and _overflowing(p).any()]
    only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in have]) if some else ((), ())
    if not some or 2 * len(kept) > len(some):
        return
    if all(np.array_equal(_lost_rows(failed), _overflowing(failed)) for failed in some):
        title = (
            "NaN in every row with a masked key of huge numbers: its score or its value overflows, and is not left out"
        )
    else:
        title = "NaN in rows with a masked key whose score overflows: the key is masked by arithmetic, and not left out"
    fault = Fault("overflowed", some[0].case.clauses[0], title, (), Words)
    yield Explanation((fault,), frozenset(some), tuple(have[n] for n in kept), only if have else ())


def _overflowing(each: Failed | Passed) -> np.ndarray:
    """Rows of sdpa that have a masked key whose scaled score may overflow, as the sum of the sizes of its terms does.

    A product that overflows before the scale is a mistake that is known (SDPA-26).
    """
    expected = each.case.expected(each.dtype)
    if not isinstance(expected, Expected):
        return np.zeros(0, bool)
    scale, width = each.case.options.get("scale"), expected.q.shape[3]
    factor = abs(scale) if scale is not None else 1 / math.sqrt(max(width, 1))
    with np.errstate(all="ignore"):
        terms = np.abs(expected.q) @ np.abs(expected.k).swapaxes(2, 3) * factor
    most = float(ml_dtypes.finfo(each.dtype).max)
    return np.asarray((~expected.allowed & (terms > most)).any(axis=3))


def _lost_rows(failed: Failed) -> np.ndarray:
    """Rows of the output with NaN."""
    return np.asarray(np.isnan(failed.reply.results["output"].astype(np.float64)).any(axis=-1))


def _lost_by_overflow(failed: Failed) -> bool:
    """Whether rows are NaN, in whole, in which a masked score may overflow, and all else is right."""
    if failed.failure is not Failure.VALUE or failed.telling or list(failed.reply.results) != ["output"]:
        return False
    lost = np.isnan(failed.reply.results["output"].astype(np.float64))
    wrong, rows = next(c.outside for c in comparisons(*_judged_as(failed))), _overflowing(failed)
    if rows.shape != lost.shape[:3] or not rows.any():
        return False
    in_whole = np.array_equal(lost.all(axis=3), lost.any(axis=3))
    return bool(np.array_equal(lost, wrong) and in_whole and (_lost_rows(failed) <= rows).all())


def shaped(failures: Sequence[Failed]) -> Iterator[Explanation]:
    """Outputs of another shape that no mistake gives, by the axes that they have in all of these calls."""
    groups: dict[str, list[Failed]] = {}
    for failed in failures:
        output = failed.reply.results.get("output")
        if failed.failure is Failure.SHAPE and output is not None:
            groups.setdefault(f"{failed.case.operator} {output.ndim}", []).append(failed)
    for some in groups.values():
        wanted, got = _axes(some)
        if len({failed.case for failed in some}) > 1 and wanted != got:
            title = f"an output of shape ({', '.join(got)}) in place of ({', '.join(wanted)})"
            yield Explanation((Fault("shaped", some[0].case.blame.shape, title, (), Words),), frozenset(some))


#: Lengths of axes by their letters, those of an output first and in order.
LETTERS = {"B": "b", "Hq": "hq", "Sq": "sq", "Dv": "dv", "Sk": "sk", "Hkv": "hkv", "D": "d"}


def _axes(failures: Sequence[Failed]) -> tuple[list[str], list[str]]:
    """The letters of the axes that some calls should have and of those that came; none where an axis has no letter."""
    wanted: list[str] = []
    got: list[str] = []
    pairs = [(f.case.shape, _expected_shape(f), _got_shape(f)) for f in failures]
    if len({len(shape) for _, *both in pairs for shape in both}) > 1:
        return [], []
    for axis in range(len(pairs[0][1])):
        have = [
            letter for letter, name in LETTERS.items() if all(getattr(s, name, None) == e[axis] for s, e, _ in pairs)
        ]
        wanted.append(next((letter for letter in have if letter not in wanted), ""))
        came = [
            letter for letter, name in LETTERS.items() if all(getattr(s, name, None) == g[axis] for s, _, g in pairs)
        ]
        got.append(wanted[-1] if all(e[axis] == g[axis] for _, e, g in pairs) else next(iter(came), ""))
    return (wanted, got) if all(wanted) and all(got) else ([], [])


def _expected_shape(failed: Failed) -> tuple[int, ...]:
    return tuple(failed.case.expected(failed.dtype).output.shape)


def _got_shape(failed: Failed) -> tuple[int, ...]:
    return failed.reply.results["output"].shape


def undefined(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Results that are NaN in every element: no number is there to equal a mistake's, so which calls have them is said.

    Mistakes that give several of them, and would show in no passed case of such calls, are named, if there are no more
    than EITHER.  Of others nothing is said unless these calls have something in common that most passed calls lack.
    """
    groups: dict[tuple[str, ...], list[Failed]] = {}
    for failed in failures:
        results = {n: np.isnan(a.astype(np.float64)) for n, a in failed.reply.results.items() if a.size}
        names = tuple(n for n, missing in results.items() if missing.all())
        if failed.failure is Failure.VALUE and names and not failed.telling:
            groups.setdefault(names, []).append(failed)
    for names, some in groups.items():
        lost = f"NaN in every element of {' and '.join(names)}"
        given = _given_by(some, passed)
        # Those that hold in all calls before others, and of them those that give most.
        nothing: tuple[frozenset[Failed], tuple[str, ...], str] = (frozenset(), (), "")
        best, only, _ = max(given, key=lambda each: (-len(each[1]), len(each[0])), default=nothing)
        titles = list(dict.fromkeys(title for calls, words, title in given if (calls, words) == (best, only)))
        if 0 < len(titles) <= EITHER:
            words = f"{lost}, as this gives it: {' or '.join(titles)}"
            yield Explanation((Fault("undefined", some[0].case.blame.value, words, (), Words),), best, (), only)
        rest = [failed for failed in some if failed not in best or len(titles) > EITHER]
        only, kept = (
            narrowing([(f.case, f.dtype) for f in rest], [(p.case, p.dtype) for p in passed]) if rest else ((), ())
        )
        if len(rest) > 1 and only and 2 * len(kept) <= len(rest):
            fault = Fault("undefined", some[0].case.blame.value, lost, (), Words)
            yield Explanation((fault,), frozenset(rest), tuple(passed[n] for n in kept), only)


def _given_by(
    failures: Sequence[Failed], passed: Sequence[Passed]
) -> list[tuple[frozenset[Failed], tuple[str, ...], str]]:
    """Which failures known mistakes give, several each, in which calls alone, and the mistake's title.

    Those that passed cases of such calls contradict are left out.
    """
    found = []
    for fault in (fault for operator in {f.case.operator: None for f in failures} for fault in candidates_of(operator)):
        given = frozenset(failed for failed in failures if explains(fault.make, failed))
        if len({failed.case for failed in given}) > 1:
            only, kept = _narrowed(given, fault, passed)
            if not kept:
                found.append((given, only, fault.title))
    return found


def _narrowed(
    given: frozenset[Failed], fault: Fault, passed: Sequence[Passed]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The calls that a mistake is narrowed to by passed cases in which it would show, and those that it stays with."""
    against = [p for p in passed[:WITNESSES] if fails(fault.make, p.case, p.dtype, p.profile)]
    if not against:
        return (), ()
    return narrowing([(f.case, f.dtype) for f in given], [(p.case, p.dtype) for p in against])


def possible(failures: Sequence[Failed], found: Sequence[Explanation], passed: Sequence[Passed]) -> list[Explanation]:
    """Mistakes that results without a wrong number but NaN or inf may come from, as many give it: possibilities.

    A mistake is one if it gives such results, alone or beside one that was found, in all of these failures in which it
    would show, and if it would show in no passed case and changes no failure that is explained.  Of those that give the
    same failures all are said, or, of more than EITHER, none; and none while most failures have another wrong number.
    """
    values = [f for f in failures if f.failure is Failure.VALUE and f.case.size[0] <= KEPT][:MOST]
    alone = frozenset(failed for failed in values if not failed.telling)
    if 2 * len(alone) <= len(values):
        return []  # most are of another kind, which may give these too
    causes = [each for each in found if not any(fault.make is Words for fault in each.faults)]
    explained = {failed: each for each in reversed(causes) for failed in each.fits}
    ranked = sorted(causes, key=lambda each: -len(each.fits))
    singles = [(fault,) for each in ranked for fault in each.faults]
    known = [(), *dict.fromkeys([*(each.faults for each in ranked[:BESIDE]), *singles[:BESIDE]])]
    fits: dict[Fault, frozenset[Failed]] = {}
    for fault in {fault: None for operator in {f.case.operator: None for f in alone} for fault in _nan_of(operator)}:
        shown = [f for f in values if fails(fault.make, f.case, f.dtype, f.profile)]
        if not alone.intersection(shown) or any(fails(fault.make, p.case, p.dtype, p.profile) for p in passed):
            continue
        given = frozenset(f for f in shown if any(_adds_up(some, fault, f) for some in known))
        if given == set(shown) and not any(_changes(fault, failed, each) for failed, each in explained.items()):
            fits[fault] = given
    said: list[Explanation] = []
    left = alone
    while most := max((given & left for given in fits.values()), key=len, default=frozenset()):
        some = [fault for fault, given in fits.items() if given & left == most]
        titles = list(dict.fromkeys(fault.title for fault in some))
        if len(titles) <= EITHER:
            what = titles[0] if len(titles) == 1 else f"either {' or '.join(titles)}"
            sources = tuple(dict.fromkeys(source for fault in some for source in fault.sources))
            title = f"NaN or inf and no other wrong number, in the very calls and places in which this gives it: {what}"
            everywhere = frozenset.intersection(*(fits[fault] for fault in some))
            said.append(Explanation((Fault("possible", some[0].clause, title, sources, Words),), everywhere))
        left -= most
    return said


def _adds_up(some: Sequence[Fault], fault: Fault, failed: Failed) -> bool:
    """Whether a mistake gives a failure beside others, or beside none, and these without it do not."""
    both, without = combined((*some, fault)), combined(some) if some else None
    return both is not None and explains(both, failed) and not (without is not None and explains(without, failed))


def _changes(fault: Fault, failed: Failed, explanation: Explanation) -> bool:
    """Whether a mistake would show in a failure that another explains, and the two together would not give it."""
    if not fails(fault.make, failed.case, failed.dtype, failed.profile):
        return False
    both = combined((*explanation.faults, fault))
    return both is None or not explains(both, failed)


def _nan_of(operator: str) -> list[Fault]:
    """Mistakes that may give NaN or inf and no other wrong number."""
    return [*candidates_of(operator), *(form for form in forms_of(operator) if form.name in LOSING)]


def _behind(multiple: int) -> Callable[[tuple[int, ...]], tuple[slice, ...]]:
    return lambda shape: (slice(None), slice(None), slice(shape[2] // multiple * multiple, None))


#: Parts of an output (B, H, S, D) that a kernel may leave as the memory was, each smaller than the whole.
REGIONS: dict[str, Callable[[tuple[int, ...]], tuple[slice, ...]]] = {
    "the last row holds": lambda shape: (slice(None), slice(None), slice(shape[2] - 1, None)),
    "the last head holds": lambda shape: (slice(None), slice(shape[1] - 1, None)),
    "samples behind the first hold": lambda shape: (slice(1, None),),
    "the last sample holds": lambda shape: (slice(shape[0] - 1, None),),
    "the last column holds": lambda shape: (slice(None), slice(None), slice(None), slice(shape[3] - 1, None)),
    **{f"rows behind the last whole tile of {n} hold": _behind(n) for n in (2, 4, 8, 16, 32, 64, 128)},
}


def region(words: str, shape: tuple[int, ...]) -> np.ndarray:
    """Where one of REGIONS is in an output; nowhere in one of other axes."""
    inside = np.zeros(shape, bool)
    if len(shape) == 4 and inside.size:
        inside[REGIONS[words](shape)] = True
    return inside


#: A part that is none by its place: the rows that may attend to no key.
MASKED_ROWS = "fully masked rows hold"


def _part(words: str, shape: tuple[int, ...], each: Failed | Passed) -> np.ndarray:
    """Where one of REGIONS, or MASKED_ROWS, is in the output of a call."""
    if words != MASKED_ROWS:
        return region(words, shape)
    inside, lse = np.zeros(shape, bool), getattr(each.case.expected(each.dtype), "lse", None)
    if lse is not None and lse.shape == shape[:-1]:
        inside[np.isneginf(lse)] = True
    return inside


def unwritten(failures: Sequence[Failed], passed: Sequence[Passed]) -> list[Explanation]:
    """A part of the output that is wrong by itself, all else being right: memory that is never written, perhaps.

    No mistake gives the numbers there.  Most of the part is wrong in each failure, and most calls that pass have no
    such part; else nothing is said.
    """
    values = [failed for failed in failures if failed.failure is Failure.VALUE]
    parts = {words: [f for f in values if _confined(f, words)] for words in (*REGIONS, MASKED_ROWS)}
    words = max(parts, key=lambda each: len(parts[each]))
    # Where the part is the whole of a small output it says nothing of a part, and belongs to it all the same.
    some = [f for f in values if _confined(f, words, whole=True)]
    if len({failed.case for failed in parts[words]}) < FEW or 2 * len(some) < len(values):
        return []
    if words == MASKED_ROWS and any(_repeats(failed) for failed in some):
        return []  # computed of v, as a mean or sum is
    valid = [p for p in passed if not p.case.invalid]  # the others have no output
    have = [p for p in valid if (inside := _part(words, _output_shape(p), p)).any() and not inside.all()]
    only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in have])
    if 2 * len(kept) > len(some):
        return []
    title = f"{words} numbers that no mistake gives, and all else is right: perhaps that part is never written"
    fault = Fault("unwritten", some[0].case.clauses[0], title, (), Words)
    return [Explanation((fault,), frozenset(some), tuple(have[n] for n in kept), only if have else ())]


#: Calls of which no number of the inputs takes part in the scores, so that a kernel may return before it writes.
EMPTY: dict[str, Callable[[Failed | Passed], bool]] = {
    "without keys": lambda each: each.case.shape.sk == 0,
    "where queries and keys have width 0": lambda each: each.case.shape.d == 0,
}


def empty(left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Outputs of calls with nothing to compute that no mistake gives: memory that is never written, perhaps.

    Memory may hold zeros, which a mistake gives too and which may be right, so it is enough where one of several holds
    other numbers; nothing is said where such a call passes with another result.
    """
    values = [f for f in failures if f.failure is Failure.VALUE and "output" in f.reply.results]
    for words, has in EMPTY.items():
        some = [f for f in values if has(f) and (f in left or not f.reply.results["output"].any())]
        told = any(len(np.unique(f.reply.results["output"])) > 1 for f in some if f in left)
        operators = {failed.case.operator for failed in some}
        calls = [p for p in passed if has(p) and p.case.operator in operators and not p.case.invalid]
        right = any(np.any(p.case.expected(p.dtype).output) for p in calls)
        if told and not right and len({failed.case for failed in some}) > 1:
            title = f"outputs of calls {words} hold numbers that no mistake gives: perhaps they are never written"
            fault = Fault("unwritten", some[0].case.clauses[0], title, (), Words)
            yield Explanation((fault,), frozenset(some))


def _repeats(failed: Failed) -> bool:
    """Whether the fully masked rows of a head hold the same numbers, not zeros, in several rows."""
    output = failed.reply.results["output"].astype(np.float64)
    rows = np.asarray(_part(MASKED_ROWS, output.shape, failed).all(axis=-1))
    for place in np.ndindex(output.shape[:-2]):
        some = output[place][rows[place]]
        if len(some) > 1 and np.any(some) and np.allclose(some, some[0], rtol=1e-3, atol=0):
            return True
    return False


def _output_shape(each: Passed) -> tuple[int, ...]:
    output = getattr(each.case.expected(each.dtype), "output", None)
    return () if output is None else output.shape


def _confined(failed: Failed, words: str, *, whole: bool = False) -> bool:
    """Whether the wrong elements of a failure are in a part of its output, and are most of it."""
    wrong = {c.name: c.outside for c in comparisons(failed.reply, failed.case, failed.dtype, failed.profile)}
    output = wrong.pop("output", np.zeros(0, bool))
    if any(each.any() for each in wrong.values()) or not output.any():
        return False
    inside = _part(words, output.shape, failed)
    if (output & ~inside).any() or (inside.all() and not whole):
        return False
    return bool(2 * np.count_nonzero(output) > np.count_nonzero(inside))


#: Dtypes whose accuracy a result of a wider one may have, the widest first.
LOWER = {"float64": ("float32",), "float32": ("float16", "bfloat16")}


#: A step in a narrower dtype shows, somewhere, by at least this part of what the dtype resolves.
SMALLEST_STEP = 1 / 1000


def lowered(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Results that no mistake gives and that are as accurate as a narrower dtype: a step is computed in it."""
    groups: dict[tuple[str, str], list[Failed]] = {}
    for failed in failures:
        lower = next((d for d in LOWER.get(failed.dtype, ()) if _keeps(failed, d)), "")
        if lower:
            groups.setdefault((failed.dtype, lower), []).append(failed)
    for (dtype, lower), some in groups.items():
        wide = [p for p in passed if p.dtype == dtype]
        only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in wide])
        title = f"results of {dtype} have the accuracy of {lower}: some step is computed in it"
        if (len(some) > 1 or _passes_in(lower, some[0], passed)) and 2 * len(kept) <= len(some):
            fault = Fault("lowered", some[0].case.blame.accuracy, title, (), Words)
            yield Explanation((fault,), frozenset(some), tuple(wide[n] for n in kept), only)


def _passes_in(dtype: str, failed: Failed, passed: Sequence[Passed]) -> bool:
    """Whether the very case of a failure passes in a narrower dtype, where the step in it does not show."""
    return any(each.case == failed.case and each.dtype == dtype for each in passed)


def _keeps(failed: Failed, lower: str) -> bool:
    """Whether all results of a failure are within the bound of a narrower dtype, and as far off as its steps are."""
    if failed.failure is not Failure.VALUE:
        return False
    step, seen = float(ml_dtypes.finfo(lower).eps), False
    expected, bound = failed.case.expected(failed.dtype), failed.case.bound(lower, failed.profile)
    for name, array in failed.reply.results.items():
        wanted, limit = getattr(expected, name), getattr(bound, name)
        if array.shape != wanted.shape or wanted.shape != limit.shape or not wanted.any():
            return False
        wide = array.astype(np.float64)
        if not compare(name, wide, wanted, limit, failed.dtype).ok:
            return False
        with np.errstate(invalid="ignore"):
            off, size = np.abs(wide - wanted), np.abs(wanted)
        seen |= bool((off > SMALLEST_STEP * step * np.where(np.isfinite(size), size, 0)).any())
    return seen


def _says(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether it explains anything: by a wrong number that is equal, or by NaN in the very places of several results.

    NaN everywhere is no agreement: many mistakes give it.
    """
    fits = explanation.fits.intersection(left)
    if any(failed.telling for failed in fits):
        return True
    values = [failed for failed in left if failed.failure is Failure.VALUE]
    partly = {failed.case for failed in fits if failed.partly_nan}
    return len(partly) > 1 or (bool(partly) and 2 * len(fits) > len(values))


def _says_of_masked_rows(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether it explains NaN in just the fully masked rows of a single case: enough where no passed case contradicts.

    All else that it explains has to be such a case too, in every dtype in which it fails, or one without other rows.
    """
    fits = explanation.fits.intersection(left)
    cases = {failed.case for failed in fits}
    alike = {failed for failed in left if failed.case in cases}  # the same case in other dtypes
    lost = all(_lost_in_masked_rows(failed) for failed in fits)
    return alike <= explanation.fits and lost and any(failed.partly_nan for failed in fits)


def _lost_in_masked_rows(failed: Failed) -> bool:
    """Whether the fully masked rows of the output are NaN, all of each, and other rows, if there are any, are right."""
    output = failed.reply.results.get("output")
    if failed.failure is not Failure.VALUE or failed.telling or output is None:
        return False
    lost, masked = np.isnan(output.astype(np.float64)), _masked_rows(failed, output.shape)
    wrong = next(c.outside for c in comparisons(*_judged_as(failed)) if c.name == "output")
    return bool(np.array_equal(lost, masked) and np.array_equal(wrong, masked))


def _masked_rows(failed: Failed, shape: tuple[int, ...]) -> np.ndarray:
    """Where the fully masked rows of an output are; of a layer, in whose rows every head has a part, those of any."""
    heads = getattr(failed.case.expected(failed.dtype), "heads", None)
    if heads is None:
        return _part(MASKED_ROWS, shape, failed)
    empty: np.ndarray = ~heads.allowed.any(axis=3).all(axis=1)
    return np.broadcast_to(empty[..., None], shape) if empty.shape == shape[:-1] else np.zeros(shape, bool)


def _judged_as(failed: Failed) -> tuple[Reply, AnyCase, str, Profile]:
    return failed.reply, failed.case, failed.dtype, failed.profile


def _refuses(explanation: Explanation, left: Sequence[Failed]) -> bool:
    """Whether exceptions are explained by a refusal of just those calls: they have no numbers that could be equal."""
    fits = explanation.fits.intersection(left)
    if any(failed.failure is not Failure.ERROR for failed in fits):
        return True
    texts = {_exception(failed) for failed in fits}
    alike = {f for f in left if f.failure is Failure.ERROR and _exception(f) in texts}
    return alike <= fits and not explanation.only and not explanation.against


def _shown(explanation: Explanation, failures: Sequence[Failed]) -> list[Failed]:
    """The failures that its mistake would fail in the calls that it is narrowed to, with equal results or not."""
    make = combined(explanation.faults)
    calls = [f for f in failures if meets(explanation.only, (f.case, f.dtype))]
    return [f for f in calls if make is not None and fails(make, f.case, f.dtype, f.profile)]


def _by_chance(explanation: Explanation, found: Sequence[Explanation], failures: Sequence[Failed]) -> bool:
    """Whether a mistake gives a few cases, and in most of those where it would show the numbers are others.

    Those that another explanation gives which has it beside a second mistake count for it.
    """
    if len({failed.case for failed in explanation.fits}) > FEW:
        return False
    refused = sum(failed.failure is Failure.ERROR for failed in failures)
    if 2 * refused > len(failures) and not any(_speaks(failed) for failed in explanation.fits):
        return True
    beside = [e.fits for e in found if set(e.faults) > set(explanation.faults)]
    equal = explanation.fits.union(*beside)
    shown = _shown(explanation, [f for f in failures if f.failure is Failure.VALUE and f.telling])
    return 2 * len(equal.intersection(shown)) < len(shown)


def _speaks(failed: Failed) -> bool:
    """Whether few mistakes give a failure: most give one key its whole weight or none, and zeros, for other reasons."""
    if failed.failure is not Failure.VALUE:
        return True
    return failed.case.shape.sk > 1 and any(np.any(numbers.values) for numbers in failed.numbers.values())


def _convincing(explanation: Explanation, failures: Sequence[Failed]) -> bool:
    """Whether it is worth saying although cases passed that would fail with it: then it happens only sometimes."""
    values = [failed for failed in failures if failed.failure is Failure.VALUE]
    return 2 * len(explanation.fits.intersection(values)) > len(failures)


def _weighed(explanation: Explanation, passed: Sequence[Passed]) -> Explanation:
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


def _moves_diagonal(make: type[Model]) -> bool:
    """Whether rows stand at other keys, for all that counts from there."""
    attention = make.attention if issubclass(make, (Layer, Packed)) else make
    names = ("default_offset", "offset", "diagonal")
    return issubclass(attention, Attention) and any(getattr(attention, n) is not getattr(Attention, n) for n in names)


def combined(faults: Sequence[Fault]) -> type[Model] | None:
    """A model with all these faults, or None where one is a form of the other, or is of another operator."""
    made = [fault.make for fault in faults]
    if len(made) == 1:
        return made[0]
    if len({make.operator for make in made}) > 1 or any(issubclass(a, b) for a, b in itertools.permutations(made, 2)):
        return None
    within = {make.attention for make in made if issubclass(make, (Layer, Packed))} - {Attention}
    try:
        return type("Combined", tuple(made), {"attention": _merged(within)} if within else {})
    except TypeError:  # their orders of methods contradict each other
        return None


def _merged(attentions: Iterable[type[Attention]]) -> type[Attention]:
    """The attention of a layer that has several faulty ones.  Raises TypeError where they contradict each other."""
    classes = sorted(attentions, key=lambda each: (-len(each.__mro__), each.__name__))  # forms of a class before it
    return classes[0] if len(classes) == 1 else type("Combined", tuple(classes), {})
