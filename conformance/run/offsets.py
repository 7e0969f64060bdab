"""(SDPA-46) Offsets: arrays whose elements lie 2³¹ or more apart, in which a 32-bit index reads wrong elements.

Plugged-in kernels with torch's arrays are tested, interpreted or on CUDA: they compute addresses by hand.  A small call
is made once plainly, and once for each array and each of its axes before the last, with the entries of the axis that
far apart; on the CPU the gaps take no memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.conformance.cases import AnyCase, case_named
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import Shape, random_mask
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.judge import alike
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, rerun
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run_case import ask, blank_of, request
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import to_layout
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.memory_layouts import FAR_LAYOUTS
from attention_conformance.impls.operators import PAGED, SDPA, VARLEN
from attention_conformance.impls.process.pool import Crashed, OutOfMemory, Pool, TimedOut

CLAUSE = "SDPA-46"

#: Name of a result, instead of a case's name.
NAME = "offsets/beyond-32-bits"

#: At least three entries on an axis: then no stride is 2³¹ itself, which Triton would make 64-bit for its value.
_SHAPE = Shape(b=3, hq=3, hkv=3, sq=5, sk=7, d=8, dv=8)
_WHY = "Entries of an axis far apart."

#: The cases of each operator; the first that a kernel takes is run.
CASES: Mapping[str, tuple[AnyCase, ...]] = {
    SDPA.name: (
        sdpa_case("offsets", CLAUSE, _WHY, _SHAPE),
        sdpa_case("offsets-causal", CLAUSE, _WHY, _SHAPE, is_causal=True),
    ),
    VARLEN.name: (case_named("varlen-self"),),
    PAGED.name: (case_named("paged-mixed"),),
}
MASKED = sdpa_case("offsets-mask", CLAUSE, _WHY, _SHAPE, mask=random_mask(0.6))

#: Fewest entries of an axis.
LEAST = 3

#: Texts of exceptions when there is no room for an array that far apart.
NO_ROOM = ("out of memory", "Cannot allocate memory")

HINT = (
    "Hint:     an offset that is computed in 32 bits: make an index 64-bit before it is multiplied by a stride"
    " (index.to(tl.int64), int64_t)"
)


def asked(targets: Iterable[Target]) -> list[Target]:
    """Targets to test, each implementation once per device, in the dtype with the smallest arrays.

    Parameters
    ----------
    targets
        The targets of a run.

    Returns
    -------
    list[Target]
        One target for each implementation and device.
    """
    found: dict[tuple[str, str], Target] = {}
    for target in targets:
        one = target.implementation
        kernel = target.device == "cuda" or bool(one.kernels)
        if one.folder and kernel and one.framework is Framework.TORCH and one.operator in CASES:
            key = one.name, target.device
            found[key] = min(found.get(key, target), target, key=lambda each: np.dtype(_numpy(each.dtype)).itemsize)
    return list(found.values())


def _numpy(dtype: str) -> str:
    return "float16" if dtype == "bfloat16" else dtype


def judge(target: Target, keywords: Collection[str], pool: Pool, timeout: float | None = None) -> Result:
    """The result of one target.  Never raises for what the implementation does.

    Parameters
    ----------
    target
        A target that ``asked`` gave.
    keywords
        Keywords that the implementation accepts.
    pool
        Worker processes.
    timeout
        Seconds for each call.

    Returns
    -------
    Result
        An advisory where a call with entries far apart raises, dies, or has other results than the plain one.
    """
    operator = target.implementation.operator
    fitted = [fit(case, target.implementation.envelope) for case in CASES[operator]]
    blank = replace(blank_of(target, fitted[0]), case=NAME, clauses=(CLAUSE,))
    reason, case, found = "", fitted[0], _Found()
    for case in (each for each in fitted if each.keywords <= set(keywords) and not each.unfit):
        found = _asked_of(target, case, _places(target, case), blank, pool, timeout)
        reason = found.refusal
        if not reason:
            break
    else:
        outcome = Outcome.UNSUPPORTED if reason else Outcome.NOT_APPLICABLE
        return replace(blank, outcome=outcome, reason=reason or fitted[0].unfit or "no case of it fits")
    if operator == SDPA.name and "mask" in keywords:
        masked = fit(MASKED, target.implementation.envelope)
        places = [] if masked.unfit else _places_of("mask", masked.inputs(target.dtype).keywords["mask"])
        more = _asked_of(target, masked, places, blank, pool, timeout) if places else _Found()
        found = _Found(tried=found.tried + more.tried, seen=found.seen + more.seen)
    if not found.seen:
        return replace(blank, reason=f"right with entries far apart along {', '.join(found.tried)}")
    return _advisory(blank, case, found)


@dataclass(frozen=True)
class _Found:
    """Findings of a case: a reason if it cannot be run, the arrays and axes that were tried, and the mistakes seen."""

    refusal: str = ""
    tried: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


#: An array by name, and one of its axes in the layout of the implementation.
_Place = tuple[str, int]


def _places(target: Target, case: AnyCase) -> list[_Place]:
    """The floating-point arrays, with the axes along which their entries can lie far apart."""
    found = []
    for name, array in case.inputs(target.dtype).arrays.items():
        if array.dtype.kind not in "iub":
            found += _places_of(name, to_layout(array, target.implementation.layout))
    return found


def _places_of(name: str, array: np.ndarray) -> list[_Place]:
    """The axes of an array before its last one that have at least LEAST entries."""
    return [(name, axis) for axis in range(min(array.ndim - 1, len(FAR_LAYOUTS))) if array.shape[axis] >= LEAST]


def _asked_of(
    target: Target, case: AnyCase, places: Iterable[_Place], blank: Result, pool: Pool, timeout: float | None
) -> _Found:
    try:
        plain = ask(target, request(case, target.dtype, target.device), pool, timeout)
    except (Crashed, TimedOut) as error:
        return _Found(str(error))
    if plain.status != "returned":  # the cases judge what it raises
        return _Found(plain.text)
    tried, seen = [], []
    for name, axis in places:
        wrong = _far_apart(target, case, (name, axis), plain.results, blank, pool, timeout)
        if wrong is not None:
            tried.append(f"{name} axis {axis}")
            seen += [f"{tried[-1]}: {wrong}"] if wrong else []
    return _Found("" if tried else "no room for arrays far apart", tuple(tried), tuple(seen))


def _far_apart(
    target: Target,
    case: AnyCase,
    place: _Place,
    plain: Mapping[str, np.ndarray],
    blank: Result,
    pool: Pool,
    timeout: float | None,
) -> str | None:
    """Mistake of a call with entries far apart along an axis, "" if there is none; None where there is no room."""
    given = request(case, target.dtype, target.device)
    given = replace(given, memory=tuple(FAR_LAYOUTS)[place[1]], laid_out=place[:1])
    try:
        reply = ask(target, given, pool, timeout)
    except OutOfMemory:
        return None
    except (Crashed, TimedOut) as error:
        return str(error)
    if reply.status == "unsupported" or any(said in reply.text for said in NO_ROOM):
        return None
    if reply.status == "raised":
        return reply.text
    return "" if alike(reply.results, plain, case, blank) else "results differ from those with entries close together"


def _advisory(blank: Result, case: AnyCase, found: _Found) -> Result:
    seen, reason = found.seen, "; ".join(found.seen)
    result = replace(blank, outcome=Outcome.ADVISORY, failure=Failure.VALUE, broken=CLAUSE, reason=reason)
    how = f"wrong with {len(seen)} of {len(found.tried)}"
    lines = [f"{blank.implementation} on {blank.device} in {blank.dtype}, {NAME}: {how}", *clause_lines(CLAUSE)]
    lines.append(f"Inputs:   {inputs_line(case, blank.dtype)}")
    lines.append("          one at a time, the last entry of an axis 2³¹ elements behind the first")
    lines += [f"Seen:     {seen[0]}", *(f"          {each}" for each in seen[1:]), HINT]
    lines.append(f"Rerun:    {rerun(result, '-k test_offsets')}")
    return replace(result, message="\n".join(lines))
