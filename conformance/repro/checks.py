"""Checks of a script: the worst elements of a result, and the statements that show whether a failure is still there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.judge import dtypes_of
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.run_case import Judged
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.script import WIDTH, Snippet, enclosed

#: Elements that a script checks.
CHECKED = 3


@dataclass(frozen=True)
class Element:
    """One element of one result."""

    result: str
    index: tuple[int, ...]
    expected: float
    got: float
    #: Largest allowed distance from the expected value; 0 where that is NaN or an infinity.
    bound: float
    #: Whether the dtype's largest number lies within the bound, so that it may be infinite.
    may_overflow: bool = False


def worst_elements(
    reply: Reply, case: AnyCase, dtype: str, profile: Profile, *, wrong: bool = True, count: int = CHECKED
) -> tuple[Element, ...]:
    """The worst elements of the first result that has wrong ones, worst first; () if none has.

    With ``wrong=False``, the worst elements of the first result, wrong or not.
    """
    expected, bound = case.expected(dtype), case.bound(dtype, profile)
    for name in case.results() if wrong else case.results()[:1]:
        stored = dtypes_of(name, dtype)[0]
        got, wanted, limit = reply.results[name].astype(np.float64), getattr(expected, name), getattr(bound, name)
        share = shares(got, wanted, limit, stored).ravel()
        order = np.argsort(-share, kind="stable")[:count]
        chosen = [np.unravel_index(i, got.shape) for i in order if not (wrong and share[i] <= 1)]
        if chosen:
            return tuple(_element(name, place, got, wanted, limit, LARGEST[stored]) for place in chosen)
    return ()


def wrong_elements(judged: Judged, case: AnyCase, target: Target) -> tuple[Element, ...]:
    """The worst elements of a result that failed by value.

    Parameters
    ----------
    judged
        A result with its reply.
    case
        The case.
    target
        The target that replied.

    Returns
    -------
    tuple[Element, ...]
        Worst first; () for every other result.
    """
    if judged.result.failure is not Failure.VALUE or judged.reply is None:
        return ()
    return worst_elements(judged.reply, case, target.dtype, target.profile)


def _element(
    name: str, place: tuple[np.intp, ...], got: np.ndarray, wanted: np.ndarray, limit: np.ndarray, largest: float
) -> Element:
    expected, bound = float(wanted[place]), float(limit[place])
    if not math.isfinite(expected):
        bound = 0.0
    overflow = math.isfinite(expected) and abs(expected) + bound > largest
    return Element(name, tuple(int(i) for i in place), expected, float(got[place]), bound, overflow)


@dataclass(frozen=True)
class Checked:
    """Source of a check; the second and third axes of the results in ``swapped`` must be swapped."""

    case: AnyCase
    dtype: str
    device: str
    snippet: Snippet
    #: Names of the arrays in the call.
    arrays: tuple[str, ...]
    elements: tuple[Element, ...]
    swapped: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """The call and its named results, as arrays with the axes of the reference's results."""
        return self.named(self.case.results())

    def named(self, names: Sequence[str]) -> str:
        """The call, and the results with these names."""
        every = self.case.results()
        lines = [self.snippet.call(f"{', '.join(every)} = ")]
        if len(every) > 2 and len(names) == 1:  # one of many
            at = f"[{every.index(names[0])}]"
            lines = [self.snippet.call(f"{names[0]} = ") + at]
            if max(map(len, lines[0].splitlines())) > WIDTH:
                lines = [self.snippet.call("results = "), f"{names[0]} = results{at}"]
        elif len(lines[0].partition("\n")[0]) > WIDTH:  # many results: they get their names afterwards
            lines = [self.snippet.call("results = "), enclosed("(", every, ") = results")]
        method = self.snippet.terms.method
        lines += [f"{name} = {name}.{method}()" for name in names] if method else []
        lines += [f"{name} = {name}.swapaxes(1, 2)  # to (B, H, S, D)" for name in self.swapped if name in names]
        return "\n".join(lines)


def check(failure: Failure, checked: Checked) -> list[str]:
    """The statements, from the failure's template.  Raises ValueError for a failure that no call shows."""
    if failure not in _TEMPLATES:
        raise ValueError(f"no script shows {failure.value!r}")
    name, fields = _TEMPLATES[failure]
    results = {
        "results": checked.snippet.call("results = "),
        "results_inside": checked.snippet.call("results = ", depth=1),
    }
    template = Template(Path(__file__).with_name("templates").joinpath(f"{name}.txt").read_text(encoding="utf-8"))
    return template.substitute(results, content=checked.snippet.terms.content, **fields(checked)).splitlines()


def _value(x: Checked) -> dict[str, str]:
    """Elements inside their bounds."""
    right = ["got == value", "abs(got - value) <= bound"]
    right += ["np.isnan(got) and np.isnan(value)"] if any(np.isnan(e.expected) for e in x.elements) else []
    right += ["got == np.copysign(np.inf, value)"] if any(e.may_overflow for e in x.elements) else []
    rows = [f"    {e.index!r}: ({_number(e.expected)}, {_bound(e)})," for e in x.elements]
    result = x.elements[0].result
    return {"call": x.named((result,)), "result": result, "rows": "\n".join(rows), "right": " or ".join(right)}


def _number(value: float) -> str:
    return repr(value) if np.isfinite(value) else f"np.{value}".replace("np.-", "-np.")


def _bound(element: Element) -> str:
    """The bound in few digits, or in all of them where few would change the verdict."""
    short = f"{element.bound:.3g}"
    error = abs(element.got - element.expected)
    return short if (error <= float(short)) == (error <= element.bound) else repr(element.bound)


def _form(x: Checked) -> dict[str, str]:
    """Results with their shapes and dtypes; an exception ends the script with its traceback."""
    expected, terms = x.case.expected(x.dtype), x.snippet.terms
    rows = []
    for name in x.case.results():
        dtypes = tuple(terms.dtype(each) for each in dtypes_of(name, x.dtype))
        rows.append(f'    ("{name}", {name}, {getattr(expected, name).shape}, {_tuple(dtypes)}),')
    return {"call": x.call, "rows": "\n".join(rows), "array": terms.array}


def _tuple(names: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


def _returns(x: Checked) -> dict[str, str]:
    """A call that returns with its results computed."""
    done = x.snippet.terms.wait(x.device)
    return {"wait": f"\n{done}" if done else ""}


def _repeatable(x: Checked) -> dict[str, str]:
    """Equal bytes from equal calls."""
    return {"each": "results" if len(x.case.results()) > 1 else "(results,)", "times": str(max(x.case.repeats - 1, 1))}


#: The template of each failure, and what is filled in apart from the call.
_TEMPLATES: dict[Failure, tuple[str, Callable[[Checked], dict[str, str]]]] = {
    Failure.VALUE: ("value", _value),
    Failure.SHAPE: ("form", _form),
    Failure.DTYPE: ("form", _form),
    Failure.ERROR: ("form", _form),
    Failure.NO_ERROR: ("refused", lambda x: {}),
    Failure.MODIFIED: (
        "unmodified",
        lambda x: {"inputs": enclosed("inputs = {", [f'"{n}": {n}' for n in x.arrays], "}")},
    ),
    Failure.UNREPEATABLE: ("repeatable", _repeatable),
    Failure.CRASHED: ("returns", _returns),
    Failure.TIMEOUT: ("returns", _returns),
}
