"""Common features of failures that passed cases lack: the place to look where no known mistake fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from attention_conformance.conformance.cases import AnyCase, Shape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.impls.operators import OPERATORS

#: Keywords that cases have; only ``--invariance`` gives a number of splits.
KEYWORDS = tuple(dict.fromkeys(k for operator in OPERATORS.values() for k in operator.keywords if k != "num_splits"))

#: A failure or a passed case: its case and dtype.
Judged = tuple[AnyCase, str]

#: Least number of failures; fewer have something in common by chance.
FEWEST = 3

#: Features common to failures are reported if at most this share of the passed cases has all of them too.
RARE = 0.2


def _is_given(keyword: str) -> Callable[[AnyCase], bool]:
    past = {"past_key", "past_value"}  # a case of sdpa has them without an option of that name

    def given(case: AnyCase) -> bool:
        value = case.options.get(keyword, keyword in past & case.keywords)
        return value is not None and value is not False  # an option of a given call is an array

    return given


#: Features that a case may have, by their names in reports.
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
    """Features that all failures of a kind have, if most passed cases lack them; "" otherwise."""
    if len(failed) < FEWEST or not passed:
        return ""
    names = (*FEATURES, *sorted({dtype for _, dtype in failed}))
    common = [name for name in names if all(_has(name, each) for each in failed)]
    telling = [name for name in common if 2 * sum(_has(name, each) for each in passed) <= len(passed)]
    also = [each for each in passed if all(_has(name, each) for name in telling)]
    if not telling or len(also) > RARE * len(passed):
        return ""
    rest = f"{len(also) or 'none'} of {len(passed)} passed cases {'have' if len(also) > 1 else 'has'} that too"
    return f"all {len(failed)} failures by {kind.value} that are not explained have {' and '.join(telling)}; {rest}"


def _has(name: str, each: Judged) -> bool:
    case, dtype = each
    return FEATURES[name](case) if name in FEATURES else dtype == name


#: Further conditions that may distinguish the calls in which a mistake shows: in words where the condition holds, in
#: words where it does not.
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
    # Where chunks are the largest power of two that divides both lengths, they are of one token.
    ("where Sq and Sk are odd", "where Sq or Sk is even"): lambda case: case.shape.sq % 2 == case.shape.sk % 2 == 1,
}

#: A condition in words, and whether a call meets it.
Condition = tuple[str, Callable[[Judged], bool]]


def narrowing(fits: Sequence[Judged], against: Sequence[Judged]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Features that all failures of a cause have, and that the passed cases contradicting it lack.

    Parameters
    ----------
    fits
        Failures that the cause explains, at least one.
    against
        Passed cases that would fail with it.

    Returns
    -------
    tuple
        One condition or two in words ("with a mask", "in float16"), () where none helps, and the indices in ``against``
        of the cases that still meet them.
    """
    conditions = shared(fits)
    met = {words: frozenset(n for n, each in enumerate(against) if meets(each)) for words, meets in conditions.items()}
    every = frozenset(range(len(against)))
    kept = {chosen: every.intersection(*(met[words] for words in chosen)) for chosen in choices(conditions)}
    best = min(kept, key=lambda chosen: (len(kept[chosen]), len(chosen)))
    return best, tuple(sorted(kept[best]))


def shared(fits: Sequence[Judged]) -> dict[str, Callable[[Judged], bool]]:
    """The conditions that all failures of a cause meet, by their words."""
    return {words: meets for words, meets in _conditions(fits) if all(map(meets, fits))}


def choices(conditions: Iterable[str]) -> list[tuple[str, ...]]:
    """Sets of conditions that a cause may be narrowed to: none, one condition, or two."""
    return [(), *((words,) for words in conditions), *((b, a) for a, b in itertools.combinations(conditions, 2))]


def meets(only: Sequence[str], judged: Judged) -> bool:
    """Whether a failure or passed case meets all conditions, in the words of ``narrowing``."""
    conditions = dict(_conditions([judged]))
    return all(words in conditions and conditions[words](judged) for words in only)


def _conditions(fits: Sequence[Judged]) -> Iterator[Condition]:
    """Conditions that may distinguish calls: features that they have first, then dtypes, then features they lack."""
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
