"""Simpler inputs for a script: constants, counts along an axis and small patterns in the place of drawn numbers.

At the sizes of a kernel a case has thousands of numbers, and the recipe that draws them is longer than the point.  Each
array is replaced by the simplest form, one line long, with which the call still fails in the same way: by the same
clause and results, with numbers where there were numbers, and from the same cause.  A function may have two mistakes,
and inputs that suit one of them hide the other: what explains the failure has to explain the simpler one, too; without
an explanation no row may be wrong that was right, and where every row was wrong nothing tells causes apart, so that the
inputs stay.  What is expected is computed anew by the reference, so a right function passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.given import GivenSdpa
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.conformance.judging.compare import Comparison
from attention_conformance.conformance.judging.judge import comparisons
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.repro.checks import wrong_elements
from attention_conformance.conformance.repro.compose import text
from attention_conformance.conformance.repro.inputs import arrays, carried
from attention_conformance.conformance.run_case import Judged
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Profile

#: Numbers of an array from which on a simpler form is looked for.
MANY = 24

#: Seconds that the search of one script may take.
BUDGET = 8.0

#: How far the worst element has to be off, in bounds, unless it was nearer before: another machine rounds otherwise.
CLEAR = 2.0

#: Lines from which on a script is worth the search.
LONG = 40

#: Judges a case.
Judge = Callable[[AnyCase], Judged]

#: Whether what explains the first failure explains that of another case.
Fits = Callable[[AnyCase, Judged], bool]


@dataclass(frozen=True)
class SimplerSdpa(GivenSdpa):
    """A case of sdpa with simpler inputs, and the expressions that they are written as, by name."""

    written: Mapping[str, str] = field(default_factory=dict, compare=False)

    __hash__ = GivenSdpa.__hash__


def for_script(
    judged: Judged,
    case: AnyCase,
    target: Target,
    versions: Mapping[str, str],
    judge: Judge,
    explained: Callable[[], Fits | None],
) -> tuple[Judged, AnyCase]:
    """A case with simpler inputs where a script of the case would be long for its size, and its result.

    Only a fitted case is replaced, as any other has few numbers.  Those that are given where there is nothing simpler.

    Parameters
    ----------
    judged
        A result that failed.
    case
        What it is of.
    target
        What failed.
    versions
        Of packages by name.
    judge
        Gives the result of the same target for another case.
    explained
        Gives ``fits`` of ``simpler``; called if the script is long.

    Returns
    -------
    tuple of Judged and AnyCase
        For ``compose.text``, which is asked how long the script is, and raises.
    """
    if not case.fitted or judged.result.failure is not Failure.VALUE:
        return judged, case
    script = text(judged.result, target, case, wrong_elements(judged, case, target), versions)
    if script.count("\n") <= LONG:
        return judged, case
    return simpler(judged, case, target.dtype, judge, explained())


def simpler(
    judged: Judged, case: AnyCase, dtype: str, judge: Judge, fits: Fits | None, seconds: float = BUDGET
) -> tuple[Judged, AnyCase]:
    """A case with simpler inputs that fails in the same way, and its result; those that are given where there is none.

    Parameters
    ----------
    judged
        A result that fails by value.
    case
        What it is of; of sdpa, with contiguous arrays, and called once.
    dtype
        Of the case.
    judge
        Gives the result of the same target for another case.
    fits
        Whether the explanation of the failure explains another case's; None without an explanation.
    seconds
        For all calls together.

    Returns
    -------
    tuple of Judged and AnyCase
        All long arrays are replaced, or none.
    """
    plain = isinstance(case, Case) and case.memory == "contiguous" and case.repeats == 1 and case.earlier() is None
    if not plain or judged.result.failure is not Failure.VALUE or judged.reply is None:
        return judged, case
    assert isinstance(case, Case)
    if fits is None and not _confined(judged, case, dtype):
        return judged, case
    end = time.monotonic() + seconds
    held, written = arrays(case, dtype), dict[str, str]()
    best: tuple[Judged, AnyCase] = judged, case
    long = [name for name, array in held.items() if array.size >= MANY and array.dtype.kind != "i"]
    for name in sorted(long, key=lambda name: name in ("q", "k", "v")):  # what options need decides the rest
        for form in forms(held[name]):
            if time.monotonic() > end:
                return judged, case
            array = _made(form, held[name])
            one: AnyCase = _case(case, {**held, name: array}, {**written, name: form}, dtype)
            found = judge(one)
            if same(judged, case, found, one, dtype, fits):
                held, written, best = {**held, name: array}, {**written, name: form}, (found, one)
                break
        else:
            return judged, case
    if not written:
        return judged, case
    found, last = best
    named: AnyCase = replace(last, name=case.name, store=CaseStore())
    return replace(found, result=replace(found.result, case=case.name)), named


def same(before: Judged, case: AnyCase, after: Judged, one: AnyCase, dtype: str, fits: Fits | None) -> bool:
    """Whether a simpler case fails as the one before: clause, results, numbers or none, clearly, and the same cause.

    A row that was wrong has to be wrong again.  Without an explanation, no other one may be.
    """
    a, b = before.result, after.result
    if after.reply is None or (a.failure, a.broken) != (b.failure, b.broken):
        return False
    assert before.reply is not None
    old, found = (_compared(judged, each, dtype) for judged, each in ((before, case), (after, one)))
    wrong = [c for c in found.values() if not c.ok]
    for new in wrong:
        was = old[new.name]
        kinds = [np.isfinite(reply.results[new.name].astype(np.float64)) for reply in (before.reply, after.reply)]
        rows = _rows(was)
        if was.ok or not (new.outside & rows).any() or new.share < min(CLEAR, was.share):
            return False
        if fits is None and (new.outside & ~rows).any():
            return False
        if kinds[1][new.outside].any() and not kinds[0][was.outside].any():
            return False
        if not kinds[1][new.outside].all() and kinds[0][was.outside].all():
            return False
    return bool(wrong) and (fits is None or fits(one, after))


def _confined(judged: Judged, case: AnyCase, dtype: str) -> bool:
    """Whether there are right rows beside the wrong ones, in each wrong result; they tell causes apart."""
    wrong = [c for c in _compared(judged, case, dtype).values() if not c.ok]
    return all(not _rows(c).all() for c in wrong)


def _compared(judged: Judged, case: AnyCase, dtype: str) -> dict[str, Comparison]:
    """The comparisons of a reply, by result."""
    assert judged.reply is not None
    profile = Profile(judged.result.profile or Profile.WIDE)
    return {c.name: c for c in comparisons(judged.reply, case, dtype, profile)}


def _rows(compared: Comparison) -> np.ndarray:
    """The rows that have wrong elements; each of lse is one number."""
    return compared.outside if compared.name == "lse" else np.any(compared.outside, -1, keepdims=True)


def forms(array: np.ndarray) -> Iterator[str]:
    """Expressions of the numbers of an array, the simplest first; they broadcast to its shape.

    Equal numbers, a count along the last axis but one or two or the last, the identity, a fixed pattern without a
    generator; for a mask all, one or some keys or rows.
    """
    rows, columns = array.shape[-2:] if array.ndim > 1 else (1, array.shape[-1])
    keys, lines = f"np.arange({columns})", f"np.arange({rows})[:, None]"
    if array.dtype == bool:
        yield "True"
        yield from (f"{keys} {test}" for test in ("> 0", f"< {columns - 1}", f"< {columns // 2}", "% 2 == 0"))
        yield from (f"{lines} {test}" for test in ("> 0", f"< {rows - 1}"))
        yield f"({lines} + {keys}) % 3 > 0"
        return
    yield from ("0", "1")
    yield f"{lines} % 5"
    yield f"{lines} % 61"
    yield f"{keys} % 5"
    if array.ndim > 2 and array.shape[-3] > 1:
        heads = f"np.arange({array.shape[-3]})[:, None, None]"
        yield heads
        yield f"{heads} + {lines} % 5"
    yield f"{lines} % {columns} == {keys}"
    yield f"({lines} * 7 + {keys} * 3) % 11 - 5"
    yield f"np.arange({array.size}).reshape{array.shape} * 37 % 101 % 11 - 5"


def _made(form: str, array: np.ndarray) -> np.ndarray:
    return np.full(array.shape, eval(form, {"np": np}), array.dtype)  # noqa: S307  (our own text)


def _case(case: Case, held: Mapping[str, np.ndarray], written: Mapping[str, str], dtype: str) -> SimplerSdpa:
    """The case with other arrays, in a store of its own, as its name is the key there."""
    was = case.inputs(dtype)
    keywords = {name: held.get(name, value) for name, value in was.keywords.items()}
    inputs = Inputs(held["q"], held["k"], held["v"], keywords)
    kept: dict[str, Any] = {each.name: getattr(case, each.name) for each in fields(Case)}
    kept |= {"name": f"{case.name} {hash(tuple(written.items()))}", "store": CaseStore()}
    lines = {}
    for name, form in written.items():
        kind = carried(held[name]).dtype
        shown = "bool" if kind.kind == "b" else f"np.{kind}"
        lines[name] = f"{name} = np.full({held[name].shape}, {form}, {shown})"
    return SimplerSdpa(**kept, held=inputs, names=case.results(), written=lines)
