"""The adapter check: each wrong way to plug a function in is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from attention_conformance.conformance.adapter import Finding, adapter_lines, check
from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.run.run_checks import undeclared_dtypes
from attention_conformance.conformance.run_case import judge_case
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import builtin, plug_in, with_attributes


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Worker processes shared by the tests of this module."""
    pool = Pool(in_process=False)
    yield pool
    pool.close()


def plugged(pool: Pool, name: str) -> tuple[Implementation, frozenset[str]]:
    """A fake as a user would plug it in, and its keywords; all of them share a process."""
    place = "" if ":" in name else "attention_conformance.impls.tests.adapters:"
    implementation = replace(plug_in(f"{place}{name}"), worker="fakes")
    described = pool.call(implementation, "attention_conformance.impls.calls:describe", implementation)
    return with_attributes(implementation, described.attributes), described.keywords


def found(pool: Pool, name: str, dtypes: tuple[str, ...] = ("float32",)) -> Finding | None:
    """The adapter check's finding for a fake."""
    implementation, keywords = plugged(pool, name)
    return check([Target(implementation, "cpu", dtype) for dtype in dtypes], keywords, pool, 60)


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("heads_inside", "it computes in (B, S, H, D): set attention.layout = 'BSHD'"),
        ("heads_outside", "it computes in (B, H, S, D): remove attention.layout = 'BSHD'"),
        ("values_first", "it computes attention(q, v, k): pass q, k, v in this order"),
        ("keys_first", "it computes attention(k, q, v): pass q, k, v in this order"),
        ("other_names", "its arguments are passed by name: name them q, k, v"),
        ("attention_conformance.impls.tests.fakes:a_list", "it returns a list: return an array of numpy"),
        ("a_dictionary", "it returns a dict: return an array of numpy"),
        ("nothing", "it returns None: return the output"),
        ("a_number", "it returns a numpy.float32 without axes: return an array"),
        ("a_float", "it returns a float: return an array of numpy"),
        ("always_weights", "it returns 2 results (2, 3, 5, 8), (2, 3, 5, 5), expected 1 (output)"),
        ("never_lse", "it returns 1 result (1, 2, 4, 8), expected 2 (output, lse)"),
        ("lse_first", "it returns (lse, output): return (output, lse)"),
        ("coroutine", "it returns a coroutine, which is not a result yet: wait for it, and return the result"),
        ("future", "it returns a concurrent.Future, which is not a result yet: wait for it, and return the result"),
        ("unfinished", "its result changes after it was returned: wait for it before returning"),
        (
            "attention_conformance.impls.tests.fakes:too_wide",
            "its results are right, but output is in float64 instead of float32: convert it",
        ),
        ("attention_conformance.impls.tests.fakes:transposed", "its output is (B, S, H, D): return (B, H, S, D)"),
        ("merged", "its output is (B, S, H·D), the heads merged: return (B, H, S, D)"),
        ("without_batch", "its output has no batch axis: return (B, H, S, D)"),
        ("squeezed", "its output has no batch axis: return (B, H, S, D)"),
    ],
)
def test_a_wrong_adapter_is_named(pool: Pool, name: str, text: str) -> None:
    """For right attention behind a wrong adapter, the finding says what to change in the adapter."""
    finding = found(pool, name)
    assert finding is not None
    assert finding.text == text


@pytest.mark.slow(4)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a_tensor", "it returns a torch.Tensor, but gets arrays of numpy: plug it in with @torch, or convert"),
        (
            "an_array_of_numpy@torch",
            "it returns a numpy.ndarray, but gets arrays of torch: plug it in with @numpy, or convert",
        ),
        ("nowhere@torch", "it returns an array on meta, but gets arrays on cpu"),
    ],
)
def test_an_array_of_another_framework_or_device_is_named(pool: Pool, name: str, text: str) -> None:
    """An array of a framework or device that the function was not given is distinguished from a list."""
    pytest.importorskip("torch")
    finding = found(pool, name)
    assert finding is not None
    assert finding.text == text


def test_a_result_that_is_too_wide_in_half_precision_alone_is_named(pool: Pool) -> None:
    """A second input, of the narrowest dtype of the run, shows a result that is too wide only in half precision."""
    finding = found(pool, "too_wide_in_half", ("float32", "float16"))
    assert finding is not None
    assert finding.text == "its results are right, but output is in float32 instead of float16: convert it"


def test_the_result_of_a_wrong_dtype_is_named(pool: Pool) -> None:
    """An lse in half precision is named with the dtype that it must have, which is not that of q."""
    finding = found(pool, "lse_in_half", ("bfloat16",))
    assert finding is not None
    assert finding.text == "its results are right, but lse is in bfloat16 instead of float32: convert it"


