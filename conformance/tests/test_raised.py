"""Limits shown by exceptions: a hint names the dtype or size that distinguishes calls that raise from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run.raised import limit_lines
from attention_conformance.impls.contract import DTYPES

NAME = "mine.py:attention@torch"
RAISED = "RuntimeError: expected another size than {}"


def results(
    raises: Callable[[AnyCase, str], bool], dtypes: tuple[str, ...] = DTYPES, prefix: str = "sdpa"
) -> list[Result]:
    """Results for every case of an operator in some dtypes; those that do not raise pass."""
    found = []
    for case in asked_cases().values():
        for dtype in (each for each in dtypes if each in case.dtypes and case.operator == prefix):
            passed = Result(NAME, "cuda", dtype, case.name, case.clauses, Outcome.PASSED)
            failed = replace(
                passed, outcome=Outcome.FAILED, failure=Failure.ERROR, reason=RAISED.format(len(case.name))
            )
            found.append(failed if raises(case, dtype) else passed)
    return found


OPERATORS = sorted({case.operator for case in asked_cases().values()})


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_dtype_in_which_every_call_raises_is_named(operator: str) -> None:
    """The hint has the attribute that declares the other dtypes; numbers in the text do not distinguish exceptions."""
    (line,) = limit_lines(results(lambda _, dtype: dtype in ("float32", "float64"), prefix=operator))
    assert line.startswith(
        f"{NAME} on cuda: every call in float64 and float32, and none in float16 and bfloat16, raises "
    )
    assert line.endswith('attention.dtypes = ("float16", "bfloat16"), if it supports only these')


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        (lambda case, _: case.shape.d < 16, 'head_widths = "at least 16"'),
        (lambda case, _: case.shape.d % 16 != 0, 'head_widths = "multiple of 16"'),
        (lambda case, _: case.shape.d > 128, 'head_widths = "up to 128"'),
        (lambda case, _: case.shape.hq != case.shape.hkv, "group_sizes = 1"),
        (lambda case, _: case.shape.sq % 64 != 0, 'query_lengths = "multiple of 64"'),
        (lambda case, _: case.shape.sk % 32 != 0, 'key_lengths = "multiple of 32"'),
    ],
)
def test_a_size_that_tells_calls_apart_is_named(raises: Callable[[AnyCase, str], bool], said: str) -> None:
    """The hint is a rule that holds for all calls that pass and for none that raise."""
    (line,) = limit_lines(results(raises, ("float32",)))
    assert f"attention.{said}, if it supports only these" in line


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_of_other_sizes_has_no_hint_about_them(operator: str) -> None:
    """An operator, such as a layer, whose cases have no key heads gets no hint about them."""
    names = sorted(case.name for case in asked_cases().values() if case.operator == operator)
    assert len(limit_lines(results(lambda case, _: case.name in names[::2], ("float32",), operator))) <= 1


def test_two_limits_have_a_line_each() -> None:
    """A kernel of half precision and widths from 16 on, which raises in two ways, gets two lines."""
    made = []
    for result in results(lambda case, dtype: dtype == "float32" or case.shape.d < 16, ("float32", "float16")):
        narrow = result.dtype == "float16" and result.outcome is Outcome.FAILED
        made.append(replace(result, reason="AssertionError: width") if narrow else result)
    assert ["dtypes" in line for line in limit_lines(made)] == [True, False]


@pytest.mark.parametrize(
    "raises",
    [
        lambda case, _: case.name == "plain",  # too few for a rule
        lambda case, _: "mask" in case.keywords,  # something else distinguishes them
        lambda case, dtype: dtype == "float16" and case.shape.d != 64,  # not every call of the dtype
        lambda case, _: True,  # no call passes
        lambda case, _: False,
    ],
)
def test_where_no_dtype_or_size_tells_calls_apart_nothing_is_said(raises: Callable[[AnyCase, str], bool]) -> None:
    """No hint is given if one call passes where the rule says that calls raise."""
    assert limit_lines(results(raises, ("float32", "float16"))) == []


def test_nothing_is_said_of_built_in_ones() -> None:
    """Built-in implementations declare their dtypes and sizes, so their exceptions are plain failures."""
    made = [replace(r, implementation="torch-flex") for r in results(lambda _, dtype: dtype == "float64")]
    assert limit_lines(made) == []


def test_a_wrong_value_is_no_exception() -> None:
    """A dtype in which every result is wrong gets no hint."""
    made = [
        replace(r, failure=Failure.VALUE) if r.outcome is Outcome.FAILED else r
        for r in results(lambda _, dtype: dtype == "float64")
    ]
    assert limit_lines(made) == []
