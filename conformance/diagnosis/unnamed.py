"""Lines on failures that no known mistake gives: by their words, the calls, or the places of wrong elements.

Exceptions and results of another dtype have words of their own.  Accepted invalid input, results of another shape, a
part with arbitrary numbers that is perhaps never written, results as accurate as a narrower dtype, and rows lost to a
masked score that overflows are reported by what they have in common.  Where only NaN is wrong, which many mistakes
give, the mistakes that give it in all calls in which they would show are named as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import ml_dtypes
import numpy as np

from attention_conformance.conformance.diagnosis.candidates import candidates_of, inner
from attention_conformance.conformance.diagnosis.common_features import narrowing
from attention_conformance.conformance.diagnosis.explanation import (
    BESIDE,
    FEW,
    MOST,
    WITNESSES,
    Explanation,
    Passed,
    combined,
    judged_as,
    wording,
)
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.faults.models.sdpa import Model
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import KEPT, Failed, explains, fails
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.judge import comparisons, dtypes_of
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.spec.sdpa import Expected

#: Most mistakes that are named together, by "either … or …", for results with no wrong number but NaN or inf.
EITHER = 3

#: Forms that may give only NaN or inf, in addition to the known mistakes.
LOSING = ("form-addend", "form-product")


class Words(Model):
    """Not a model: a cause that is only words, and gives no results of its own."""

    operator = ""


def _cause(
    name: str,
    clause: str,
    title: str,
    failures: Iterable[Failed],
    against: Iterable[Passed] = (),
    only: tuple[str, ...] = (),
    *,
    sources: tuple[str, ...] = (),
) -> Explanation:
    """A cause that is only words, as an explanation of some failures."""
    return Explanation((Fault(name, clause, title, sources, Words),), frozenset(failures), tuple(against), only)


def raised(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Exceptions and results of another dtype that no mistake gives, in their own words and by calls."""
    groups: dict[str, list[Failed]] = {}
    for failed in failures:
        if failed.failure is Failure.ERROR:
            groups.setdefault(f"an exception: {wording(failed)[:200]}", []).append(failed)
        elif failed.failure is Failure.DTYPE and failed.reply.results:
            groups.setdefault(_of_another_dtype(failed), []).append(failed)
    for text, some in groups.items():
        only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in passed])
        yield _cause("raised", some[0].case.clauses[0], text, some, only=() if kept else only)


def _of_another_dtype(failed: Failed) -> str:
    """Words on the first result whose dtype is wrong."""
    dtypes = {name: str(array.dtype) for name, array in failed.reply.results.items()}
    name = next(name for name, dtype in dtypes.items() if dtype not in dtypes_of(name, failed.dtype))
    what = "results" if name == "output" else name
    return f"{what} of a {failed.dtype} call {'are' if what.endswith('s') else 'is'} {dtypes[name]}"


def accepted(failures: Sequence[Failed]) -> Iterator[Explanation]:
    """Accepted invalid inputs whose results no mistake gives: the missing checks, by clause."""
    groups: dict[str, list[Failed]] = {}
    for failed in failures:
        if failed.failure is Failure.NO_ERROR:
            groups.setdefault(failed.case.clauses[0], []).append(failed)
    for clause, some in groups.items():
        cases = list(dict.fromkeys(failed.case.why.rstrip(".") for failed in some))
        more = f", and {len(cases) - EITHER} more" if len(cases) > EITHER else ""
        title = f"an invalid input is accepted: {'; '.join(cases[:EITHER])}{more}"
        yield _cause("accepted", clause, title, some)


