"""The adapter check: whether a plugged-in function can be called, and returns its results, as the contract says.

It calls the function on two tiny inputs before anything is judged, and distinguishes "your adapter is wrong" from
"your attention is wrong".  It repairs nothing, no verdict depends on it, and where nothing fits it reports nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attention_conformance.conformance.cases import AnyCase, Case, every_case
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.diagnosis.interpretations import Interpretation, interpretations
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.judging.judge import dtypes_of
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.run_case import Judged, request
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.operators import OPERATORS, SDPA
from attention_conformance.impls.probe import Returned
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Seconds for one tiny call, compilation included; a case may take longer.
TIMEOUT = 60.0

#: Most failures of an implementation on which an interpretation is tried, the smallest first.
TRIED = 200

#: Axes differ in length, except Sq and Sk, and D and Dv, so that swapped arguments fit and swapped axes show.
FIRST = sdpa_case("adapter", "SDPA-1", "A tiny input for the adapter check.", Shape(2, 3, 3, 5, 5, 8, 8))
#: One batch, which an adapter may squeeze away; all results are requested.
SECOND = Shape(1, 2, 2, 4, 6, 8, 8)

#: Beginning of exceptions that only say that a result is no array, or that there are too many or too few results.
NO_RESULT = "TypeError: expected"
NO_SUCH_ARGUMENT = ("unexpected keyword argument", "positional-only argument")

#: The arrays of the frameworks, in the words of a probe.
ARRAYS = ("numpy.ndarray", "torch.Tensor", "jaxlib.ArrayImpl")

#: The narrowest dtype first: it shows results that are too wide.
NARROW = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Finding:
    """Finding of the adapter check: what is wrong between the suite and a function, and how that shows in a failure."""

    text: str
    failure: Failure | None = None
    #: Texts; the reason of such a failure contains one of them.
    contains: tuple[str, ...] = ("",)
    interpretation: Interpretation | None = None
    #: Whether results are in another order, which shows if there are several.
    order: bool = False

    def explains(self, judged: Judged, case: AnyCase, target: Target) -> bool:
        """Whether a failed case fails because of this."""
        result, reply = judged.result, judged.reply
        if self.order:
            return result.failure is Failure.SHAPE and len(case.results()) > 1
        if self.interpretation is None:
            return result.failure is self.failure and any(text in result.reason for text in self.contains)
        if not isinstance(case, Case) or case.invalid or case.past is not None or reply is None:
            return False
        profile = target.profile
        if result.failure in (Failure.VALUE, Failure.SHAPE) and case.results() == ("output",):
            return self.interpretation.fits(reply.results["output"], case, target.dtype, profile)
        return result.failure is Failure.ERROR and self.interpretation.refuses(case, target.dtype)


def check(targets: Sequence[Target], keywords: Collection[str], pool: Pool, timeout: float) -> Finding | None:
    """Finding about the adapter of an implementation on one device; the targets differ only in dtype."""
    by_dtype = {target.dtype: target for target in targets}
    narrow = next(by_dtype[dtype] for dtype in NARROW if dtype in by_dtype)
    usual = by_dtype.get("float32", narrow)
    first = _first(usual, keywords)
    if first is None:
        return None
    returned = probe(usual, first, pool, timeout)
    found = _finding(returned, first, usual)
    if found is not None or returned is None or not isinstance(first, Case) or not right(returned, first, usual):
        return found
    asked = {name: True for name in ("return_weights", "return_lse") if name in keywords}
    second = sdpa_case("adapter-second", "SDPA-1", FIRST.why, SECOND, **asked)
    return _finding(probe(narrow, second, pool, timeout), second, narrow)


def adapter_lines(
    findings: Mapping[tuple[str, str], Finding], judged: Mapping[tuple[Target, AnyCase], Judged]
) -> dict[tuple[Target, AnyCase], str]:
    """The line for each failure that a finding explains, by target and case.

    Parameters
    ----------
    findings
        Findings by implementation and device.
    judged
        Results by target and case.

    Returns
    -------
    dict[tuple[Target, AnyCase], str]
        Lines of a message.
    """
    lines: dict[tuple[Target, AnyCase], str] = {}
    for (name, device), finding in findings.items():
        own = [key for key in judged if (key[0].implementation.name, key[0].device) == (name, device)]
        failed = [key for key in own if judged[key].result.outcome is Outcome.FAILED]
        for key in sorted(failed, key=lambda key: key[1].size)[:TRIED]:
            if finding.explains(judged[key], key[1], key[0]):
                lines[key] = f"Adapter:  {finding.text}"
    return lines


def _first(target: Target, keywords: Collection[str]) -> AnyCase | None:
    """The tiny input of an operator: one made for it, or else its smallest plain case."""
    if target.implementation.operator == SDPA.name:
        return FIRST
    fit = [
        case
        for case in every_case().values()
        if case.operator == target.implementation.operator and target.dtype in case.dtypes
        if case.keywords <= frozenset(keywords) and not case.invalid and not case.zeros
        if all(array.size for array in case.inputs(target.dtype).arrays.values())
    ]
    return min(fit, key=lambda case: case.size, default=None)


def probe(
    target: Target, case: AnyCase, pool: Pool, timeout: float, renamed: Mapping[str, str] | None = None
) -> Returned | None:
    """Return values of a call of a tiny case, with keywords renamed; None if the call crashed or timed out."""
    some = target.implementation
    asked = request(case, target.dtype, target.device)
    try:
        returned: Returned = pool.call(
            some, "attention_conformance.impls.probe:probe", some, asked, renamed, timeout=min(timeout, TIMEOUT)
        )
    except (Crashed, TimedOut):
        return None
    if returned.spoilt:
        pool.end(some)
    return returned


def _finding(returned: Returned | None, case: AnyCase, target: Target) -> Finding | None:
    if returned is None:
        return None
    if returned.raised:
        return _misnamed(returned.raised, target.implementation)
    return _kind(returned, target) or _number(returned) or _content(returned, case, target)


def _misnamed(raised: str, implementation: Implementation) -> Finding | None:
    arguments = OPERATORS[implementation.operator].arguments
    keyword = any(f"{NO_SUCH_ARGUMENT[0]} '{name}'" in raised for name in arguments)
    if not raised.startswith("TypeError") or not (keyword or NO_SUCH_ARGUMENT[1] in raised):
        return None
    text = f"its arguments are passed by name: name them {', '.join(arguments)}"
    return Finding(text, Failure.ERROR, NO_SUCH_ARGUMENT)


def _kind(returned: Returned, target: Target) -> Finding | None:
    """Finding about a result that is no array of the framework, is not computed yet, or is on another device."""
    framework = target.implementation.framework.value
    for value in returned.values:
        if value.awaited:
            return Finding(
                f"it returns a {value.type}, which is not a result yet: wait for it, and return the result", *_NO_ARRAY
            )
        if value.type == "NoneType":
            return Finding("it returns None: return the output", *_NO_ARRAY)
        if value.array is None and value.framework not in ("", framework):
            text = f"it returns a {value.type}, but gets arrays of {framework}: plug it in with @{value.framework}"
            return Finding(f"{text}, or convert", *_NO_ARRAY)
        if value.device not in ("", target.device):
            return Finding(f"it returns an array on {value.device}, but gets arrays on {target.device}")
        if value.array is None and value.type in ARRAYS:  # too large to copy, or sparse; a case tells
            continue
        if value.array is None:
            return Finding(f"it returns a {value.type}: return an array of {framework}", *_NO_ARRAY)
        if value.array.ndim == 0 and target.implementation.operator == SDPA.name:
            return Finding(f"it returns a {value.type} without axes: return an array", Failure.SHAPE, ("has shape ()",))
        if value.changed:
            return Finding("its result changes after it was returned: wait for it before returning")
    return None


#: The failure, and the text in its reason, of a result that is no array and of too many or too few results.
_NO_ARRAY = (Failure.ERROR, (NO_RESULT,))


def _number(returned: Returned) -> Finding | None:
    got, asked = len(returned.values), len(returned.names)
    if got == asked:
        return None
    names = ", ".join(returned.names)
    shapes = ", ".join(str(value.array.shape) for value in returned.values if value.array is not None)
    few = "an empty tuple" if got == 0 else f"{got} result{'s' if got > 1 else ''} {shapes}"
    return Finding(f"it returns {few}, expected {asked} ({names})", *_NO_ARRAY)


def _content(returned: Returned, case: AnyCase, target: Target) -> Finding | None:
    """Finding about results that are right except for their dtype, order, axis order, form or arguments."""
    if right(returned, case, target):
        wrong = wider(returned, target)
        if not wrong:
            return None
        wanted = {name: dtypes_of(name, target.dtype)[0] for name in wrong}
        dtypes = (f"{name} is in {dtype} instead of {wanted[name]}" for name, dtype in wrong.items())
        text = f"its results are right, but {', '.join(dtypes)}: convert {'it' if len(wrong) == 1 else 'them'}"
        return Finding(text, Failure.DTYPE, tuple(f"{name} has dtype" for name in wrong))
    for order in itertools.permutations(range(len(returned.values))):
        values = tuple(returned.values[i] for i in order)
        if list(order) != sorted(order) and right(Returned(values, returned.names), case, target):
            there = sorted(zip(order, returned.names, strict=True))
            text = f"it returns ({', '.join(n for _, n in there)}): return ({', '.join(returned.names)})"
            return Finding(text, order=True)
    output = returned.values[0].array
    if not isinstance(case, Case) or output is None:
        return None
    profile = target.profile
    for interpretation in interpretations(target.implementation.layout):
        if interpretation.fits(output, case, target.dtype, profile):
            return Finding(interpretation.text, interpretation=interpretation)
    return None


def wider(returned: Returned, target: Target) -> dict[str, str]:
    """The results in another dtype than they must be returned in, and that dtype."""
    values = zip(returned.names, returned.values, strict=True)
    dtypes = {name: str(value.array.dtype) for name, value in values if value.array is not None}
    return {name: dtype for name, dtype in dtypes.items() if dtype not in dtypes_of(name, target.dtype)}


def right(returned: Returned, case: AnyCase, target: Target) -> bool:
    """Whether all results keep their bounds, whatever their dtype."""
    expected, limit = case.expected(target.dtype), case.bound(target.dtype, target.profile)
    if returned.raised or len(returned.values) != len(returned.names):  # an exception has as many results as names: 0
        return False
    for name, value in zip(returned.names, returned.values, strict=True):
        wanted = getattr(expected, name)
        if value.array is None or value.array.shape != wanted.shape:
            return False
        if not compare(name, value.array, wanted, getattr(limit, name), dtypes_of(name, target.dtype)[0]).ok:
            return False
    return True
