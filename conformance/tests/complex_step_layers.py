"""Gradients of the multi-head layer by complex-step differences, used to check the closed formula.

The layer is written from SPEC.md for complex numbers, column by column and row by row, over the attention of
complex_step.py; it shares nothing with the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.tests import complex_step
from attention_conformance.conformance.tests.complex_step import Arrays

#: Keywords of mha that have gradients.
DIFFERENTIATED = ("x_kv", "w_o", "b_q", "b_k", "b_v", "b_o", "bias")


def mha_grad(
    x_q: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, grad_output: np.ndarray, **options: Any
) -> Arrays:
    """The gradients of all arrays as ``grad_x_q`` and so on; inputs must be finite, except for a bias of −inf."""
    arrays = {"x_q": x_q, "w_q": w_q, "w_k": w_k, "w_v": w_v}
    arrays |= {name: options.pop(name) for name in DIFFERENTIATED if options.get(name) is not None}
    found = complex_step.differentiated(lambda given: loss(given, grad_output, options), arrays)
    return {f"grad_{name}": gradient for name, gradient in found.items()}


def loss(arrays: Arrays, grad_output: np.ndarray, options: dict[str, Any]) -> complex:
    """Σ grad_output · output of the layer."""
    options = dict(options)
    heads, first = options.pop("heads"), options.pop("sequence_first", False)
    x = arrays["x_q"]
    y = arrays.get("x_kv", x)
    if x.ndim == 2:
        x, y, grad_output = x[None], y[None], grad_output[None]
    elif first:
        x, y, grad_output = (np.moveaxis(array, 1, 0) for array in (x, y, grad_output))
    inner: Arrays = {
        name: np.stack(np.split(each @ arrays[f"w_{name}"] + arrays.get(f"b_{name}", 0), heads, axis=2), axis=1)
        for name, each in (("q", x), ("k", y), ("v", y))
    }
    if "bias" in arrays:
        inner["bias"] = arrays["bias"]
    combined = np.concatenate(list(np.moveaxis(complex_step.output(inner, options), 1, 0)), axis=2)
    if "w_o" in arrays:
        combined = combined @ arrays["w_o"] + arrays.get("b_o", 0)
    return complex(np.sum(grad_output * combined))
