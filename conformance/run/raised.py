"""Limits that exceptions show: a kernel raises for every call of a dtype or a size, and for no other call.

Such a kernel is either meant only for the other calls or wrong; the run cannot know which, so the calls fail, and a
hint says what to declare.  A half-precision kernel that is given float32 is the commonest of them.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.judging.outcomes import EXECUTED, Failure, Result
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.select import builtin

#: Fewest calls that raise in one way, and fewest that do not, for a limit to be reported.
LEAST = 3

#: Numbers whose multiples kernels take as widths and lengths, the largest first.
MULTIPLES = (128, 64, 32, 16, 8, 4, 2)

#: Most characters of an exception's text that a hint quotes.
QUOTED = 80

#: The parts that differ between two texts of one exception.
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Axis:
    """A size of a call, its name in a hint, and the attribute that declares which sizes are taken."""

    size: Callable[[AnyCase], int]
    text: str
    attribute: str


#: Sizes of the cases of attention, the likeliest limit first.
AXES = (
    Axis(lambda case: case.shape.d, "D", "head_widths"),
    Axis(lambda case: case.shape.hq // max(1, case.shape.hkv), "Hq / Hkv", "group_sizes"),
    Axis(lambda case: case.shape.sq, "Sq", "query_lengths"),
    Axis(lambda case: case.shape.sk, "Sk", "key_lengths"),
)


def limit_lines(results: Iterable[Result]) -> list[str]:
    """Hints about plugged-in functions that raise for certain dtypes, or values of one size, and only for those.

    Parameters
    ----------
    results
        Results of a whole run.

    Returns
    -------
    list[str]
        A line for each kind of exception, with the attribute that declares the rest.
    """
    known = asked_cases()
    groups: dict[tuple[str, str], list[tuple[AnyCase, Result]]] = defaultdict(list)
    for result in results:
        case = known.get(result.case)
        if (
            case is not None
            and not case.invalid
            and result.outcome in EXECUTED
            and result.implementation not in builtin()
        ):
            groups[result.implementation, result.device].append((case, result))
    return [f"{name} on {device}: {text}" for (name, device), group in groups.items() for text in _limits(name, group)]


def _limits(name: str, group: Iterable[tuple[AnyCase, Result]]) -> Iterator[str]:
    raised: dict[str, list[tuple[AnyCase, Result]]] = defaultdict(list)
    taken = []
    for case, result in group:
        if result.failure is Failure.ERROR:
            raised[_NUMBERS.sub("…", result.reason)].append((case, result))
        else:
            taken.append((case, result))
    if len(taken) < LEAST:
        return
    function = name.rpartition(":")[2].partition("@")[0]
    for some in raised.values():
        found = _told_apart(some, taken) if len(some) >= LEAST else None
        if found:
            where, attribute = found
            said = textwrap.shorten(some[0][1].reason, QUOTED, placeholder=" …")
            declared = f"{function}.{attribute}, if it supports only these"
            yield f"every call {where}, raises {said!r} ({len(some)} calls): {declared}"


def _told_apart(
    raised: Collection[tuple[AnyCase, Result]], taken: Collection[tuple[AnyCase, Result]]
) -> tuple[str, str] | None:
    """Words that fit only the calls that raise, and the attribute that declares the others; None without any."""
    dtypes = [{result.dtype for _, result in some} for some in (raised, taken)]
    if not dtypes[0] & dtypes[1]:
        bad, good = ([dtype for dtype in DTYPES if dtype in some] for some in dtypes)
        kept = ", ".join(f'"{dtype}"' for dtype in good) + "," * (len(good) == 1)
        return f"in {' and '.join(bad)}, and none in {' and '.join(good)}", f"dtypes = ({kept})"
    if not all(hasattr(case.shape, "hkv") for case, _ in (*raised, *taken)):
        return None  # layers and latent attention have other sizes
    for axis in AXES:
        bad_sizes, good_sizes = ({axis.size(case) for case, _ in some} for some in (raised, taken))
        rule = "" if bad_sizes & good_sizes else _rule(bad_sizes, good_sizes)
        if rule:
            return f"in which {axis.text} is not {rule}, and none in which it is", f"{axis.attribute} = {_value(rule)}"
    return None


def _rule(bad: Collection[int], good: Collection[int]) -> str:
    """The shortest rule that holds for the good sizes and for none of the bad ones; "" if there is none."""
    if set(good) == {1}:
        return "1"
    for number in MULTIPLES:
        if not any(size % number for size in good) and all(size % number for size in bad):
            return f"a multiple of {number}"
    if max(bad) < min(good):
        return f"at least {min(good)}"
    return f"up to {max(good)}" if max(good) < min(bad) else ""


def _value(rule: str) -> str:
    return rule if rule.isdecimal() else f'"{rule.removeprefix("a ")}"'
