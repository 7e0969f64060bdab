"""Excuses of the ledger for random inputs: records by their own predicate, in the rows that they spoil."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, case_named
from attention_conformance.conformance.cases.base import reference_of
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.packed import PackedShape
from attention_conformance.conformance.evidence.verdicts import heads_of
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import Deviation, Ledger, cases_meeting, read
from attention_conformance.conformance.properties.problem import Problem, RandomBias, RandomMask
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.impls.contract import DTYPES

LEDGER = read()
BY_ID = {record.id: record for record in LEDGER.deviations}


def rows(record: str, problem: Problem) -> np.ndarray:
    """The rows of a problem that a record spoils; none if it is not triggered."""
    x = problem.case().make_inputs("float32")
    expected = reference_of(x)
    found = triggers.triggered([BY_ID[record]], x, expected)
    return found[0].rows if found else np.zeros(expected.allowed.shape[:3], bool)


def test_every_predicate_belongs_to_a_record() -> None:
    """Every predicate belongs to a record, as it would hide that the record is gone."""
    assert set(triggers.SPOILS) <= set(BY_ID)


def fixed_cases() -> list[tuple[str, AnyCase, str]]:
    """Each record with each of its valid cases, in one dtype."""
    found = []
    for record in triggers.SPOILS:
        for name in (name for pattern in BY_ID[record].cases for name in cases_meeting(pattern)):
            case = case_named(name)
            if case.invalid:
                continue
            dtype = next(d for d in DTYPES[::-1] if d in case.dtypes and d in (BY_ID[record].dtypes or case.dtypes))
            found.append((record, case, dtype))
    return found


@pytest.mark.slow(3)
@pytest.mark.parametrize(("record", "case", "dtype"), fixed_cases(), ids=lambda each: getattr(each, "name", each))
def test_a_record_is_triggered_by_its_own_cases(record: str, case: AnyCase, dtype: str) -> None:
    """Each fixed case of a record triggers the record's predicate."""
    assert triggers.triggered([BY_ID[record]], case.inputs(dtype), heads_of(case.expected(dtype)))


def test_plain_problems_trigger_only_what_always_holds() -> None:
    """Without options only records of a whole dtype are triggered."""
    always = {record for record, spoils in triggers.SPOILS.items() if spoils is triggers._always}
    for record in triggers.SPOILS:
        assert rows(record, Problem("plain")).any() == (record in always), record


def test_a_row_without_a_key_is_that_row() -> None:
    """Negative offsets leave only the first two rows fully masked."""
    spoiled = rows("jax-nn-empty-row-1", Problem("rows", Shape(sq=4, sk=4), is_causal=True, causal_offset=-2))
    np.testing.assert_array_equal(spoiled[0, 0], [True, True, False, False])


def test_a_causal_scale_needs_both() -> None:
    """is_causal with a scale of 0 or below spoils everything; each alone spoils nothing."""
    record = "torch-flash-causal-scale"
    assert rows(record, Problem("both", is_causal=True, scale=-0.5)).all()
    assert rows(record, Problem("zero", is_causal=True, scale=0.0)).all()
    assert not rows(record, Problem("causal", is_causal=True)).any()
    assert not rows(record, Problem("scale", scale=-0.5)).any()


def test_the_last_causal_row_needs_more_keys() -> None:
    """Only the last row is spoiled, and only with Sq < Sk."""
    spoiled = rows("ort-mha-causal", Problem("last", Shape(sq=3, sk=5), is_causal=True))
    np.testing.assert_array_equal(spoiled[1, 1], [False, False, True])
    assert not rows("ort-mha-causal", Problem("square", Shape(sq=5, sk=5), is_causal=True)).any()


def test_broadcast_axes_are_told_apart() -> None:
    """One key for all, one row for all, rank 1, and full shapes are distinguished."""
    masks = {
        axes: Problem("axes", mask=RandomMask(0.5, axes))
        for axes in ((None,) * 4, (None, None, None, 1), (None, None, 1, None), (None,))
    }
    for record, wanted in (
        ("onnx-reference-one-key", [False, True, False, False]),
        ("torch-flash-rank-1", [False, False, False, True]),
        ("ort-attention-broadcast-1", [False, True, True, True]),
    ):
        assert [bool(rows(record, problem).any()) for problem in masks.values()] == wanted, record
    assert rows("torch-flash-rank-1", Problem("bias", bias=RandomBias(1.0, (None,)))).all()


def test_causal_and_a_mask_of_one_row_meet() -> None:
    """is_causal spoils the rows after the first with a mask of one row, all rows with one of rank 1; alone, none."""
    one_row, rank_1 = RandomMask(0.5, (None, 1, 1, None)), RandomMask(0.5, (None,))
    spoiled = rows("onnx-reference-causal-one-row", Problem("one", Shape(sq=3, sk=5), mask=one_row, is_causal=True))
    np.testing.assert_array_equal(spoiled[1, 1], [False, True, True])
    assert rows("onnx-reference-causal-rank-1", Problem("rank", mask=rank_1, is_causal=True)).all()
    for record in ("onnx-reference-causal-one-row", "onnx-reference-causal-rank-1"):
        assert not rows(record, Problem("causal", is_causal=True)).any()
        assert not rows(record, Problem("mask", mask=one_row)).any()


def test_padded_keys_of_a_layer_need_several_rows() -> None:
    """Lengths, or a mask with one row for all, trigger the record with several rows, and not with one row."""
    record = "export-mha-padding"
    lengths = Problem("lengths", Shape(b=2, sq=3, sk=5), kv_lengths=(2, 5))
    one_row = Problem("mask", Shape(sq=3, sk=5), mask=RandomMask(0.5, (None, 1, 1, None)))
    assert rows(record, lengths).all()
    assert rows(record, one_row).all()
    assert not rows(record, Problem("full", Shape(sq=3, sk=5), mask=RandomMask(0.5, (None,) * 4))).any()
    assert not rows(record, replace(lengths, shape=Shape(b=2, sq=1, sk=5))).any()