def test_an_array_that_is_too_large_to_read_is_no_wrong_type(pool: Pool) -> None:
    """An array of the function's own framework needs no other; its cases say that its shape is wrong."""
    assert found(pool, "huge") is None


@pytest.mark.parametrize("name", ["right", "wrong", "slightly_wrong", "nan", "careless", "raises", "refuses", "aborts"])
def test_nothing_is_said_of_attention_that_is_right_or_wrong_by_itself(pool: Pool, name: str) -> None:
    """A function that is right, wrong inside, refusing or crashing has no wrong adapter."""
    assert found(pool, f"attention_conformance.impls.tests.fakes:{name}") is None


def test_what_is_only_near_another_layout_is_not_named(pool: Pool) -> None:
    """A result must equal the other reading within its bound to be named."""
    assert found(pool, "nearly_transposed") is None


@pytest.mark.parametrize("name", ["numpy-layer", "numpy-sublayer"])
def test_a_right_layer_has_no_finding(pool: Pool, name: str) -> None:
    """Operators other than sdpa are checked with their own smallest case."""
    implementation = builtin()[name]
    described = pool.call(implementation, "attention_conformance.impls.calls:describe", implementation)
    assert check([Target(implementation, "cpu", "float32")], described.keywords, pool, 60) is None


def lines(pool: Pool, name: str, case: str) -> list[str]:
    """The lines that a finding adds to the message of a fake's failure on a case, which must have failed."""
    implementation, keywords = plugged(pool, name)
    target = Target(implementation, "cpu", "float32")
    judged = judge_case(target, every_case()[case], pool, keywords, Ledger(), {}, 60)
    assert judged.result.outcome is Outcome.FAILED
    finding = check([target], keywords, pool, 60)
    assert finding is not None
    key = (implementation.name, "cpu")
    return list(adapter_lines({key: finding}, {(target, all_cases()[case]): judged}).values())


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("heads_inside", "plain-square"),
        ("heads_inside", "plain"),  # there the inputs do not fit together, read so
        ("values_first", "plain"),
        ("other_names", "plain"),
        ("a_dictionary", "plain"),
        ("a_number", "plain"),
        ("always_weights", "plain"),
        ("lse_first", "lse"),
        ("attention_conformance.impls.tests.fakes:too_wide", "plain"),
        ("attention_conformance.impls.tests.fakes:transposed", "plain"),
        ("squeezed", "one-batch"),
    ],
)
def test_a_failure_that_the_adapter_explains_says_so(pool: Pool, name: str, case: str) -> None:
    """A failure that the finding explains has the finding in its message, in one line."""
    (line,) = lines(pool, name, case)
    assert line.startswith("Adapter:  it")


@pytest.mark.parametrize(
    ("name", "case"),
    [("values_first", "invalid-lengths"), ("a_dictionary", "invalid-lengths"), ("heads_inside", "nan-value")],
)
def test_a_failure_that_the_adapter_does_not_explain_does_not_say_so(pool: Pool, name: str, case: str) -> None:
    """A failure of another kind, or with other numbers, keeps its message."""
    finding = found(pool, name)
    assert finding is not None
    implementation, keywords = plugged(pool, "attention_conformance.impls.tests.fakes:careless")
    target = Target(implementation, "cpu", "float32")
    judged = judge_case(target, every_case()[case], pool, keywords, Ledger(), {}, 60)
    assert judged.result.outcome is Outcome.FAILED
    assert not adapter_lines({(implementation.name, "cpu"): finding}, {(target, all_cases()[case]): judged})


def test_a_dtype_that_works_undeclared_is_found(pool: Pool) -> None:
    """A function that declares only float32 and is right in other dtypes has those dtypes named."""
    implementation = Implementation("right", "attention_conformance.impls.tests.fakes:right", dtypes=("float32",))
    assert undeclared_dtypes(Target(implementation, "cpu", "float32"), pool, 60) == ["float64", "float16", "bfloat16"]


def test_a_dtype_that_does_not_work_is_not_found(pool: Pool) -> None:
    """A dtype whose results come in another dtype does not count as working."""
    implementation = Implementation("too_wide", "attention_conformance.impls.tests.fakes:too_wide", dtypes=("float32",))
    assert undeclared_dtypes(Target(implementation, "cpu", "float32"), pool, 60) == ["float64"]


def test_a_dtype_that_is_refused_is_not_found(pool: Pool) -> None:
    """A dtype in which calls raise does not count as working, though no result is wrong."""
    implementation = Implementation(
        "only_float32", "attention_conformance.impls.tests.adapters:only_float32", dtypes=("float32",)
    )
    assert undeclared_dtypes(Target(implementation, "cpu", "float32"), pool, 60) == []