def overflowed(failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """NaN in rows that have a masked key whose score overflows, where nothing else is wrong.

    No mistake predicts the rows: whether a sum of products overflows depends on the order of its terms.  Where none of
    these rows is right, the masked value may be what overflows.
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
    against = [have[n] for n in kept]
    yield _cause("overflowed", some[0].case.clauses[0], title, some, against, only if have else ())


def _overflowing(each: Failed | Passed) -> np.ndarray:
    """Rows of sdpa that have a masked key whose scaled score may overflow, as the sum of its terms' magnitudes does.

    A product that overflows before the scale is a known mistake (SDPA-26).
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
    """Whether only rows in which a masked score may overflow are wrong, and these are entirely NaN."""
    if failed.failure is not Failure.VALUE or failed.telling or list(failed.reply.results) != ["output"]:
        return False
    lost = np.isnan(failed.reply.results["output"].astype(np.float64))
    wrong, rows = next(c.outside for c in comparisons(*judged_as(failed))), _overflowing(failed)
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
            yield _cause("shaped", some[0].case.blame.shape, title, some)


#: Lengths of axes by their letters, those of an output first and in order.
LETTERS = {"B": "b", "Hq": "hq", "Sq": "sq", "Dv": "dv", "Sk": "sk", "Hkv": "hkv", "D": "d"}


def _axes(failures: Sequence[Failed]) -> tuple[list[str], list[str]]:
    """The letters of the expected and of the returned axes of some calls; none where an axis has no letter."""
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


def undefined(failures: Sequence[Failed], passed: Sequence[Passed], *, named: bool = True) -> Iterator[Explanation]:
    """Results that are NaN in every element: they have no number to equal a mistake's, so their calls are reported.

    Mistakes that give several of them, and would show in no passed case of such calls, are ``named``, if there are no
    more than EITHER.  The others are reported only if their calls have something in common that most passed calls lack.
    """
    groups: dict[tuple[str, ...], list[Failed]] = {}
    for failed in failures:
        results = {n: np.isnan(a.astype(np.float64)) for n, a in failed.reply.results.items() if a.size}
        names = tuple(n for n, missing in results.items() if missing.all())
        if failed.failure is Failure.VALUE and names and not failed.telling:
            groups.setdefault(names, []).append(failed)
    for names, some in groups.items():
        lost = f"NaN in every element of {' and '.join(names)}"
        given = _given_by(some, passed) if named else []
        # Mistakes that hold in all calls come before others, and those that give most before the rest.
        nothing: tuple[frozenset[Failed], tuple[str, ...], str] = (frozenset(), (), "")
        best, only, _ = max(given, key=lambda each: (-len(each[1]), len(each[0])), default=nothing)
        titles = list(dict.fromkeys(title for calls, words, title in given if (calls, words) == (best, only)))
        if 0 < len(titles) <= EITHER:
            words = f"{lost}; this mistake gives the same: {' or '.join(titles)}"
            yield _cause("undefined", some[0].case.blame.value, words, best, only=only)
        rest = [failed for failed in some if failed not in best or len(titles) > EITHER]
        only, kept = (
            narrowing([(f.case, f.dtype) for f in rest], [(p.case, p.dtype) for p in passed]) if rest else ((), ())
        )
        if len(rest) > 1 and only and 2 * len(kept) <= len(rest):
            yield _cause("undefined", some[0].case.blame.value, lost, rest, [passed[n] for n in kept], only)


def _given_by(
    failures: Sequence[Failed], passed: Sequence[Passed]
) -> list[tuple[frozenset[Failed], tuple[str, ...], str]]:
    """Failures that known mistakes give, several each, the calls each is narrowed to, and the mistake's title.

    Mistakes that passed cases of such calls contradict are left out.
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
    """The calls that a mistake is narrowed to by passed cases in which it would show, and the cases that still do."""
    against = [p for p in passed[:WITNESSES] if fails(fault.make, p.case, p.dtype, p.profile)]
    if not against:
        return (), ()
    return narrowing([(f.case, f.dtype) for f in given], [(p.case, p.dtype) for p in against])


def possible(failures: Sequence[Failed], found: Sequence[Explanation], passed: Sequence[Passed]) -> list[Explanation]:
    """Possible mistakes behind results with no wrong number but NaN or inf, which many mistakes give.

    A mistake is possible if it gives such results, alone or with one that was found, in all of these failures in which
    it would show, and if it would show in no passed case and changes no explained failure.  Mistakes that give the same
    failures are all named, or none of more than EITHER; and none while most failures have another wrong number.
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
        some = _without_forms([fault for fault, given in fits.items() if given & left == most])
        titles = list(dict.fromkeys(fault.title for fault in some))
        if len(titles) <= EITHER:
            what = titles[0] if len(titles) == 1 else f"either {' or '.join(titles)}"
            sources = tuple(dict.fromkeys(source for fault in some for source in fault.sources))
            title = f"only NaN or inf is wrong, exactly where this mistake puts it: {what}"
            everywhere = frozenset.intersection(*(fits[fault] for fault in some))
            said.append(_cause("possible", some[0].clause, title, everywhere, sources=sources))
        left -= most
    return said


def _without_forms(faults: Sequence[Fault]) -> list[Fault]:
    """Mistakes without subclasses of another one among them, which says the same more simply."""
    makes = {fault: inner(fault.make) for fault in faults}
    return [
        fault
        for fault, make in makes.items()
        if not any(make is not other and issubclass(make, other) for other in makes.values())
    ]


def _adds_up(some: Sequence[Fault], fault: Fault, failed: Failed) -> bool:
    """Whether a mistake gives a failure alone or together with others that do not give it without."""
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


#: Parts of an output (B, H, S, D) that a kernel may leave uninitialised, each smaller than the whole.
REGIONS: dict[str, Callable[[tuple[int, ...]], tuple[slice, ...]]] = {
    "the last row holds": lambda shape: (slice(None), slice(None), slice(shape[2] - 1, None)),
    "the last head holds": lambda shape: (slice(None), slice(shape[1] - 1, None)),
    "samples behind the first hold": lambda shape: (slice(1, None),),
    "the last sample holds": lambda shape: (slice(shape[0] - 1, None),),
    "the last column holds": lambda shape: (slice(None), slice(None), slice(None), slice(shape[3] - 1, None)),
    **{f"rows behind the last whole tile of {n} hold": _behind(n) for n in (2, 4, 8, 16, 32, 64, 128)},
}


def region(words: str, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of an output in one of REGIONS; none in an output with other axes."""
    inside = np.zeros(shape, bool)
    if len(shape) == 4 and inside.size:
        inside[REGIONS[words](shape)] = True
    return inside


#: A part that is not defined by its place: the rows that may attend to no key.
MASKED_ROWS = "fully masked rows hold"


def part(words: str, shape: tuple[int, ...], each: Failed | Passed) -> np.ndarray:
    """Elements of the output of a call in one of REGIONS, or in MASKED_ROWS."""
    if words != MASKED_ROWS:
        return region(words, shape)
    inside, lse = np.zeros(shape, bool), getattr(each.case.expected(each.dtype), "lse", None)
    if lse is not None and lse.shape == shape[:-1]:
        inside[np.isneginf(lse)] = True
    return inside


def unwritten(failures: Sequence[Failed], passed: Sequence[Passed]) -> list[Explanation]:
    """A part of the output that is wrong while all else is right: perhaps uninitialised memory.

    No mistake gives the numbers there.  Most of the part is wrong in each failure, and most calls that pass have no
    such part; otherwise nothing is reported.
    """
    values = [failed for failed in failures if failed.failure is Failure.VALUE]
    parts = {words: [f for f in values if _confined(f, words)] for words in (*REGIONS, MASKED_ROWS)}
    words = max(parts, key=lambda each: len(parts[each]))
    # A small output that is all in the part is no evidence for the part, but belongs to it all the same.
    some = [f for f in values if _confined(f, words, whole=True)]
    if len({failed.case for failed in parts[words]}) < FEW or 2 * len(some) < len(values):
        return []
    if words == MASKED_ROWS and any(_repeats(failed) for failed in some):
        return []  # computed from v, as a mean or sum is
    valid = [p for p in passed if not p.case.invalid]  # the others have no output
    have = [p for p in valid if (inside := part(words, _output_shape(p), p)).any() and not inside.all()]
    only, kept = narrowing([(f.case, f.dtype) for f in some], [(p.case, p.dtype) for p in have])
    if 2 * len(kept) > len(some):
        return []
    title = f"{words} numbers that no mistake gives, and all else is right: perhaps that part is never written"
    if all(_zeros(failed) for failed in some):
        title = f"{words} zeros, and all else is right"
    against = [have[n] for n in kept]
    return [_cause("unwritten", some[0].case.clauses[0], title, some, against, only if have else ())]


#: Calls in which no number of the inputs takes part in the scores, so that a kernel may return before it writes.
EMPTY: dict[str, Callable[[Failed | Passed], bool]] = {
    "without keys": lambda each: each.case.shape.sk == 0,
    "where queries and keys have width 0": lambda each: each.case.shape.d == 0,
}


def empty(left: Sequence[Failed], failures: Sequence[Failed], passed: Sequence[Passed]) -> Iterator[Explanation]:
    """Outputs of calls with nothing to compute that no mistake gives: perhaps uninitialised memory.

    Memory may hold zeros, which a mistake gives too and which may be right, so it is enough if one of several holds
    other numbers; nothing is reported where such a call passes with a result that is not zero.
    """
    values = [f for f in failures if f.failure is Failure.VALUE and "output" in f.reply.results]
    for words, has in EMPTY.items():
        some = [f for f in values if has(f) and (f in left or not f.reply.results["output"].any())]
        told = any(len(np.unique(f.reply.results["output"])) > 1 for f in some if f in left)
        operators = {failed.case.operator for failed in some}
        calls = [p for p in passed if has(p) and p.case.operator in operators and not p.case.invalid]
        right = any(np.any(p.case.expected(p.dtype).output) for p in calls)
        if told and not right and len({failed.case for failed in some}) > 1:
            title = f"outputs of calls {words} look uninitialised"
            yield _cause("unwritten", some[0].case.clauses[0], title, some)


def _zeros(failed: Failed) -> bool:
    """Whether all wrong elements of an output are 0."""
    wrong = next(c.outside for c in comparisons(*judged_as(failed)) if c.name == "output")
    return not failed.reply.results["output"][wrong].any()


def _repeats(failed: Failed) -> bool:
    """Whether the fully masked rows of a head hold the same numbers, not zeros, in several rows."""
    output = failed.reply.results["output"].astype(np.float64)
    rows = np.asarray(part(MASKED_ROWS, output.shape, failed).all(axis=-1))
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
    wrong = {c.name: c.outside for c in comparisons(*judged_as(failed))}
    output = wrong.pop("output", np.zeros(0, bool))
    if any(each.any() for each in wrong.values()) or not output.any():
        return False
    inside = part(words, output.shape, failed)
    if (output & ~inside).any() or (inside.all() and not whole):
        return False
    return bool(2 * np.count_nonzero(output) > np.count_nonzero(inside))


#: Narrower dtypes whose accuracy a result may have, by its dtype, the widest first.
LOWER = {"float64": ("float32",), "float32": ("float16", "bfloat16")}

#: A step in a narrower dtype shows, somewhere, an error of at least this share of the dtype's resolution.
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
            yield _cause("lowered", some[0].case.blame.accuracy, title, some, [wide[n] for n in kept], only)


def _passes_in(dtype: str, failed: Failed, passed: Sequence[Passed]) -> bool:
    """Whether the same case as a failure passes in a narrower dtype, where the step in it does not show."""
    return any(each.case == failed.case and each.dtype == dtype for each in passed)


def _keeps(failed: Failed, lower: str) -> bool:
    """Whether all results of a failure are within the bound of a narrower dtype, with errors as large as its steps."""
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