def test_padded_keys_with_anything_beside_are_no_deviation() -> None:
    """Cases that combine padding with another option, which the exported layer passes, do not trigger the record."""
    record, padding = (
        BY_ID["export-mha-padding"],
        "mha-causal-padding mha-weights-causal-padding mha-source-002-padding",
    )
    for case in map(case_named, padding.split()):
        assert case.name not in record.cases
        assert not triggers.triggered([record], case.inputs("float32"), heads_of(case.expected("float32")))


def test_products_of_vectors_need_two_axes_of_length_1() -> None:
    """A vector product needs one batch, one key head, and length 1 in two of rows, keys and width."""
    one = Shape(b=1, hq=1, hkv=1, sq=1, sk=5, d=1, dv=1)
    assert rows("jax-nn-bfloat16-vector", Problem("vector", one)).all()
    for other in (replace(one, b=2), replace(one, sq=2), replace(one, d=8)):
        assert not rows("jax-nn-bfloat16-vector", Problem("matrix", other)).any()


def packed_rows(record: str, problem: ServingProblem) -> np.ndarray:
    """The rows of a pack that a record spoils, (Hq, Tq); none if it is not triggered."""
    case = problem.case()
    x = case.make_inputs("float32")
    expected = case.make_expected(x)
    found = triggers.triggered([BY_ID[record]], x, expected)
    return found[0].rows if found else np.zeros(expected.lse.shape, bool)


def test_rows_of_a_pack_without_a_key_are_those_rows() -> None:
    """All rows of a sequence without keys, and the first of one with more queries than keys, are spoiled."""
    shape = PackedShape((2, 3, 2), (4, 1, 0))
    for record in ("jax-varlen-nn-empty-rows", "jax-varlen-nn-empty-rows-bfloat16"):
        plain, causal = (ServingProblem("pack", "varlen", shape, o) for o in ((), (("is_causal", True),)))
        np.testing.assert_array_equal(packed_rows(record, plain), [[False] * 5 + [True] * 2] * 2)
        np.testing.assert_array_equal(packed_rows(record, causal), [[False, False, True, True, False, True, True]] * 2)
        assert not packed_rows(record, replace(plain, shape=PackedShape((2, 3), (4, 1)))).any()


def test_a_pack_without_a_key_is_all_of_it() -> None:
    """The record needs a pack without any key, even after its last sequence."""
    record = "varlen-flex-no-keys"
    assert packed_rows(record, ServingProblem("none", "varlen", PackedShape((2, 1), (0, 0)))).all()
    assert not packed_rows(record, ServingProblem("some", "varlen", PackedShape((2, 1), (0, 1)))).any()
    assert not packed_rows(record, ServingProblem("behind", "varlen", PackedShape((2, 1), (0, 0), behind=3))).any()


def test_sequences_without_a_key_are_so_whatever_is_behind() -> None:
    """The record needs sequences without any key, but keys may follow the last sequence."""
    record = "varlen-nested-no-keys"
    assert packed_rows(record, ServingProblem("behind", "varlen", PackedShape((2, 1), (0, 0), behind=3))).all()
    assert not packed_rows(record, ServingProblem("some", "varlen", PackedShape((2, 1), (0, 1)))).any()


def test_the_lse_of_a_pack_is_recorded_where_it_is_requested() -> None:
    """Every row is recorded if the lse is requested."""
    shape = PackedShape((2,), (3,))
    record = "jax-varlen-nn-lse-dtype"
    assert packed_rows(record, ServingProblem("lse", "varlen", shape, (("return_lse", True),))).all()
    assert not packed_rows(record, ServingProblem("plain", "varlen", shape)).any()


def test_rows_are_spread_over_results() -> None:
    """Rows are spread in the order of a result's axes: over its other axes, and in packs with rows before heads."""
    rows = np.array([[True, False, False], [False, False, True]])
    np.testing.assert_array_equal(triggers.of_result(rows, ("row", "head", "column")), rows.T[..., None])
    np.testing.assert_array_equal(triggers.of_result(rows, ("head", "row")), rows)
    one = rows[None]
    np.testing.assert_array_equal(triggers.of_result(one, ("batch", "head", "row", "key")), one[..., None])
    np.testing.assert_array_equal(triggers.of_result(one, ("batch", "head", "row")), one)


def test_records_of_others_are_not_chosen() -> None:
    """Implementation, device, dtype and version decide which records apply."""
    record = replace(BY_ID["jax-nn-empty-row-2"], dtypes=("float32",), devices=("cpu",))
    ledger, versions = Ledger((record,)), {"jax": "0.10.2"}
    assert triggers.records("jax-nn", "cpu", "float32", ledger, versions) == (record,)
    assert not triggers.records("jax-jit", "cpu", "float32", ledger, versions)
    assert not triggers.records("jax-nn", "cuda", "float32", ledger, versions)
    assert not triggers.records("jax-nn", "cpu", "float64", ledger, versions)
    assert not triggers.records("jax-nn", "cpu", "float32", ledger, {"jax": "0.5"})


def test_records_without_a_predicate_excuse_nothing() -> None:
    """A record of fixed cases, such as accepted invalid inputs, excuses nothing for random ones."""
    record = Deviation("flex-dtypes", ("fake",), "numpy", "", "SDPA-35", ("*",), Failure.NO_ERROR, "", "")
    assert not triggers.records("fake", "cpu", "float32", Ledger((record,)), {"numpy": "2"})
