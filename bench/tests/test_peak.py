"""Peak memory of a call, compared with allocations of known size, and with what libraries report about themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.analysis.fits import Growth, memories
from attention_conformance.bench.memory import peak
from attention_conformance.bench.memory.peak import (
    COUNTED,
    PROGRAM,
    RESIDENT,
    DeviceCount,
    Gauge,
    Peak,
    resolution,
    shortened,
)
from attention_conformance.bench.memory.predict import result_bytes, scores
from attention_conformance.bench.tests import allocating
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload, parse
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.process import limits
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow(20)

MEBIBYTE = 2**20
WORKLOAD = parse("prefill-b1h8d64s512")

#: The result of WORKLOAD.
RESULT = result_bytes(WORKLOAD, "float32")

#: An array of the scores of WORKLOAD.
SCORES = 4 * scores(WORKLOAD)

#: The blocks of ``takes_many`` have a header each, and so take a page more than their bytes.
PAGES = 256 * 4096

#: Bytes by which a measurement may be off: the resident set's resolution, and objects of Python and the allocator.
OFF = resolution() + MEBIBYTE // 2


@pytest.fixture(scope="module")
def gauge() -> Iterator[Gauge]:
    """The measuring processes of this module."""
    made = Gauge()
    yield made
    made.close()


def fake(name: str) -> Implementation:
    """A function of bench/tests/allocating.py as a plug-in."""
    return Implementation(name, f"attention_conformance.bench.tests.allocating:{name}", folder=os.getcwd())


def measured(gauge: Gauge, implementation: Implementation, workload: Workload = WORKLOAD) -> int:
    """Bytes of a call in float32 on the CPU."""
    found = gauge.peak(implementation, workload, "cpu", "float32", 120)
    if not found.reason and found.bytes is None:
        pytest.skip("this system does not tell")
    assert found.bytes is not None, found.reason
    assert found.method == RESIDENT
    return found.bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("takes_40", 40 * MEBIBYTE),
        ("takes_24_twice", 24 * MEBIBYTE),
        ("takes_many", 32 * MEBIBYTE + PAGES + RESULT),
        ("only_asks", RESULT),
        ("keeps", SCORES + RESULT),
        ("compiles_40", RESULT),
    ],
)
def test_a_known_allocation_is_measured(gauge: Gauge, name: str, expected: int) -> None:
    """The peak is measured, kept or not; unwritten memory, and memory of only the first call, are not."""
    assert abs(measured(gauge, fake(name)) - expected) < OFF


def test_a_square_array_is_exposed(gauge: Gauge) -> None:
    """The bytes hold all scores, and the exponent over the length is 2."""
    bytes_, growth = swept(gauge, "square")
    assert bytes_ >= 4 * 8 * 2048**2
    assert growth is Growth.QUADRATIC


def test_rows_in_blocks_are_not(gauge: Gauge) -> None:
    """They take less than a tenth of the scores."""
    bytes_, growth = swept(gauge, "linear")
    assert bytes_ < 4 * 8 * 2048**2 / 10
    assert growth is Growth.LESS


def swept(gauge: Gauge, name: str) -> tuple[int, Growth]:
    """Bytes at the greatest length, and their growth."""
    records = [
        {
            **{"implementation": name, "device": "cpu", "dtype": "float32", "family": "prefill-b1h8d64s*"},
            **{"S": length, "B": 1, "H": 8},
            "memory_bytes": measured(gauge, fake(name), parse(f"prefill-b1h8d64s{length}")),
        }
        for length in (256, 512, 1024, 2048)
    ]
    (found,) = memories(records)
    return int(found.bytes), found.growth


@pytest.mark.parametrize(
    ("name", "reason"),
    [("raises", "ValueError: no kernel for you"), ("crashes", "the process was killed by SIGABRT")],
)
def test_a_call_that_fails_has_a_reason(gauge: Gauge, name: str, reason: str) -> None:
    """The next measurement is not affected."""
    assert gauge.peak(fake(name), WORKLOAD, "cpu", "float32", 60) == Peak(None, reason=reason)
    assert abs(measured(gauge, fake("takes_40")) - 40 * MEBIBYTE) < OFF


def test_a_program_has_no_peak(gauge: Gauge) -> None:
    """The memory of a program belongs to another process."""
    program = Implementation("true", PROGRAM, folder=os.getcwd(), source="true")
    found = gauge.peak(program, WORKLOAD, "cpu", "float32", 60)
    assert found == Peak(None, reason="the memory of a program cannot be measured from outside")


def test_a_call_that_hangs_is_given_up(gauge: Gauge) -> None:
    """The reason says after which time."""
    assert "no answer within 0.01 s" in gauge.peak(fake("takes_40"), WORKLOAD, "cpu", "float32", 0.01).reason


def test_the_kernels_of_torch_differ_as_they_are_known_to(gauge: Gauge) -> None:
    """At S = 2048 the composition holds more than two arrays of scores, the flash kernel at most a tenth of one."""
    pytest.importorskip("torch")
    workload, square = parse("prefill-b1h8d64s2048"), 4 * 8 * 2048**2
    assert measured(gauge, builtin()["torch-sdpa-math"], workload) > 2 * square - resolution()
    assert measured(gauge, builtin()["torch-sdpa-flash"], workload) < square / 10 + resolution()


def test_a_compiled_program_takes_what_its_compiler_planned(gauge: Gauge) -> None:
    """JAX's own figures for temporaries and results match within a tenth."""
    pytest.importorskip("jax")
    workload = parse("prefill-b1h8d64s1024")
    given, _ = arguments.make(workload, "float32", 0)
    said = allocating.planned().lower(**given).compile().memory_analysis()
    expected = said.temp_size_in_bytes + said.output_size_in_bytes
    program = dataclasses.replace(fake("takes_what_is_planned"), framework=Framework.JAX)
    assert abs(measured(gauge, program, workload) - expected) < expected / 10


