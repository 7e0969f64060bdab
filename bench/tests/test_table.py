"""The table at the end of a run: its columns, its order, and that it fits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from attention_conformance.bench.output.table import WIDTH, cut, limits, table
from attention_conformance.bench.records import Roofline

LONG = "a/folder/of/somebody/with/a/long/name/mykernels.py:flash_attention_forward_v3@torch"


def record(implementation: str = "ort-mha", seconds: float = 0.0455, **fields: Any) -> dict[str, Any]:
    """The record of a timed cell."""
    return {
        "implementation": implementation,
        "device": "cpu",
        "dtype": "float32",
        "workload": "prefill-b1h8d64s2048",
        "seconds": seconds,
        "interval": [0.99 * seconds, 1.02 * seconds],
        "tokens_per_second": 2048 / seconds,
        "gflops": 17.18 / seconds,
        "share_of_peak": 0.42,
        "bound_by": "compute",
        "memory_bytes": 9 * 2**20,
        "share": 0.12,
        **fields,
    }


def invalid(implementation: str = "mine.py:unscaled", **fields: Any) -> dict[str, Any]:
    """The record of a wrong cell."""
    named = {"implementation": implementation, "device": "cpu", "dtype": "float32", "workload": "prefill-b1h8d64s2048"}
    return {**named, "clause": "SDPA-25", "reason": "1024 of 1024 elements are outside the bound", **fields}


def test_a_line_has_what_was_measured() -> None:
    """A line has the median with its interval, rates, shares, roofline, memory, and the share of the error bound."""
    text = table([record()])
    assert text.splitlines() == [
        "                         95 %  tokens  GFLOP    of  bound              error /",
        "            median   interval      /s     /s  peak  by         memory    bound",
        "prefill-b1h8d64s2048 cpu float32",
        "  ort-mha  45.5 ms  45.0–46.4  45.0 k    378  42 %  compute  9.00 MiB     12 %",
    ]


def test_the_fastest_comes_first_and_a_wrong_one_last() -> None:
    """Cells are ordered within a workload; an invalid cell has its clause and no numbers."""
    text = table([record("slow", 0.2), record("fast", 0.1)], [invalid()])
    lines = [line.split() for line in text.splitlines()[3:]]
    assert [line[0] for line in lines] == ["fast", "slow", "mine.py:unscaled"]
    assert text.splitlines()[-1] == (
        "  mine.py:unscaled  invalid: SDPA-25: 1024 of 1024 elements are outside the bound"
    )


def test_workloads_devices_and_dtypes_are_groups() -> None:
    """Groups are in the order in which they occur, each with its own line."""
    made = [
        record("b", workload="prefill-b1h8d64s4096"),
        record("a"),
        record("c", dtype="float16"),
        record("d", device="cuda"),
        record("e", 0.001),
    ]
    lines = [line for line in table(made).splitlines() if not line.startswith("   ")]
    assert [line.split()[0] if line.startswith(" ") else line for line in lines] == [
        "prefill-b1h8d64s4096 cpu float32",
        "b",
        "prefill-b1h8d64s2048 cpu float32",
        "e",
        "a",
        "prefill-b1h8d64s2048 cpu float16",
        "c",
        "prefill-b1h8d64s2048 cuda float32",
        "d",
    ]


@pytest.mark.parametrize("seconds", [3e-9, 1.2e-5, 0.0455, 99.97, 5000.0])
@pytest.mark.parametrize("name", ["a", "onnx-export23-torch-sublayer", LONG])
def test_every_line_fits(name: str, seconds: float) -> None:
    """Lines fit for any names, reasons and sizes of numbers."""
    workload = "prefill-b128h128g16d192v128s16384-w4096-cap50-bias-pad-grad"
    slow = record(name, seconds, workload=workload, dtype="bfloat16", memory_bytes=1023 * 2**30, share_of_peak=1.234)
    text = table([slow, record()], [invalid(LONG, workload=2 * workload, reason=9 * "much is wrong ")])
    assert max(map(len, text.splitlines())) <= WIDTH


def test_names_of_built_ins_are_not_cut() -> None:
    """The longest name has 28 letters, and ordinary numbers leave room for it."""
    assert "onnx-export23-torch-sublayer" in table([record("onnx-export23-torch-sublayer")])


def test_numbers_that_no_terminal_holds_are_cut() -> None:
    """Numbers that are too long are cut, or every line would break."""
    text = table([record(interval=[1e-9, 1e99], gflops=1e40)])
    assert max(map(len, text.splitlines())) <= WIDTH


def test_what_was_not_measured_is_a_dash() -> None:
    """Rooflines, memory and the interval may be missing."""
    missing = ("interval", "share_of_peak", "bound_by", "memory_bytes")
    line = table([record() | dict.fromkeys(missing)]).splitlines()[-1]
    assert line.split() == ["ort-mha", "45.5", "ms", "–", "45.0", "k", "378", "–", "–", "–", "12", "%"]


def test_nothing_is_no_table() -> None:
    """Invalid cells without timed ones have no head."""
    assert table([]) == ""
    assert table([], [invalid()]).startswith("prefill-")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0009999, "1000 µs"),
        (0.001, "1.00 ms"),
        (0.0123456, "12.3 ms"),
        (0.09996, "100 ms"),
        (61.234, "61.2 s"),
        (1234.5, "1234 s"),
        (4e-10, "0.400 ns"),
    ],
)
def test_times_have_three_digits_and_a_unit(seconds: float, text: str) -> None:
    """The unit is the largest in which the time is at least one."""
    assert text in table([record(seconds=seconds, interval=None)])


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, " 0 %"), (1e-5, "<0.1 %"), (0.0042, "0.4 %"), (0.12, "12 %"), (1.2, "120 %")]
)
def test_a_share_below_a_percent_is_not_zero(share: float, text: str) -> None:
    """Only a share of zero is shown as zero."""
    assert table([record(share=share)]).endswith(text)


def test_a_name_is_cut_in_its_middle() -> None:
    """The end of a name says more than its beginning."""
    assert cut(LONG, 20) == "a/fold…ward_v3@torch"
    for width in (12, 20, 40):
        assert len(cut(LONG, width)) == width
        assert LONG.startswith(cut(LONG, width).split("…")[0])
        assert LONG.endswith(cut(LONG, width).split("…")[1])
    assert cut("short", 12) == "short"


def test_the_machine_s_own_limits_are_named() -> None:
    """Each limit is printed with the framework that reached it."""
    roofline = Roofline("cpu", "float32", 358.2e9, "jax")
    both = Roofline("cpu", "float32", 358.2e9, "jax", 17.2e9, "numpy")
    assert limits([both]) == ["peak of cpu float32: products 358 GFLOP/s by jax, memory 17.2 GB/s by numpy"]
    assert limits([roofline]) == ["peak of cpu float32: products 358 GFLOP/s by jax"]
    assert limits([Roofline("cpu", "float16")]) == ["peak of cpu float16: not measured"]


def test_columns_lie_below_each_other() -> None:
    """Every line of every group has a blank column before each number's column."""
    made = [record(name, seconds) for name, seconds in itertools.product(("a", "bcd"), (1e-6, 0.5, 80.0))]
    lines = table(made).splitlines()[3:]
    assert len({len(line) for line in lines}) == 1
