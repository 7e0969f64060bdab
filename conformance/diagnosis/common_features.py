"""Common features of failures, which passed cases have not: the place to look where no known mistake fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attention_conformance.conformance.cases import AnyCase, Shape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.impls.operators import OPERATORS

#: A failure or a passed case: its case and dtype.
Judged = tuple[AnyCase, str]

#: Fewer failures have something in common by chance.
FEWEST = 3

#: What is common to failures is worth saying if at most this part of the passed cases has all of it too.
RARE = 0.2


def _given(keyword: str) -> Callable[[AnyCase], bool]:
    past = {"past_key", "past_value"}  # which a case of sdpa has without an option of that name
    return lambda case: case.options.get(keyword, keyword in past & case.keywords) not in (None, False)


#: What a case may have, in the words in which it is said.
FEATURES: dict[str, Callable[[AnyCase], bool]] = {
    **{keyword: _given(keyword) for operator in OPERATORS.values() for keyword in operator.keywords},
    "grouped heads": lambda case: isinstance(case.shape, Shape) and case.shape.hq != case.shape.hkv,
    "no batch axis": lambda case: isinstance(case.shape, LayerShape) and case.shape.unbatched,
    "one query": lambda case: case.shape.sq == 1,
    "more queries than keys": lambda case: case.shape.sq > case.shape.sk,
    "no keys": lambda case: case.shape.sk == 0,
    "more than 16 keys": lambda case: case.shape.sk > 16,
    "D ≠ Dv": lambda case: case.shape.d != case.shape.dv,
    "several equal calls": lambda case: case.repeats > 1,
    "arrays that are not contiguous": lambda case: case.memory != "contiguous",
}


def common_features_line(kind: Failure, failed: Sequence[Judged], passed: Sequence[Judged]) -> str:
    """What all failures of a kind have, if that tells them from most passed cases; "" otherwise."""
    if len(failed) < FEWEST or not passed:
        return ""
    names = (*FEATURES, *sorted({dtype for _, dtype in failed}))
    common = [name for name in names if all(_has(name, each) for each in failed)]
    telling = [name for name in common if 2 * sum(_has(name, each) for each in passed) <= len(passed)]
    also = [each for each in passed if all(_has(name, each) for name in telling)]
    if not telling or len(also) > RARE * len(passed):
        return ""
    rest = f"of {len(passed)} passed cases {len(also) or 'none'} {'have' if len(also) > 1 else 'has'} that too"
    return f"all {len(failed)} failures by {kind.value} that are not explained have {' and '.join(telling)}; {rest}"


def _has(name: str, each: Judged) -> bool:
    case, dtype = each
    return FEATURES[name](case) if name in FEATURES else dtype == name
