"""The JAX built-ins: what jax-jit and jax-nn compute, how often they compile, and that 64-bit types do not leak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.run_case import request
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls import calls
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.jax import IMPLEMENTATIONS

pytestmark = pytest.mark.slow

jax = pytest.importorskip("jax")

BY_NAME = {each.name: each for each in IMPLEMENTATIONS}

#: One or two cases for each feature and each special kind of row, value or length.
CASES = (
    ("plain", "float32"),
    ("plain", "float64"),
    ("plain", "float16"),
    ("plain", "bfloat16"),
    ("heads-4-over-2", "float32"),
    ("empty-queries", "float32"),
    ("empty-batch", "float32"),
    ("empty-row", "float32"),
    ("scale-negative", "float64"),
    ("softcap", "float32"),
    ("softcap-bias", "float32"),
    ("bias-minus-inf-row", "bfloat16"),
    ("mask-tiles", "float32"),
    ("causal-more-keys", "float32"),
    ("offset-per-batch", "float32"),
    ("window-offset-negative", "float32"),
    ("lengths-zero", "float32"),
    ("masked-nan-values", "float32"),
    ("masked-inf-values", "float32"),
    ("nan-value", "float32"),
    ("range-product-overflows", "float16"),
    ("accuracy-cancellation", "float64"),
    ("lse-tiles", "float16"),
)
WEIGHTS = (("combined-all", "float32"), ("weights-mask", "float32"))


def reply(name: str, case_name: str, dtype: str) -> calls.Reply:
    """The reply of an implementation to a case."""
    case = all_cases()[case_name]
    given = case.inputs(dtype)
    request = calls.Request.qkv("cpu", given.q, given.k, given.v, dict(given.keywords), case.memory, case.repeats)
    return calls.call(BY_NAME[name], request)


def check(name: str, case_name: str, dtype: str) -> None:
    """Assert that the reply is within the declared profile's bound, in the spec's dtype, with its inputs unchanged."""
    case, got = all_cases()[case_name], reply(name, case_name, dtype)
    assert got.status == "returned", got.text
    assert not got.modified
    assert got.results["output"].dtype == case.inputs(dtype).q.dtype
    bound = case.bound(dtype, BY_NAME[name].profile(dtype))
    for result in case.results():
        expected = getattr(case.expected(dtype), result)
        assert got.results[result].shape == expected.shape
        found = compare(result, got.results[result], expected, getattr(bound, result), str(got.results[result].dtype))
        assert found.ok, found


@pytest.mark.parametrize(("case_name", "dtype"), CASES + WEIGHTS)
def test_jit_is_within_its_bound(case_name: str, dtype: str) -> None:
    """jax-jit follows the spec."""
    check("jax-jit", case_name, dtype)


@pytest.mark.parametrize("case_name", ["invalid-dtypes", "invalid-heads", "invalid-mask-keys", "invalid-ranks"])
def test_jit_refuses_what_does_not_fit(case_name: str) -> None:
    """Inputs that do not fit together are refused under jit too, where JAX could silently truncate a dtype."""
    with pytest.raises(reference.InvalidInput):
        all_cases()[case_name].expected("float32")
    assert reply("jax-jit", case_name, "float32").status == "raised"


def run(name: str, dtype: str = "float32", shape: tuple[int, ...] = (1, 2, 3, 4), **keywords: Any) -> np.ndarray:
    """The output for ascending numbers; raises AssertionError if there is none."""
    q = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(dtype)
    got = calls.call(BY_NAME[name], calls.Request.qkv("cpu", q, q, q, keywords))
    assert got.status == "returned", got.text
    return got.results["output"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"scale": 0.5}, {"scale": -3.0}),
        ({"softcap": 2.0}, {"softcap": 30.0}),
        ({"is_causal": True, "causal_offset": 1}, {"is_causal": True, "causal_offset": -1}),
        ({"window": (2, 1)}, {"window": (0, 3)}),
        ({"window": (None, 1)}, {"window": (None, 0)}),
        ({}, {"is_causal": False, "scale": None}),
    ],
    ids=["scale", "softcap", "offset", "window", "half-open", "defaults"],
)
def test_numbers_share_one_program(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Calls that differ only in the value of a number are compiled once."""
    from attention_conformance.impls.jax.eager import attention
    from attention_conformance.impls.jax.prepare import compiled

    run("jax-jit", **first)
    programs = compiled(attention)._cache_size()
    run("jax-jit", **second)
    assert compiled(attention)._cache_size() == programs


