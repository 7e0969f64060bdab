"""Gradients of sdpa by complex-step differences, used to check the closed formula.

f'(x) = Im f(x + ih) / h + O(h²) for a real analytic f (Squire & Trapp, SIAM Review 40(1), 1998): nothing is subtracted,
so with h = 1e-30 the derivative is as exact as f.  The attention here is written row by row from SPEC.md for complex
numbers and shares nothing with the reference; which keys are allowed is decided by the real parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.conformance.tests.fifty_digits import entry, is_allowed

STEP = 1e-30

#: The arrays that the loss is differentiated with respect to: q, k, v and, if given, bias.
Arrays = dict[str, np.ndarray]


def loss(arrays: Arrays, grad_output: np.ndarray, options: dict[str, Any]) -> complex:
    """Σ grad_output · output, whose gradient with respect to the output is ``grad_output``."""
    return complex(np.sum(grad_output * output(arrays, options)))


def output(arrays: Arrays, options: dict[str, Any]) -> np.ndarray:
    """The output of sdpa for complex q, k, v and, if given, bias, (B, Hq, Sq, Dv)."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    group = q.shape[1] // k.shape[1]
    shape = (*q.shape[:3], k.shape[2])
    real = {**options, "bias": arrays["bias"].real} if "bias" in arrays else options
    scale = q.shape[3] ** -0.5 if options.get("scale") is None else options["scale"]
    found = np.zeros((*q.shape[:3], v.shape[3]), np.complex128)
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = [j for j in range(shape[3]) if is_allowed((b, h, i), j, shape, real)]
        if not keys:
            continue
        scores = scale * (k[b, h // group, keys] @ q[b, h, i])
        if options.get("softcap") is not None:
            scores = options["softcap"] * np.tanh(scores / options["softcap"])
        if "bias" in arrays:
            scores = scores + np.array([entry(arrays["bias"], (b, h, i, j)) for j in keys])
        powers = np.exp(scores)
        found[b, h, i] = (powers / powers.sum()) @ v[b, h // group, keys]
    return found


def differentiated(function: Callable[[Arrays], complex], arrays: Arrays) -> Arrays:
    """The derivatives of a real analytic function with respect to every element of every array, by name."""
    found = {}
    for name, array in arrays.items():
        gradient = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            moved = array.astype(np.complex128)
            moved[place] += 1j * STEP
            gradient[place] = function({**arrays, name: moved}).imag / STEP
        found[name] = gradient
    return found


def sdpa_grad(q: np.ndarray, k: np.ndarray, v: np.ndarray, grad_output: np.ndarray, **options: Any) -> Arrays:
    """The gradients of q, k, v and bias as ``grad_q`` and so on; inputs must be finite, except for a bias of −inf."""
    arrays = {"q": q, "k": k, "v": v}
    if options.get("bias") is not None:
        arrays["bias"] = options.pop("bias")
    found = differentiated(lambda given: loss(given, grad_output, options), arrays)
    return {f"grad_{name}": gradient for name, gradient in found.items()}
