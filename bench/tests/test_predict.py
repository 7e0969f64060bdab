"""The memory model: the memory of a cell's parts, and what the system says is free."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from attention_conformance.bench.memory import predict
from attention_conformance.bench.validity.checks import Call, check
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload, parse
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow

GIB = 2**30

#: Workloads for every kind of check, large enough that small arrays do not matter.
CHECKED = (
    "prefill-b1h8d64s1024",
    "prefill-b4h8g2d64s512-pad",
    "prefill-b1h8d64s512-bias",
    "decode-b4h8g2d64s1k4096",
    "mha-b1h8d64s512",
    "sublayer-b2h8d64s256-pad",
    "merge-b4h8d128s256k8",
    "varlen-b4h8d64s512-causal",
    "paged-b16h8g2d64s1k4096",
    "prefill-b1h8d64s512-causal-grad",
    "prefill-b1h4d64s512-cap50-bias-grad",
)


@pytest.mark.parametrize("name", CHECKED)
def test_a_check_takes_no_more_than_is_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured peak is at least a fifth of the prediction."""
    workload = parse(name)
    call = Call(workload, *arguments.make(workload, "float32", 0), "float32", Profile.WIDE)
    results = {name: np.zeros(shape, np.float32) for name, shape in arguments.results(workload).items()}
    tracemalloc.start()
    try:
        with pytest.raises(Exception, match="invalid"):
            check(call, results, seed=0)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predict.check_bytes(workload) / 5 < taken < predict.check_bytes(workload)


def test_inputs_and_results_are_counted_by_their_shapes() -> None:
    """Grouped heads, another width of v, and a bias in the dtype of the call count."""
    w = parse("prefill-b2h4g2d8v6s16-bias")
    numbers = 2 * 4 * 16 * 8 + 2 * 2 * 16 * 8 + 2 * 2 * 16 * 6 + 4 * 16 * 16
    assert predict.input_bytes(w, "float32") == 4 * numbers
    assert predict.input_bytes(w, "bfloat16") == 2 * numbers
    assert predict.result_bytes(w, "float16") == 2 * (2 * 4 * 16 * 6)


def test_scores_of_half_precision_are_taken_to_be_in_float32() -> None:
    """Half precision is accumulated in float32."""
    w = parse("prefill-b1h8d64s1024")
    assert predict.quadratic_bytes(w, "float16") - predict.result_bytes(w, "float16") == 5 * 8 * 1024**2 * 4
    assert predict.quadratic_bytes(w, "float64") - predict.result_bytes(w, "float64") == 5 * 8 * 1024**2 * 8


def test_gradients_hold_more_square_arrays() -> None:
    """They are weights, dP and dS in addition to those of the forward pass."""
    w = parse("prefill-b1h8d64s1024-grad")
    assert predict.quadratic_bytes(w, "float32") > 10 * 8 * 1024**2 * 4


def test_every_set_is_counted_here_and_in_the_worker() -> None:
    """There are three sets of inputs here and six in the worker; the call counts if it uses this machine's memory."""
    w = parse("prefill-b1h8d64s1024")
    fixed = 9 * predict.input_bytes(w, "float32") + 3 * predict.result_bytes(w, "float32") + predict.check_bytes(w)
    assert predict.needed_bytes(w, "float32", "cpu", 1000) == fixed + 1000
    assert predict.needed_bytes(w, "float32", "cuda", 1000) == fixed


def test_what_proves_linear_memory() -> None:
    """Memory is linear if a call has at least 2^24 scores and takes less than a byte per score."""
    assert predict.holds_no_square(Workload(1, 8, 64, 2048), 2**24)
    assert not predict.holds_no_square(Workload(1, 8, 64, 2048), 2**25)
    assert not predict.holds_no_square(Workload(1, 8, 64, 1024), 0)
