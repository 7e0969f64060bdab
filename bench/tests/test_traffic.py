"""The least bytes of a call, against marking what each allowed pair needs, and the roof that binds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attention_conformance.bench.machine.roofline import Roof
from attention_conformance.bench.tests.test_flops import NAMES, allowed
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.costs import flops, intensity, least_bytes, measures
from attention_conformance.bench.workloads.workload import Workload, parse

#: 100 flop/s and 10 byte/s: the roofs meet at an intensity of 10.
ROOF = Roof("cpu", "float32", 100.0, "torch", 10.0, "numpy")


def needed(w: Workload) -> int:
    """Numbers that the inputs of sdpa need, marked one by one."""
    rows, keys, pairs = set(), set(), set()
    for b, i, j in itertools.product(range(w.batch), range(w.length), range(w.keys)):
        if allowed(w, b, i, j):
            rows.add((b, i))
            keys.add((b, j))
            pairs.add((i, j))
    read_keys = w.batch * w.keys if w.past else len(keys)
    numbers = len(rows) * w.heads * w.width + read_keys * w.kv_heads * (w.width + w.value_width)
    return numbers + (len(pairs) * w.heads if w.has_bias else 0)


@pytest.mark.parametrize("name", [*NAMES, "prefill-b2h2d3s7-w2-bias-pad", "prefill-b2h2d3s9-causal-bias-pad"])
def test_inputs_are_what_allowed_pairs_need(name: str) -> None:
    """Rows that see a key, keys that are seen, pairs of a bias; grouped heads once."""
    w = parse(name)
    results = sum(int(np.prod(shape)) for shape in arguments.results(w).values())
    lengths = 8 * w.batch if w.is_padded else 0
    assert least_bytes(w, "float32") == 4 * (needed(w) + results) + lengths


def test_a_plain_call_reads_three_arrays_and_writes_one() -> None:
    """2 bytes a number in half precision."""
    assert least_bytes(parse("prefill-b1h8d64s1024"), "bfloat16") == 2 * 4 * 8 * 1024 * 64


def test_grouped_keys_are_read_once() -> None:
    """Four query heads over one key head read an eighth of the keys and values that the widths suggest."""
    plain, grouped = parse("prefill-b1h8d64s128"), parse("prefill-b1h8g2d64s128")
    assert least_bytes(plain, "float32") - least_bytes(grouped, "float32") == 4 * 2 * 6 * 128 * 64


def test_keys_behind_the_window_of_all_rows_are_not_read() -> None:
    """Padding makes short what no row of a sequence sees."""
    assert least_bytes(parse("prefill-b2h1d8s64-pad"), "float32") < least_bytes(parse("prefill-b2h1d8s64"), "float32")


def test_gradients_read_what_the_forward_pass_does_and_its_gradient() -> None:
    """And write three arrays."""
    assert least_bytes(parse("prefill-b1h8d64s128-grad"), "float32") == 4 * 7 * 8 * 128 * 64


def test_layers_read_everything_once() -> None:
    """Input, four weights and four biases, and the output."""
    assert least_bytes(parse("mha-b2h2d4s16"), "float32") == 4 * (2 * 2 * 16 * 8 + 4 * 8 * 8 + 4 * 8)


def test_intensity_is_operations_per_byte() -> None:
    """S/4 in float32 for equal lengths, as 4·S²·D operations move 16·S·D bytes."""
    assert intensity(parse("prefill-b1h8d64s1024"), "float32") == 1024 / 4


def test_a_long_call_is_bound_by_products() -> None:
    """At an intensity of 256 the matrix product's roof is the lower one."""
    w = parse("prefill-b1h8d64s1024")
    found = measures(w, "float32", flops(w) / 50, ROOF)
    assert found["bound_by"] == "compute"
    assert found["share_of_peak"] == found["share_of_limit"] == pytest.approx(0.5)


def test_a_short_call_is_bound_by_memory() -> None:
    """At an intensity of 4 what the memory can deliver is 40 of the 100."""
    w = parse("prefill-b1h8d64s16")
    found = measures(w, "float32", flops(w) / 20, ROOF)
    assert found["bound_by"] == "bandwidth"
    assert (found["share_of_peak"], found["share_of_limit"]) == (pytest.approx(0.2), pytest.approx(0.5))


@pytest.mark.parametrize("roof", [None, Roof("cpu", "float32")])
def test_without_roofs_there_are_no_shares(roof: Roof | None) -> None:
    """Bytes and intensity are known all the same."""
    found = measures(parse("prefill-b1h8d64s16"), "float32", 1.0, roof)
    assert found["intensity"] == 4
    assert [found[name] for name in ("bound_by", "share_of_peak", "share_of_limit")] == [None] * 3


def test_half_of_the_roofs_gives_half_of_the_shares() -> None:
    """Without a bandwidth nothing says what binds."""
    found = measures(parse("prefill-b1h8d64s16"), "float32", 1.0, Roof("cpu", "float32", 100.0, "torch"))
    assert found["share_of_peak"] is not None
    assert found["bound_by"] is None
