"""Paged caches: the reference, examples by hand over pages, correct variants, faults, and an advisory."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.cases.packed import PagedShape, table_of
from attention_conformance.conformance.evidence.packed_variants import PACKED, over_pages
from attention_conformance.conformance.faults.kill_matrix import LEAST, judge_faults
from attention_conformance.conformance.faults.registry import faults_of
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.spec.paged import paged
from attention_conformance.conformance.tests.exact import parse
from attention_conformance.conformance.tests.test_varlen import (
    EXAMPLES,
    assert_caught_twice,
    assert_named,
    dense,
    given,
    reply,
    result,
)
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.envelope import Envelope, Sizes
from attention_conformance.impls.numpy.paged import paged as fast
from attention_conformance.impls.process.pool import Pool

CASES = [case for case in every_case().values() if case.operator == "paged"]
BY_HAND = tomllib.loads(DATA.read_text(encoding="utf-8"))["paged"]


class Gathered:
    """The inputs of a case with the keys gathered one by one."""

    def __init__(self, x: Any) -> None:
        self.q, self.cu_seqlens_q, self.keywords = x.q, x.cu_seqlens_q, dict(x.keywords)
        new = {name: self.keywords.pop(name, None) for name in ("k_new", "v_new")}
        self.cu_seqlens_k = np.array([0, *np.cumsum(x.kv_lengths)])
        for name, cache in (("k", x.k_cache), ("v", x.v_cache)):
            rows = []
            for n, length in enumerate(x.kv_lengths):
                end, queries = x.cu_seqlens_q[n + 1], x.cu_seqlens_q[n + 1] - x.cu_seqlens_q[n]
                for j in range(length):
                    block, slot = divmod(j, cache.shape[1])
                    row = cache[x.block_table[n, block], slot]
                    if new[f"{name}_new"] is not None and j >= length - queries:
                        row = new[f"{name}_new"][end - (length - j)]
                    rows.append(row)
            setattr(self, name, np.array(rows).reshape(-1, *cache.shape[2:]))


@pytest.mark.parametrize(
    "name",
    ["mixed", "shared", "more-queries", "window", "page-17", "grouped", "new", "new-window", "widths"],
)
def test_the_reference_is_what_loops_over_keys_give(name: str) -> None:
    """The reference equals a loop over rows, with each key looked up by itself."""
    case = every_case()[f"paged-{name}"]
    x = case.inputs("float64")
    gathered = Gathered(x)
    np.testing.assert_allclose(case.expected("float64").output, dense(gathered), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("example", [each for each in EXAMPLES if "bias" not in each], ids=lambda each: each["name"])
def test_examples_by_hand_over_pages(example: Any, page: int) -> None:
    """The packed examples, with their keys in unordered pages, give the results computed by hand."""
    q, k, v, cu_q, cu_k = given(example)
    shape = PagedShape(tuple(np.diff(cu_q).tolist()), tuple(np.diff(cu_k).tolist()), 1, 1, 1, 1, page=page)
    table = table_of(shape)
    k_cache, v_cache = (np.full((shape.pages, page, 1, 1), 99.0) for _ in range(2))
    for n, length in enumerate(shape.k_lengths):
        for j in range(length):
            for cache, array in ((k_cache, k), (v_cache, v)):
                cache[table[n, j // page], j % page] = array[cu_k[n] + j]
    lengths = np.array(shape.k_lengths, np.int32)
    found = paged(q, k_cache, v_cache, cu_q, table, lengths, scale=float(np.log(2)), **example.get("options", {}))
    wanted = [[float(parse(each)) for each in row] for row in example["results"]["output"]]
    np.testing.assert_allclose(found.output[:, 0], wanted, rtol=1e-14)


@pytest.mark.parametrize("example", BY_HAND, ids=lambda each: each["name"])
def test_examples_of_caches_follow_from_their_inputs(example: Any) -> None:
    """Keys by the table, powers of two, their sum, the weighted mean and the logarithm, in fractions."""
    x, causal, row = example["inputs"], example.get("options", {}).get("is_causal", False), 0
    size = len(x["k_cache"][0])
    for n, length in enumerate(example["kv_lengths"]):
        start, end = example["cu_seqlens_q"][n : n + 2]
        places = [(example["block_table"][n][j // size], j % size) for j in range(length)]
        k, v = ([x[name][page][slot][0] for page, slot in places] for name in ("k_cache", "v_cache"))
        if "k_new" in x:
            k[length - (end - start) :] = [new[0] for new in x["k_new"][start:end]]
            v[length - (end - start) :] = [new[0] for new in x["v_new"][start:end]]
        for i in range(start, end):
            seen = length - (end - 1 - i) if causal else length
            powers = [Fraction(2) ** (x["q"][i][0] * key) if j < seen else Fraction(0) for j, key in enumerate(k)]
            assert powers == example["steps"]["powers"][row]
            total = sum(powers)
            assert total == example["steps"]["totals"][row]
            mean = sum((p * value for p, value in zip(powers, v, strict=True)), Fraction(0)) / (total or 1)
            assert [mean] == [parse(each).coefficient for each in example["results"]["output"][row]]
            lse = np.log(float(total)) if total else -np.inf
            assert float(parse(example["results"]["lse"][row])) == pytest.approx(lse, rel=1e-15)
            row += 1
    assert row == len(x["q"])
    assert set(example["clauses"]) <= set(clauses())


@pytest.mark.parametrize("function", [paged, fast], ids=["reference", "numpy"])
@pytest.mark.parametrize("example", BY_HAND, ids=lambda each: each["name"])
def test_caches_give_what_was_computed_by_hand(example: Any, function: Any) -> None:
    """The results are those of the examples, and not the wrong ones that an example lists."""
    inputs = {name: np.array(value, np.float64)[..., None, :] for name, value in example["inputs"].items()}
    tables = (np.array(example[name], np.int32) for name in ("cu_seqlens_q", "block_table", "kv_lengths"))
    arguments = [inputs.pop(name) for name in ("q", "k_cache", "v_cache")]
    found = function(*arguments, *tables, **inputs, scale=float(np.log(2)), **example.get("options", {}))
    output = getattr(found, "output", found)[:, 0]

    def numbers(value: Any) -> np.ndarray:
        return np.array([[float(parse(each)) for each in row] for row in value])

    np.testing.assert_allclose(output, numbers(example["results"]["output"]), rtol=1e-14)
    assert example["rejected"]
    for wrong in example["rejected"]:
        assert not np.allclose(output, numbers(wrong["value"])), wrong["because"]


def test_a_quantised_cache_by_hand() -> None:
    """2 · ½ = 1 and 8 · ¼ = 2 are the keys, 3 · 2 = 6 and 9 · ⅓ = 3 the values: (2¹ · 6 + 2² · 3) / (2¹ + 2²) = 4."""
    k_cache, v_cache = (np.array(stored, np.int8).reshape(1, 2, 1, 1) for stored in ([2, 8], [3, 9]))
    k_scale, v_scale = (np.array(scale, np.float32).reshape(1, 2, 1, 1) for scale in ([0.5, 0.25], [2, 1 / 3]))
    tables = np.array([0, 1], np.int32), np.array([[0]], np.int32), np.array([2], np.int32)
    q = np.ones((1, 1, 1), np.float32)
    found = paged(q, k_cache, v_cache, *tables, scale=float(np.log(2)), k_scale=k_scale, v_scale=v_scale)
    np.testing.assert_allclose(found.output, [[[4]]], rtol=1e-7)  # a third is not exact in float32


@pytest.mark.parametrize(("form", "numbers"), [("int8", 255), ("float8_e4m3fn", 253), ("float8_e5m2", 247)])
def test_caches_fill_their_format(form: str, numbers: int) -> None:
    """Caches hold positive and negative numbers up to the largest, and enough of them to expose a wrong reading."""
    case = every_case()[f"paged-quantised-{form.removeprefix('float8_')}-tensor"]
    stored = case.inputs("float32").k_cache
    assert str(stored.dtype) == form
    assert np.isfinite(stored.astype(np.float32)).all()
    assert numbers / 4 < len(np.unique(stored.view(np.uint8))) <= numbers


def test_pages_lie_in_no_order() -> None:
    """Pages are unordered, so that ignoring the table is never right by accident; shared pages are the same ones."""
    table = table_of(every_case()["paged-chunk"].shape)
    assert np.any(np.diff(table[0, :5]) != 1)
    shared = table_of(every_case()["paged-shared"].shape)
    assert (shared[:, :2] == shared[0, :2]).all()
    assert len(set(shared[:3, 2].tolist())) == 3


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", PACKED)
def test_correct_variants_pass_every_case(name: str) -> None:
    """Caches gathered for the loop, tiles, stored, dense, padded or backwards variants all pass."""
    function = over_pages(PACKED[name])
    profile = Profile.STORAGE if name == "stored" else Profile.WIDE
    dtypes = getattr(PACKED[name], "dtypes", ("float64", "float32", "float16", "bfloat16"))
    for case in (case for case in CASES if not case.invalid):
        for dtype in (dtype for dtype in case.dtypes if dtype in dtypes):
            if name == "padded" and not case.shape.sk:
                continue
            got = judge(reply_of(function, case, dtype), case, result(case, dtype, profile), every_profile=False)
            assert got.outcome is Outcome.PASSED, got.message


def reply_of(function: Any, case: Any, dtype: str) -> Any:
    """The reply of a paged function to a case."""
    return reply(function, case, dtype, "paged")


@pytest.mark.slow
def test_every_fault_is_caught_twice() -> None:
    """Each fault is caught by at least two cases."""
    assert_caught_twice("paged")


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", [fault.name for fault in faults_of("paged")][::7])
def test_a_fault_is_named(name: str) -> None:
    """Faults of pages, and of the attention within, are named."""
    assert_named(name, CASES)


def test_nan_in_unused_slots_is_advised_and_not_required() -> None:
    """(PAGED-5, a SHOULD) A kernel that lets NaN through gets an advisory, which fails nothing."""
    case = every_case()["paged-slots-nan"]
    right = case.expected("float32").output.astype(np.float32)
    returned = reply_of(lambda *a, **k: right * np.float32(np.nan), case, "float32")
    assert judge(returned, case, result(case, "float32")).outcome is Outcome.ADVISORY


def test_a_case_is_fitted_to_heads_and_widths() -> None:
    """Heads and widths change, pages and lengths do not."""
    inside = fit(every_case()["paged-mixed"], Envelope(head_widths=Sizes((64,)), value_widths=Sizes((64,))))
    assert (inside.shape.d, inside.shape.dv, inside.shape.page) == (64, 64, 4)
    assert inside.inputs("float16").k_cache.shape[3] == 64


@pytest.mark.parametrize("name", ["paged-new-in-shared-page", "paged-prefix-written-again"])
def test_what_is_written_into_a_shared_page_is_caught_twice_and_named(name: str) -> None:
    """Each fault is caught by at least two cases whose sequences share a page, in float32, and is named."""
    behind = [case for case in CASES if case.name.startswith("paged-shared-new")]
    (kill,) = judge_faults(Pool(in_process=True), [name])
    assert len([case for case in behind if "float32" in kill.caught.get(case.name, ())]) >= LEAST
    assert_named(name, behind)


def test_new_keys_behind_shared_pages_have_slots_of_their_own() -> None:
    """(PAGED-19) No two sequences of a case bring a key for one slot, which the clause leaves open."""
    for case in (case for case in CASES if case.clauses[0] == "PAGED-19"):
        x = case.inputs("float32")
        page, slots = x.k_cache.shape[1], []
        for n, length in enumerate(x.kv_lengths.tolist()):
            j = np.arange(length - int(np.diff(x.cu_seqlens_q)[n]), length)
            slots += (x.block_table[n, j // page] * page + j % page).tolist()
        assert len(set(slots)) == len(slots)
        assert len(set(x.block_table[:, 0].tolist())) == 1
