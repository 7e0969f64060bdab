"""Simpler inputs for a script: constants, counts along an axis and small patterns instead of drawn numbers.

The recipe that draws the numbers of a case may be longer than the point.  Each array is replaced by the simplest form,
one line long, with which the call still fails in the same way: by the same clause and results, with numbers where there
were numbers, and from the same cause.  A function may have two mistakes, and inputs that show one may hide the other,
so the explanation of the failure must explain the simpler one too.  Without an explanation no right row may become
wrong; and where every row was wrong, so that causes cannot be distinguished, the new numbers are ones on which any
mistake shows, and results must be wrong by about as much.  Biases and the output projection of a layer are left out
where the failure does not need them.  The reference recomputes the expected results, so a right function passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.cases.store import CaseStore
from attention_conformance.conformance.judging.compare import Comparison
from attention_conformance.conformance.judging.judge import comparisons
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.repro.checks import wrong_elements
from attention_conformance.conformance.repro.compose import text
from attention_conformance.conformance.repro.inputs import arrays, brief, carried
from attention_conformance.conformance.run_case import Judged
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.operators import WIDE_RESULTS

#: Failures whose inputs are simplified; for others a call costs a process or its time, or another number may matter.
SIMPLIFIED = (Failure.VALUE, Failure.SHAPE, Failure.DTYPE, Failure.ERROR, Failure.NO_ERROR, Failure.MODIFIED)

#: Seconds that the search of one script may take.
BUDGET = 8.0

#: Least error of the worst element in bounds, unless it was smaller before: another machine rounds differently.
CLEAR = 2.0

#: The factor by which an unexplained failure in all rows may become larger or smaller.
ABOUT = 4.0

#: Offset between the starts of the random-like patterns of successive arrays, so that no two are alike.
FIRST = 17

#: Lines beyond which a script is worth the search.
LONG = 40

#: Keywords that are left out together, where the failure does not need them: of a layer those that add or project
#: further, and those that request another result.
OPTIONAL = (
    ("b_q", "b_k", "b_v", "b_o"),
    ("b_q", "b_k", "b_v"),
    ("w_o", "b_o"),
    ("b_o",),
    ("w_o",),
    ("grad_lse",),
    ("return_lse",),
    ("return_weights", "average_weights"),
    ("return_weights",),
)

#: Arrays that are simplified last, as the other arrays decide which of their numbers are needed.
LAST = ("q", "k", "v", "x_q", "x_kv", "k_cache", "v_cache", "outputs", "lses", "latents")

#: Judges a case.
Judge = Callable[[AnyCase], Judged]

#: Whether the explanation of the first failure explains another case's.
Fits = Callable[[AnyCase, Judged], bool]


@dataclass(frozen=True, eq=False)
class Simpler:
    """Edit of a case that gives it other inputs."""

    #: Inputs, of the operator's type.
    held: Any
    #: The statements of the simplified arrays, by name.
    written: Mapping[str, str]
    #: Keywords of the case that are not given.
    left_out: tuple[str, ...] = ()

    def __call__(self, inputs: Any) -> Any:
        """The held inputs, whatever the case's own are."""
        return self.held


@dataclass(frozen=True)
class _Search:
    """A failure for which simpler cases are looked for."""

    judged: Judged
    case: AnyCase
    dtype: str
    judge: Judge
    fits: Fits | None
    #: When it ends, by the monotonic clock.
    end: float
    #: Whether the cause cannot be distinguished, so that only numbers on which every mistake shows are tried.
    plain: bool
    #: Keywords that are not given.
    left_out: tuple[str, ...] = ()

    def tried(self, held: Mapping[str, np.ndarray], written: Mapping[str, str]) -> tuple[Judged, AnyCase] | None:
        """The case with these arrays, and its result, if it fails like the first one; otherwise None."""
        if time.monotonic() > self.end:
            return None
        one = _case(self.case, held, written, self.dtype, self.left_out)
        if _refused(one, self.dtype) != _refused(self.case, self.dtype):
            return None
        found = self.judge(one)
        return (found, one) if same(self.judged, self.case, found, one, self.dtype, self.fits) else None


