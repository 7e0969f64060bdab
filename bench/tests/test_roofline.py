"""The machine's rooflines: which frameworks measure them, what is measured, and which sample counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.records import Roofline, Sample
from attention_conformance.bench.roofline import peaks as module
from attention_conformance.bench.roofline.peaks import bandwidth, product, roofline, rooflines
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation, Profile
from attention_conformance.impls.process.pool import Crashed

pytestmark = pytest.mark.slow

#: The module that must be installed for a framework.
NEEDED = {Framework.NUMPY: "numpy", Framework.TORCH: "torch", Framework.JAX: "jax", Framework.ONNXRUNTIME: "onnx"}


@pytest.mark.parametrize("framework", Framework)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_product_of_a_framework_is_the_product(framework: Framework, dtype: str) -> None:
    """The timed call multiplies matrices, in the precision of their dtype."""
    pytest.importorskip(NEEDED[framework])
    arrays = backend(framework)
    a, b = (np.random.default_rng(seed).random((96, 96)).astype(dtype) for seed in range(2))
    found = arrays.get(arrays.matmul(arrays.put(a.copy(), "cpu"), arrays.put(b.copy(), "cpu"))())
    assert found.dtype == dtype
    assert np.allclose(found, a.astype(np.float64) @ b, rtol=96 * np.finfo(dtype).eps)


@pytest.mark.parametrize("framework", [Framework.NUMPY, Framework.TORCH, Framework.JAX])
def test_a_copy_has_a_bandwidth(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every framework with a copy has a bandwidth."""
    pytest.importorskip(NEEDED[framework])
    monkeypatch.setitem(module.COPIED, "cpu", 2**20)
    (found,) = bandwidth(framework, "cpu", 0.0)
    assert (found.quantity, found.size) == ("bytes", 2**20)
    assert found.per_second > 0


@pytest.mark.parametrize(("framework", "added"), [(Framework.NUMPY, 0), (Framework.TORCH, 0), (Framework.JAX, 1)])
def test_a_copy_reads_and_writes_every_element(framework: Framework, added: int) -> None:
    """Every element is read and written once, also if threads share the work; JAX adds 1 to force a write."""
    pytest.importorskip(NEEDED[framework])
    arrays, given = backend(framework), np.arange(1001, dtype=np.float32)
    assert np.array_equal(arrays.get(arrays.copy(arrays.put(given.copy(), "cpu"))()), given + added)


def test_a_framework_without_a_copy_has_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime has no copy."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(module.COPIED, "cpu", 2**20)
    assert bandwidth(Framework.ONNXRUNTIME, "cpu", 0.0) == []


def test_a_dtype_without_a_product_has_no_sample() -> None:
    """ONNX Runtime has no bfloat16 kernels on the CPU."""
    pytest.importorskip("onnxruntime")
    assert product(Framework.ONNXRUNTIME, "cpu", "bfloat16", 0.0) == []


def test_a_slow_product_is_measured_at_a_small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side is not doubled if the calls at that size would take too long."""
    monkeypatch.setattr(module, "MOST", 0.0)
    (found,) = product(Framework.NUMPY, "cpu", "float32", 0.0)
    assert found.size == module.LEAST_SIDE


def ticking(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> Callable[[], None]:
    """A call that takes these times in turn, on a clock of its own."""
    now, coming = [0.0], list(seconds)
    monkeypatch.setattr("attention_conformance.bench.roofline.peaks.time.perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += coming.pop(0)

    return call


def test_a_small_product_counts_where_large_ones_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that is too low would make honest kernels seem too fast."""
    seconds = iter([2 * 256**3 / 8e10, 10.0, 10.0])
    monkeypatch.setattr(module, "_fastest", lambda *_: next(seconds))
    (found,) = product(Framework.NUMPY, "cpu", "float32", 0.1)
    assert (found.size, round(found.per_second / 1e10)) == (256, 8)


def test_the_fastest_call_counts_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call warms up."""
    call = ticking(monkeypatch, 0.1, 0.9, 0.5, 0.7)
    assert module._fastest(backend(Framework.NUMPY), "cpu", call, 0.0) == pytest.approx(0.5)


def test_calls_are_made_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are at least three calls, and more until the time is used up."""
    call = ticking(monkeypatch, 0.5, *[0.5] * 5, 0.25, 0.5)
    assert module._fastest(backend(Framework.NUMPY), "cpu", call, 2.6) == pytest.approx(0.25)


