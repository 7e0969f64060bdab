"""Common features of failures, which passed cases have not: the place to look where no known mistake fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from attention_conformance.conformance.cases import AnyCase, Shape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.impls.operators import OPERATORS

#: Keywords that cases have; ``--invariance`` alone gives a number of splits.
KEYWORDS = tuple(dict.fromkeys(k for operator in OPERATORS.values() for k in operator.keywords if k != "num_splits"))

#: A failure or a passed case: its case and dtype.
Judged = tuple[AnyCase, str]

#: Fewer failures have something in common by chance.
FEWEST = 3

#: What is common to failures is worth saying if at most this part of the passed cases has all of it too.
RARE = 0.2


def _is_given(keyword: str) -> Callable[[AnyCase], bool]:
    past = {"past_key", "past_value"}  # which a case of sdpa has without an option of that name

    def given(case: AnyCase) -> bool:
        value = case.options.get(keyword, keyword in past & case.keywords)
        return value is not None and value is not False  # an option of a given call is an array

    return given


#: What a case may have, in the words in which it is said.
FEATURES: dict[str, Callable[[AnyCase], bool]] = {
    **{keyword: _is_given(keyword) for keyword in KEYWORDS},
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
    """Features that all failures of a kind have, if that tells them from most passed cases; "" otherwise."""
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


#: What else may tell calls apart in which a mistake shows from those in which it does not: in words where it is so, in
#: words where it is not.
RELATIONS: dict[tuple[str, str], Callable[[AnyCase], bool]] = {
    ("with no keys", "with keys"): FEATURES["no keys"],
    ("where Sq ≠ Sk", "where Sq = Sk"): lambda case: case.shape.sq != case.shape.sk,
    ("with one query", "with several queries"): FEATURES["one query"],
    ("with more queries than keys", "with at least as many keys as queries"): FEATURES["more queries than keys"],
    ("with grouped heads", "with as many key heads as query heads"): FEATURES["grouped heads"],
    ("without a batch axis", "with a batch axis"): FEATURES["no batch axis"],
    ("where D ≠ Dv", "where D = Dv"): FEATURES["D ≠ Dv"],
    ("with more than 16 keys", "with up to 16 keys"): FEATURES["more than 16 keys"],
    ("with arrays that are not contiguous", "with contiguous arrays"): FEATURES["arrays that are not contiguous"],
    ("with a negative scale", "with a scale that is not negative"): lambda case: (
        isinstance(scale := case.options.get("scale"), (int, float)) and scale < 0
    ),
}

#: A condition in words, and whether a call meets it.
Condition = tuple[str, Callable[[Judged], bool]]


def narrowing(fits: Sequence[Judged], against: Sequence[Judged]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Features that all failures of a cause have, and the passed cases that contradict it have not.

    Parameters
    ----------
    fits
        Failures that the cause gives, at least one.
    against
        Passed cases that would fail with it.

    Returns
    -------
    tuple
        One condition or two in words ("with a mask", "in float16"), () where none helps, and the places in ``against``
        of those that meet them all the same.
    """
    conditions = {words: meets for words, meets in _conditions(fits) if all(map(meets, fits))}
    met = {words: frozenset(n for n, each in enumerate(against) if meets(each)) for words, meets in conditions.items()}
    choices: list[tuple[tuple[str, ...], frozenset[int]]] = [((), frozenset(range(len(against))))]
    choices += [((words,), some) for words, some in met.items()]
    choices += [((b, a), met[a] & met[b]) for a, b in itertools.combinations(met, 2)]
    chosen, kept = min(choices, key=lambda choice: (len(choice[1]), len(choice[0])))
    return chosen, tuple(sorted(kept))


def meets(only: Sequence[str], judged: Judged) -> bool:
    """Whether a failure or passed case is one of the calls that ``narrowing`` says in words."""
    conditions = dict(_conditions([judged]))
    return all(words in conditions and conditions[words](judged) for words in only)


def _conditions(fits: Sequence[Judged]) -> Iterator[Condition]:
    """Conditions that calls may be told apart by: what they have first, then dtypes, then what they have not."""
    for name in KEYWORDS:
        yield f"with {name}", lambda each, name=name: FEATURES[name](each[0])  # type: ignore[misc]
    for (words, _), has in RELATIONS.items():
        yield words, lambda each, has=has: has(each[0])  # type: ignore[misc]
    for dtype in sorted({dtype for _, dtype in fits}):
        yield f"in {dtype}", lambda each, dtype=dtype: each[1] == dtype  # type: ignore[misc]
    for name in KEYWORDS:
        yield f"without {name}", lambda each, name=name: not FEATURES[name](each[0])  # type: ignore[misc]
    for (_, words), has in RELATIONS.items():
        yield words, lambda each, has=has: not has(each[0])  # type: ignore[misc]