def for_script(
    judged: Judged,
    case: AnyCase,
    target: Target,
    versions: Mapping[str, str],
    judge: Judge,
    explained: Callable[[], Fits | None],
) -> tuple[Judged, AnyCase]:
    """A case with simpler inputs where a script of the case would be long, and its result.

    The given result and case where there is nothing simpler.

    Parameters
    ----------
    judged
        A result that failed.
    case
        The case that failed.
    target
        The target that failed.
    versions
        Versions of packages by name.
    judge
        Function that gives the result of the same target for another case.
    explained
        Function that gives ``fits`` of ``simpler``; called if the script is long.

    Returns
    -------
    tuple of Judged and AnyCase
        For ``compose.text``, which measures the script's length, and whose exceptions pass through.
    """
    if judged.result.failure not in SIMPLIFIED:
        return judged, case

    def lines(one: Judged, of: AnyCase) -> int:
        return text(one.result, target, of, wrong_elements(one, of, target), versions).count("\n")

    before = lines(judged, case)
    if before <= LONG:
        return judged, case
    found = simpler(judged, case, target.dtype, judge, explained())
    return found if found[1] is case or lines(*found) < before else (judged, case)


def simpler(
    judged: Judged, case: AnyCase, dtype: str, judge: Judge, fits: Fits | None, seconds: float = BUDGET
) -> tuple[Judged, AnyCase]:
    """A case with simpler inputs that fails in the same way, and its result; the given ones where there is none.

    Parameters
    ----------
    judged
        A result that fails in one of the ways of SIMPLIFIED.
    case
        The case that failed; one that needs no earlier call.
    dtype
        Dtype of the case.
    judge
        Function that gives the result of the same target for another case.
    fits
        Whether the explanation of the failure explains another case's; None without an explanation.
    seconds
        Time for all calls together.

    Returns
    -------
    tuple of Judged and AnyCase
        Either all arrays that take many lines are replaced, or none, and then only keywords may be left out.
    """
    if case.earlier() is not None or judged.result.failure not in SIMPLIFIED or judged.reply is None:
        return judged, case
    by_value = judged.result.failure is Failure.VALUE
    plain = by_value and fits is None and not _confined(judged, case, dtype)
    search = _Search(judged, case, dtype, judge, fits, time.monotonic() + seconds, plain)
    held, left, best = _without_options(search, arrays(case, dtype))
    shorter = (judged, case) if best is None else _under_original_name(case, best)
    search, written = replace(search, left_out=left), dict[str, str]()
    shorts = {name: brief(name, array) for name, array in held.items() if not _is_table(array)}
    for place, name in enumerate(sorted(shorts, key=lambda name: (bool(shorts[name]), name in LAST))):
        short = shorts[name]
        for form in () if short and plain else forms(held[name], plain=plain, first=FIRST * place):
            array = _made(form, held[name])
            found = search.tried({**held, name: array}, {**written, name: _statement(name, form, array)})
            if found is not None:
                held, best = {**held, name: array}, found
                written[name] = _statement(name, form, array)
                break
        else:
            if not short:
                return shorter
    return (judged, case) if best is None else _under_original_name(case, best)


def _under_original_name(case: AnyCase, found: tuple[Judged, AnyCase]) -> tuple[Judged, AnyCase]:
    """The result and its case under the name of the original case."""
    judged, simple = found
    return replace(judged, result=replace(judged.result, case=case.name)), replace(simple, name=case.name)


def _without_options(
    search: _Search, held: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], tuple[str, ...], tuple[Judged, AnyCase] | None]:
    """The arrays without those of OPTIONAL that the failure does not need, the names left out, and what results."""
    left, best = (), None
    given = search.case.inputs(search.dtype).keywords
    for names in OPTIONAL:
        every = (*left, *names)
        alone = "b_o" in given and "b_o" not in every and "w_o" in every
        if alone or not all(name in given and name not in left for name in names):
            continue
        rest = {name: array for name, array in held.items() if name not in names}
        found = replace(search, left_out=every).tried(rest, {})
        if found is not None:
            held, left, best = rest, every, found
    return held, left, best


