"""The series of random problems, one for each operator and one for decoding, and the implementations judged on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attention_conformance.conformance.evidence.mha_problems import layer_problem
from attention_conformance.conformance.properties.drawn import (
    decode_problem,
    dtype_of,
    gradient_problem,
    random_problem,
)

#: Package of the honest variants.
PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class Series:
    """Random problems by their index, how many the evidence has, and the implementations judged on them."""

    name: str
    #: Operator whose cases show how small an error is caught.
    operator: str
    problems: int
    problem: Callable[[int], Any]
    implementations: tuple[str, ...]
    #: Step by implementation: n for every n-th problem; without a step it gets every problem.
    every: Mapping[str, int] = field(default_factory=dict)

    def dtype(self, index: int) -> str:
        """The dtype that the problem of an index is judged in."""
        return dtype_of(index)


def _names_of(libraries: str, module: str, variants: str) -> tuple[str, ...]:
    """Names of built-in implementations, and of honest variants in a module next to this one."""
    return (*libraries.split(), *(f"{PACKAGE}.{module}:{name}" for name in variants.split()))


#: XLA compiles for each shape (about half a second), flex attention traces for each call (a tenth), and opset 23 runs
#: in the kernel of opset 24; the others get every problem.  Those that compile or export for seconds are left out.
SDPA = Series(
    "sdpa",
    "sdpa",
    20_000,
    random_problem,
    _names_of(
        "numpy-eager numpy-tiled torch-eager torch-sdpa torch-sdpa-math torch-sdpa-flash torch-flex jax-jit jax-nn"
        " onnx-attention23 onnx-attention24 ort-mha ort-gqa onnx-reference",
        "variants",
        "storage fused flash online tf32 sequential coarse",
    ),
    {"jax-jit": 125, "jax-nn": 25, "torch-flex": 50, "onnx-attention23": 4},
)

DECODE = Series(
    "decode",
    "sdpa",
    3_000,
    decode_problem,
    SDPA.implementations,
    {"jax-jit": 60, "jax-nn": 25, "torch-flex": 20, "onnx-attention23": 4},
)

MHA = Series(
    "mha",
    "mha",
    3_000,
    partial(layer_problem, "mha"),
    _names_of(
        "numpy-layer torch-layer torch-mha-fast torch-mha-slow jax-layer ort-mha-layer ort-attention-layer",
        "mha_variants",
        "plain fused head_by_head scaled_weight without_key_bias handed flash tf32 sequential stored",
    ),
    {"jax-layer": 60, "ort-attention-layer": 5},
)

SUBLAYER = Series(
    "sublayer",
    "sublayer",
    3_000,
    partial(layer_problem, "sublayer"),
    _names_of(
        "numpy-sublayer torch-sublayer jax-sublayer",
        "mha_variants",
        "plain_sublayer fused_sublayer handed_sublayer flash_sublayer tf32_sublayer sequential_sublayer"
        " stored_sublayer",
    ),
    {"jax-sublayer": 60},
)

SDPA_GRAD = Series(
    "sdpa_grad",
    "sdpa_grad",
    3_000,
    gradient_problem,
    _names_of(
        "numpy-gradients torch-eager-gradients torch-sdpa-gradients torch-sdpa-math-gradients"
        " torch-sdpa-flash-gradients jax-jit-gradients",
        "gradient_variants",
        "flash flash_one_by_one kept_weights kept_weights_one_by_one every_array tf32",
    ),
    {"jax-jit-gradients": 60},
)

MHA_GRAD = Series(
    "mha_grad",
    "mha_grad",
    3_000,
    partial(layer_problem, "mha_grad"),
    _names_of(
        "numpy-layer-gradients torch-layer-gradients torch-mha-gradients torch-mha-composed-gradients"
        " jax-layer-gradients",
        "mha_gradient_variants",
        "plain row_by_row side_by_side without_key_bias stored",
    ),
    {"jax-layer-gradients": 60},
)

#: All series by name, in the order of the page.
SERIES = {each.name: each for each in (SDPA, DECODE, MHA, SUBLAYER, SDPA_GRAD, MHA_GRAD)}