def test_running_compiles_nothing() -> None:
    """The program is compiled when a call is prepared, so that only running it is timed."""
    from attention_conformance.impls.jax.eager import attention
    from attention_conformance.impls.jax.prepare import compiled

    q = np.zeros((1, 1, 6, 4), np.float32)
    request = calls.Request.qkv("cpu", q, q, q, {"scale": 0.5, "kv_lengths": np.array([3])})
    _, native, specification = calls.arguments(BY_NAME["jax-jit"], request)
    prepared = calls.prepared(BY_NAME["jax-jit"], attention, specification)
    programs = compiled(attention)._cache_size()
    prepared(**native)
    assert compiled(attention)._cache_size() == programs


def test_a_scale_is_as_wide_as_the_call() -> None:
    """A Python number is used in float64 in a float64 call: 1/3 is not rounded to float32."""
    q = np.full((1, 1, 1, 1), 3e5)
    k = np.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    got = calls.call(BY_NAME["jax-jit"], calls.Request.qkv("cpu", q, k, k, {"scale": 1 / 3e5, "return_lse": True}))
    assert got.results["lse"].item() == pytest.approx(np.log1p(np.e), rel=1e-14)


def test_64_bit_types_do_not_leak() -> None:
    """After a float64 call JAX computes in 32 bits again."""
    before = jax.config.jax_enable_x64
    assert run("jax-jit", "float64").dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    assert run("jax-jit", "float32", scale=0.3).dtype == np.float32


def test_nn_has_the_keywords_that_its_library_has() -> None:
    """jax-nn accepts the keywords that jax.nn.dot_product_attention can express."""
    found = calls.describe(BY_NAME["jax-nn"]).keywords
    assert found == {"mask", "bias", "is_causal", "window", "kv_lengths", "scale", "return_lse"}


@pytest.mark.parametrize("case_name", ["plain", "heads-4-over-2", "causal-more-keys", "window-open-left", "lengths"])
def test_nn_is_within_its_bound(case_name: str) -> None:
    """jax-nn follows the spec where jax.nn.dot_product_attention does: the adapter translates correctly."""
    check("jax-nn", case_name, "float32")


def test_nn_is_not_repaired() -> None:
    """A fully masked row is the mean of the values in jax.nn, and the adapter leaves it unchanged."""
    v = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
    got = calls.call(BY_NAME["jax-nn"], calls.Request.qkv("cpu", v, v, v, {"mask": np.zeros((1, 1, 3, 3), bool)}))
    assert np.array_equal(got.results["output"][0, 0], np.broadcast_to(v[0, 0].mean(axis=0), (3, 2)))


def test_nn_says_what_its_library_has_not() -> None:
    """Values that are not as wide as the keys are unsupported, with the reason."""
    got = reply("jax-nn", "value-width-larger", "float32")
    assert got.status == "unsupported"
    assert "as wide as the keys" in got.text


def test_nn_refuses_by_itself() -> None:
    """The library refuses keys of another width than the queries; the adapter does not take them for wide values."""
    assert reply("jax-nn", "invalid-widths", "float32").status == "raised"


def test_gradients_of_a_merge_are_compiled_for_the_dtypes_that_they_get() -> None:
    """The zeros of half precision have the dtypes of the case, so that nothing is compiled when it runs."""
    from attention_conformance.impls.jax import prepare

    case = every_case()["merge-grad-lse"]
    implementation, asked = BY_NAME["jax-merge-gradients"], request(case, "float16", "cpu")
    given, _, call = calls.arguments(implementation, asked)
    assert "grad_lse" in given
    zeros = prepare._zeros(call, jax.devices("cpu")[0])
    assert {name: str(a.dtype) for name, a in zeros.items()} == {name: str(a.dtype) for name, a in given.items()}


def test_the_table_names_jax() -> None:
    """Every record names JAX and requires nothing else."""
    for each in IMPLEMENTATIONS:
        assert isinstance(each, Implementation)
        assert each.framework is Framework.JAX
        assert each.requires == ("jax",)


def test_programs_are_dropped_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of memory maps compiled programs are dropped, and a call that was prepared before still runs."""
    from attention_conformance.impls.jax import prepare

    dropped: list[bool] = []
    clear = jax.clear_caches

    def counted() -> None:
        dropped.append(True)
        clear()

    monkeypatch.setattr(jax, "clear_caches", counted)
    monkeypatch.setattr(prepare, "LOOK_EVERY", 1)
    q = np.ones((1, 1, 3, 8), np.float32)
    first = calls.call(BY_NAME["jax-jit"], calls.Request.qkv("cpu", q, q, q, {"scale": 0.25}))
    assert not dropped
    monkeypatch.setattr(prepare, "MAPS_KEPT", 0)
    calls.call(BY_NAME["jax-jit"], calls.Request.qkv("cpu", q, q, q, {"softcap": 3.0}))
    assert bool(dropped) == Path("/proc/self/maps").exists()
    again = calls.call(BY_NAME["jax-jit"], calls.Request.qkv("cpu", q, q, q, {"scale": 0.25}))
    np.testing.assert_array_equal(again.results["output"], first.results["output"])