def same(before: Judged, case: AnyCase, after: Judged, one: AnyCase, dtype: str, fits: Fits | None) -> bool:
    """Whether a simpler case fails like the one before: clause, results, numbers or none, clearly, and the same cause.

    Some row that was wrong must be wrong again.  Without an explanation, no other row may be, and where all rows were,
    the errors must be about as large.  A failure that is not by value must have the same reason.
    """
    a, b = before.result, after.result
    if after.reply is None or (a.failure, a.broken) != (b.failure, b.broken):
        return False
    if a.failure is not Failure.VALUE:
        return a.reason == b.reason
    assert before.reply is not None
    old, found = (_compared(judged, each, dtype) for judged, each in ((before, case), (after, one)))
    wrong = [c for c in found.values() if not c.ok]
    for new in wrong:
        was = old[new.name]
        if was.outside.shape != new.outside.shape:
            return False
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
        if fits is None and rows.all() and not _about(before, case, after, one, dtype, new.name):
            return False
    return bool(wrong) and (fits is None or fits(one, after))


def _about(before: Judged, case: AnyCase, after: Judged, one: AnyCase, dtype: str, name: str) -> bool:
    """Whether every row of a result is wrong, by about as much as before relative to its size."""
    if not _rows(_compared(after, one, dtype)[name]).all():
        return False
    sizes = [_relative(judged, each, dtype, name) for judged, each in ((before, case), (after, one))]
    return sizes[0] == sizes[1] or bool(1 / ABOUT <= sizes[1] / max(sizes[0], np.finfo(np.float64).tiny) <= ABOUT)


def _relative(judged: Judged, case: AnyCase, dtype: str, name: str) -> float:
    """The mean error of a result, relative to the mean expected size; 0 where there are no numbers."""
    assert judged.reply is not None
    expected = getattr(case.expected(dtype), name)
    with np.errstate(all="ignore"):
        error = np.abs(judged.reply.results[name].astype(np.float64) - expected)
    known = np.isfinite(error)
    if not known.any():
        return 0.0
    return float(np.mean(error[known]) / max(np.mean(np.abs(expected[known])), np.finfo(np.float64).tiny))


def _confined(judged: Judged, case: AnyCase, dtype: str) -> bool:
    """Whether each wrong result has right rows too, which distinguish causes."""
    wrong = [c for c in _compared(judged, case, dtype).values() if not c.ok]
    return all(not _rows(c).all() for c in wrong)


def _compared(judged: Judged, case: AnyCase, dtype: str) -> dict[str, Comparison]:
    """The comparisons of a reply, by result."""
    assert judged.reply is not None
    profile = Profile(judged.result.profile or Profile.WIDE)
    return {c.name: c for c in comparisons(judged.reply, case, dtype, profile)}


def _rows(compared: Comparison) -> np.ndarray:
    """The rows that have wrong elements; a row of log-sum-exps is one number."""
    wide = compared.name in WIDE_RESULTS
    return compared.outside if wide else np.any(compared.outside, -1, keepdims=True)


def _refused(case: AnyCase, dtype: str) -> str:
    """Reason why inputs are invalid, "" for valid ones."""
    try:
        case.expected(dtype)
    except InvalidInput as error:
        return str(error)
    return ""


def forms(array: np.ndarray, *, plain: bool = False, first: int = 0) -> Iterator[str]:
    """Expressions of the numbers of an array, the simplest first; they broadcast to its shape.

    Equal numbers, the identity, a count along an axis, a fixed pattern without a generator; for a mask all, one or some
    keys or rows.  With ``plain`` only random-like numbers, which differ by ``first``.
    """
    if array.ndim == 0:
        yield from ("0", "1")
        return
    rows, columns = array.shape[-2:] if array.ndim > 1 else (1, array.shape[-1])
    keys, lines = f"np.arange({columns})", f"np.arange({rows})[:, None]"
    if array.dtype == bool:
        if not plain:
            yield "True"
            yield from (f"{keys} {test}" for test in ("> 0", f"< {columns - 1}", f"< {columns // 2}", "% 2 == 0"))
            yield from (f"{lines} {test}" for test in ("> 0", f"< {rows - 1}")) if array.ndim > 1 else ()
        yield f"({lines} + {keys}) % 3 > 0" if array.ndim > 1 else f"{keys} % 3 > 0"
        return
    if not plain:
        yield from _patterns(array, keys, lines)
    half = 2.0 ** float(np.clip(np.round(np.log2(max(_spread(array), 2.0**-20) / 0.9)), -20, 5))  # of its spread
    count = f"np.arange({f'{first}, {first + array.size}' if first else array.size}).reshape{array.shape}"
    yield f"{count} ** 3 % 101 / {_short(32 / half)} - {_short(1.5 * half)}"


