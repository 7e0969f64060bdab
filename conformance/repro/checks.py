"""Checks of a script: the worst elements of a result, and the statements that tell whether a failure is still there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.script import WIDTH, Snippet, enclosed

#: Elements that a script checks.
CHECKED = 8


@dataclass(frozen=True)
class Element:
    """One element of one result."""

    result: str
    index: tuple[int, ...]
    expected: float
    got: float
    #: How far it may be from what is expected; 0 where NaN or an infinity is.
    bound: float
    #: Whether the dtype's largest number lies within the bound, so that it may be infinite.
    may_overflow: bool = False


def worst_elements(
    reply: Reply, case: AnyCase, dtype: str, profile: Profile, *, wrong: bool = True, count: int = CHECKED
) -> tuple[Element, ...]:
    """The worst elements of the first result that has wrong ones, worst first; () if none has.

    With ``wrong=False`` those of the first result, wrong or not.
    """
    expected, bound = case.expected(dtype), case.bound(dtype, profile)
    for name in case.results() if wrong else case.results()[:1]:
        stored = dtype if name != "lse" else "float64" if dtype == "float64" else "float32"
        got, wanted, limit = reply.results[name].astype(np.float64), getattr(expected, name), getattr(bound, name)
        share = shares(got, wanted, limit, stored).ravel()
        order = np.argsort(-share, kind="stable")[:count]
        chosen = [np.unravel_index(i, got.shape) for i in order if not (wrong and share[i] <= 1)]
        if chosen:
            return tuple(_element(name, place, got, wanted, limit, LARGEST[stored]) for place in chosen)
    return ()


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
    """What a check is written from; of results in ``swapped`` the second and third axis are to be swapped."""

    case: AnyCase
    dtype: str
    device: str
    snippet: Snippet
    #: Names of the arrays that the call is given.
    arrays: tuple[str, ...]
    elements: tuple[Element, ...]
    swapped: tuple[str, ...] = ()

    @property
    def call(self) -> list[str]:
        """The call, and its results under their names, as arrays with the axes that the reference gives them."""
        names = self.case.results()
        together = f"{', '.join(names)} = "
        lines = [self.snippet.call(together)]
        if len(lines[0].partition("\n")[0]) > WIDTH:  # many results: they get their names afterwards
            lines = [self.snippet.call("results = "), enclosed("(", names, ") = results")]
        method = self.snippet.terms.method
        lines += [f"{name} = {name}.{method}()" for name in names] if method else []
        return [*lines, *(f"{name} = {name}.swapaxes(1, 2)  # to (B, H, S, D)" for name in self.swapped)]


def check(failure: Failure, checked: Checked) -> list[str]:
    """The statements.  Raises ValueError for a failure that no call shows."""
    if failure not in _CHECKS:
        raise ValueError(f"no script shows {failure.value!r}")
    return _CHECKS[failure](checked)


def _value(x: Checked) -> list[str]:
    """Elements inside their bounds."""
    name = x.elements[0].result
    rows = [f"    {e.index!r}: ({_number(e.expected)}, {_bound(e)})," for e in x.elements]
    right = ["got == value", "abs(got - value) <= bound"]
    right += ["np.isnan(got) and np.isnan(value)"] if any(np.isnan(e.expected) for e in x.elements) else []
    right += ["got == np.copysign(np.inf, value)"] if any(e.may_overflow for e in x.elements) else []
    text = f"{name}{{list(index)}} = {{got:.9g}}, expected {{value:.9g}} ± {{bound:.3g}}"
    return [
        *x.call,
        "",
        "# By index: the exact value, and how far a correct result may be from it.",
        "expected = {",
        *rows,
        "}",
        "wrong = 0",
        "for index, (value, bound) in expected.items():",
        f"    got = float({name}[index])",
        f"    right = {' or '.join(right)}",
        "    wrong += not right",
        f"    print(f\"{text}{{'' if right else '  WRONG'}}\")",
        "if wrong:",
        "    sys.exit(1)",
        'print("OK")',
    ]


def _number(value: float) -> str:
    return repr(value) if np.isfinite(value) else f"np.{value}".replace("np.-", "-np.")


def _bound(element: Element) -> str:
    """The bound in few digits, in all of them where few would change the answer."""
    short = f"{element.bound:.3g}"
    error = abs(element.got - element.expected)
    return short if (error <= float(short)) == (error <= element.bound) else repr(element.bound)


def _form(x: Checked) -> list[str]:
    """Results with their shapes and dtypes; what raises ends the script with its traceback."""
    expected, terms = x.case.expected(x.dtype), x.snippet.terms
    rows = []
    for name in x.case.results():
        wide = ("float64",) if x.dtype == "float64" else ("float32", "float64")
        dtypes = tuple(terms.dtype(each) for each in (wide if name == "lse" else (x.dtype,)))
        rows.append(f'    ("{name}", {name}, {getattr(expected, name).shape}, {_tuple(dtypes)}),')
    return [
        *x.call,
        "wanted = [",
        *rows,
        "]",
        "for name, result, shape, dtypes in wanted:",
        f"    if not isinstance(result, {terms.array}):",
        '        sys.exit(f"{name} is a {type(result).__name__}")',
        '    print(f"{name}: shape {tuple(result.shape)}, expected {shape}; dtype {result.dtype}, expected {dtypes}")',
        "    if tuple(result.shape) != shape or str(result.dtype) not in dtypes:",
        "        sys.exit(1)",
        'print("OK")',
    ]


def _tuple(names: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


def _returns(x: Checked) -> list[str]:
    """A call that returns."""
    terms = x.snippet.terms
    done = terms.wait(x.device)
    return [x.snippet.call("results = "), *([done] if done else []), 'print("OK")']


def _refused(x: Checked) -> list[str]:
    """An exception."""
    return [
        "try:",
        x.snippet.call("results = ", depth=1),
        "except Exception as error:",
        '    print(f"OK, refused: {type(error).__name__}: {error}")',
        "else:",
        "    results = results if isinstance(results, (tuple, list)) else (results,)",
        '    print("accepted, and returned", *(getattr(each, "shape", type(each)) for each in results))',
        "    sys.exit(1)",
    ]


def _unmodified(x: Checked) -> list[str]:
    """Inputs that hold what they held."""
    arrays = [f'"{name}": {name}' for name in x.arrays]
    return [
        *_content(x),
        enclosed("inputs = {", arrays, "}"),
        "before = {name: content(a) for name, a in inputs.items()}",
        x.snippet.call("results = "),
        "modified = [name for name, a in inputs.items() if content(a) != before[name]]",
        "if modified:",
        '    sys.exit(f"modified: {modified}")',
        'print("OK")',
    ]


def _repeatable(x: Checked) -> list[str]:
    """Equal bytes from equal calls."""
    results = "results" if len(x.case.results()) > 1 else "(results,)"
    return [
        *_content(x),
        "def called():",
        x.snippet.call("results = ", depth=1),
        f"    return [content(a) for a in {results}]",
        "",
        "",
        "first = called()",
        f"for _ in range({max(x.case.repeats - 1, 1)}):",
        "    if called() != first:",
        '        sys.exit("equal calls gave unequal results")',
        'print("OK")',
    ]


def _content(x: Checked) -> list[str]:
    return ["", "def content(a):", f"    return {x.snippet.terms.content}", "", ""]


_CHECKS: dict[Failure, Callable[[Checked], list[str]]] = {
    Failure.VALUE: _value,
    Failure.SHAPE: _form,
    Failure.DTYPE: _form,
    Failure.ERROR: _form,
    Failure.NO_ERROR: _refused,
    Failure.MODIFIED: _unmodified,
    Failure.UNREPEATABLE: _repeatable,
    Failure.CRASHED: _returns,
    Failure.TIMEOUT: _returns,
}