def test_the_best_framework_has_the_roofline() -> None:
    """Products and copies are compared separately; every sample is kept."""
    samples = (
        Sample("torch", "flops", 5.0, 8),
        Sample("numpy", "flops", 7.0, 8),
        Sample("torch", "bytes", 3.0, 8),
        Sample("numpy", "bytes", 2.0, 8),
    )
    assert roofline("cpu", "float32", samples) == Roofline("cpu", "float32", 7.0, "numpy", 3.0, "torch", samples)


def test_no_sample_is_no_roofline() -> None:
    """The roofline is missing, not zero."""
    assert roofline("cpu", "float16", []) == Roofline("cpu", "float16", None, "", None, "")


class Answers:
    """A stand-in for the pool: answers by framework and question, and the questions."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float) -> Any:
        """The answer of a framework; raises it if it is an exception."""
        question = function.partition(":")[2]
        self.asked.append((question, *arguments[:-1]))
        answer = self.answers[arguments[0]]
        if isinstance(answer, Exception):
            raise answer
        return [Sample(str(arguments[0]), "flops" if question == "product" else "bytes", answer, 1)]


def target(name: str, framework: Framework, dtype: str) -> Target:
    """A target on the CPU."""
    return Target(Implementation(name, "nowhere:function", framework=framework), "cpu", dtype)


def test_each_framework_is_asked_once_for_a_device_and_dtype() -> None:
    """The number of its implementations does not matter, and all dtypes share the bandwidth."""
    pool: Any = Answers({Framework.TORCH: 1.0, Framework.NUMPY: 2.0})
    targets = [target(n, Framework.TORCH, d) for n in ("a", "b") for d in ("float32", "float16")]
    found = rooflines(pool, [*targets, target("c", Framework.NUMPY, "float32")])
    assert [(r.dtype, r.flops_by, r.bytes_by) for r in found] == [
        ("float32", "numpy", "numpy"),
        ("float16", "torch", "torch"),
    ]
    assert sorted(pool.asked) == [
        ("bandwidth", "numpy", "cpu"),
        ("bandwidth", "torch", "cpu"),
        ("product", "numpy", "cpu", "float32"),
        ("product", "torch", "cpu", "float16"),
        ("product", "torch", "cpu", "float32"),
    ]


@pytest.mark.parametrize(
    ("device", "profile", "asked"),
    [
        ("cuda", Profile.TF32, ("float32", "bfloat16")),
        ("cuda", Profile.WIDE, ("float32",)),
        ("cpu", Profile.TF32, ("float32",)),
    ],
)
def test_a_kernel_in_tf32_is_held_against_the_units_that_it_uses(
    monkeypatch: pytest.MonkeyPatch, device: str, profile: Profile, asked: tuple[str, ...]
) -> None:
    """On a GPU float32 products do not use the TF32 units, so a bfloat16 one is timed; its peak is kept separately."""
    made: list[str] = []

    def ask(pool: Any, implementation: Any, question: str, framework: Any, device: str, dtype: str, *_: Any) -> Any:
        made.append(dtype)
        return [Sample("torch", "flops", {"float32": 1.0, "bfloat16": 8.0}[dtype], 1)]

    monkeypatch.setattr(module, "_ask", ask)
    monkeypatch.setattr(module, "_SEEN", {})
    one = Implementation("it", "nowhere:f", framework=Framework.TORCH, profiles={"float32": profile})
    found = module.best_product(Target(one, device, "float32"), 1.0, 1)
    assert tuple(made) == asked
    assert found == module.best_product(Target(one, device, "float32"), 0.0, 1) == (8.0 if len(asked) > 1 else 1.0)


def test_a_framework_that_crashes_leaves_the_roofline_to_the_others() -> None:
    """The others still give a roofline."""
    pool: Any = Answers({Framework.TORCH: Crashed("killed", ""), Framework.NUMPY: 2.0})
    found = rooflines(pool, [target(f, f, "float32") for f in (Framework.TORCH, Framework.NUMPY)])
    assert found[0].flops_by == "numpy"