def _patterns(array: np.ndarray, keys: str, lines: str) -> Iterator[str]:
    """Forms of numbers that are not random-like."""
    yield "0"
    if array.ndim == 1:
        yield from ("1", f"{keys} % 5")
        return
    rows, columns = array.shape[-2:]
    if array.ndim == 2:  # a weight
        yield f"np.eye({rows})" if rows == columns else f"np.eye({rows}, {columns})"
    yield "1"
    yield f"{lines} % 5"
    yield f"{lines} % 61"
    yield f"{keys} % 5"
    outer = [_along(array, axis) for axis in range(array.ndim - 3, -1, -1) if array.shape[axis] > 1]
    yield from outer
    yield from (f"{count} + {lines} % 5" for count in outer[:1])
    yield f"{lines} % {columns} == {keys}"
    yield f"({lines} * 7 + {keys} * 3) % 11 - 5"
    yield f"np.arange({array.size}).reshape{array.shape} * 37 % 101 % 11 - 5"
    size = _size(array)
    if size and not 0.05 <= size <= 50:
        yield _short(size)
        yield from (f"{count} % 2 * {_short(size)}" for count in (lines, keys, *outer))
        yield f"(np.arange({array.size}).reshape{array.shape} * 37 % 101 % 11 - 5) / 5 * {_short(size)}"


def _spread(array: np.ndarray) -> float:
    """The standard deviation of the finite numbers."""
    numbers = array.astype(np.float64)
    return float(np.std(numbers[np.isfinite(numbers)])) if np.isfinite(numbers).any() else 0.0


def _along(array: np.ndarray, axis: int) -> str:
    """A count along an axis."""
    return f"np.arange({array.shape[axis]})[:{', None' * (array.ndim - 1 - axis)}]"


def _size(array: np.ndarray) -> float:
    """The size of the largest number, in one digit; 0 for none."""
    numbers = np.abs(array.astype(np.float64))
    return float(f"{numbers[np.isfinite(numbers)].max(initial=0):.0e}")


def _short(number: float) -> str:
    """A number, without a decimal point if it is whole."""
    return str(int(number)) if number == int(number) and abs(number) < 1e6 else repr(float(number))


def _made(form: str, array: np.ndarray) -> np.ndarray:
    return np.full(array.shape, eval(form, {"np": np}), array.dtype)  # noqa: S307  (our own text)


def _statement(name: str, form: str, array: np.ndarray) -> str:
    """The assignment of an array in a form."""
    kind = carried(array).dtype
    shown = "bool" if kind.kind == "b" else f"np.{kind}"
    if form.startswith("np.eye(") and array.ndim == 2:
        return f"{name} = {form[:-1]}, dtype={shown})"
    return f"{name} = np.full({array.shape}, {form}, {shown})"


def _is_table(array: np.ndarray) -> bool:
    """Whether an array holds places or lengths, which cannot be replaced; an integer cache has 8 bits."""
    return array.dtype.kind == "i" and array.itemsize > 1


def _case(
    case: AnyCase, held: Mapping[str, np.ndarray], written: Mapping[str, str], dtype: str, left_out: tuple[str, ...]
) -> AnyCase:
    """The case with other arrays and without some keywords, in a store of its own, where its name is the key."""
    was = case.inputs(dtype)
    keywords = {name: held.get(name, value) for name, value in was.keywords.items() if name not in left_out}
    inputs = replace(was, **{name: held[name] for name in was.arrays}, keywords=keywords)
    options = {name: value for name, value in case.options.items() if name not in left_out}
    name = f"{case.name} {hash((tuple(written.items()), left_out))}"
    one: AnyCase = replace(
        case, name=name, options=options, edit=Simpler(inputs, dict(written), left_out), store=CaseStore()
    )
    return one
