"""The operator specification's own evaluator, in NumPy: ``onnx.reference.ReferenceEvaluator``."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.onnx.graph import build, compared


def prepare(function: Function, call: Call) -> Function:
    """Build the model of a call and its evaluator; ``run(q, k, v, **arrays)`` takes and returns NumPy arrays."""
    evaluator = ReferenceEvaluator(build(function, call))

    def run(q: np.ndarray, k: np.ndarray, v: np.ndarray, **arrays: np.ndarray) -> Any:
        results = tuple(evaluator.run(None, {"q": q, "k": k, "v": v, **arrays}))
        return results if len(results) > 1 else results[0]

    return compared(run, call, lambda value: value)