def test_a_kernel_that_takes_more_than_was_planned_is_measured_all_the_same(gauge: Gauge) -> None:
    """XLA fuses jax-jit without options into one kernel, whose memory for the scores is outside the plan."""
    jax = pytest.importorskip("jax")
    from attention_conformance.impls.jax import eager

    workload = parse("prefill-b1h8d64s1024")
    given, _ = arguments.make(workload, "float32", 0)
    said = jax.jit(eager.attention).lower(**given).compile().memory_analysis()
    assert said.temp_size_in_bytes < 4 * scores(workload) / 4
    assert measured(gauge, builtin()["jax-jit"], workload) > 4 * scores(workload)


def test_an_arena_is_not_taken_for_nothing(gauge: Gauge) -> None:
    """ONNX Runtime's Attention holds the scores, whether or not a longer call was made before."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    lengths = (1024, 2048, 1024)
    first, _, again = (measured(gauge, builtin()["onnx-attention23"], Workload(1, 8, 64, n)) for n in lengths)
    assert first > 4 * 8 * 1024**2
    assert abs(first - again) < OFF


def test_a_workspace_that_a_longer_call_left_is_not_taken_for_nothing(gauge: Gauge) -> None:
    """A plug-in that keeps a workspace is measured in a new process for each cell."""
    longer = measured(gauge, fake("keeps"), parse("prefill-b1h8d64s1024"))
    assert longer > 4 * SCORES
    assert abs(measured(gauge, fake("keeps")) - SCORES - RESULT) < OFF


@pytest.mark.parametrize("framework", Framework)
def test_on_the_cpu_no_framework_counts(framework: Framework) -> None:
    """The resident set is measured on the CPU, and a device without a count has none."""
    pytest.importorskip({Framework.ONNXRUNTIME: "onnxruntime"}.get(framework, str(framework)))
    assert backend(framework).memory("cpu") is None


def test_a_prepared_function_outlives_what_is_released() -> None:
    """Sessions are dropped, not destroyed."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    arrays = backend(Framework.ONNXRUNTIME)
    multiply = arrays.matmul(*(arrays.put(np.eye(2, dtype=np.float32), "cpu") for _ in range(2)))
    arrays.release()
    assert np.array_equal(arrays.get(multiply()), np.eye(2))


@pytest.mark.parametrize(
    ("status", "restarts"),
    [("VmHWM: 9000 kB\nVmRSS: 9000 kB\n", True), ("VmHWM: 90000000 kB\nVmRSS: 9000 kB\n", False), ("Name: x\n", False)],
)
def test_a_system_that_does_not_restart_the_peak_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, restarts: bool
) -> None:
    """A system without the peak is not believed either; then there are no bytes."""
    (tmp_path / "status").write_text(status)
    monkeypatch.setattr(limits, "PROC", tmp_path)
    assert (peak._meter(backend(Framework.NUMPY), "cpu") is not None) is restarts


def test_a_system_without_proc_has_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system such as macOS has no peak; the reason says so."""
    monkeypatch.setattr(limits, "PROC", tmp_path / "none")
    meter = peak._meter(backend(Framework.NUMPY), "cpu")
    assert meter is None


class Counting:
    """A stand-in for a framework whose device counts its arrays' bytes, in blocks of 512, and their peak."""

    def __init__(self) -> None:
        self.now, self.most = 1000, 9000

    def memory(self, device: str) -> tuple[int, int]:
        """The bytes now and at the peak."""
        return self.now, self.most

    def put(self, array: np.ndarray, device: str) -> None:
        """Take blocks, and never free them."""
        self.now += -(-array.nbytes // 512) * 512
        self.most = max(self.now, self.most)

    def synchronize(self, device: str) -> None:
        """Nothing is pending."""


def test_a_peak_that_only_grows_is_made_to_start_again() -> None:
    """A call below an earlier peak is measured nevertheless."""
    arrays: Any = Counting()
    meter = DeviceCount(arrays, "cuda")
    before = meter.held()
    meter.restart()
    arrays.most = max(arrays.most, arrays.now + 700)  # memory that a call held temporarily
    assert (before, meter.most() - before, meter.held()) == (1000, 700, 1000)
    assert meter.method == COUNTED


@pytest.mark.parametrize("name", ["prefill-b2h4d8s64-pad", "decode-b1h2d8s1k64", "cross-b1h2d8s64k8", "mha-b1h2d8s64"])
def test_the_small_call_is_of_the_same_family(name: str) -> None:
    """The call is also short, so that it is quick."""
    small = shortened(parse(name))
    assert small.family == parse(name).family
    assert small.sweep < 10


def test_memory_is_measured_with_the_threads_of_the_run() -> None:
    """A library may hold a block for each thread: one thread means one core."""
    with contextlib.closing(Gauge(1)) as gauge:
        one = Implementation("it", f"{__name__}:nothing")
        assert gauge.call(one, "attention_conformance.impls.process.threads:wanted") == 1
        assert gauge.call(one, "attention_conformance.impls.process.threads:usable_cores") == 1
