"""Excuses for layers and gradients: records in their rows, and numbers beyond the dtype's range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.layer import PLAIN
from attention_conformance.conformance.evidence.mha_problems import LayerProblem
from attention_conformance.conformance.evidence.verdicts import Jury, Kind, Verdict
from attention_conformance.conformance.ledger.load import read
from attention_conformance.conformance.properties.drawn import GradientProblem, once
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.targets import Selection, Target, choose
from attention_conformance.impls.numpy import layer as of_layer
from attention_conformance.impls.numpy.gradients import gradients as of_sdpa
from attention_conformance.impls.process.pool import Pool

pytestmark = pytest.mark.slow

HERE = "attention_conformance.conformance.tests.test_evidence_excuses:"
EMPTY = LayerProblem("p", "mha", PLAIN, kv_lengths=(0, 4))


def verdict(pool: Pool, function: str, problem: Any, name: str, dtype: str = "float32") -> Verdict:
    """The verdict on a problem for a function of this module, under the name of a library's implementation."""
    selection = choose((HERE + function,), ("cpu",), (dtype,), pool)
    (target,) = selection.targets
    renamed = replace(target.implementation, name=name)
    keywords = {name: selection.keywords[target.implementation.name]}
    versions = {"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime": "1.31.1", "jax": "0.10.2"}
    selection = Selection((Target(renamed, "cpu", dtype),), keywords, {}, versions)
    return Jury(pool, selection, read()).verdict(selection.targets[0], once(problem, dtype))


def first_sample_nan(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, kv_lengths: Any = None
) -> Any:
    """NaN in the first sample."""
    output = of_layer.mha(x_q, w_q, w_k, w_v, heads=heads, w_o=w_o, kv_lengths=kv_lengths)
    output[0] = np.nan
    return output


def last_sample_nan(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, kv_lengths: Any = None
) -> Any:
    """NaN in the last sample."""
    output = of_layer.mha(x_q, w_q, w_k, w_v, heads=heads, w_o=w_o, kv_lengths=kv_lengths)
    output[-1] = np.nan
    return output


def nan_gradients(
    q: Any, k: Any, v: Any, grad_output: Any, *, is_causal: bool = False, scale: float | None = None
) -> Any:
    """NaN in every gradient."""
    return tuple(np.full_like(a, np.nan) for a in of_sdpa(q, k, v, grad_output, is_causal=is_causal, scale=scale))


first_sample_nan.operator = last_sample_nan.operator = "mha"  # type: ignore[attr-defined]
nan_gradients.operator = "sdpa_grad"  # type: ignore[attr-defined]


def test_a_record_excuses_its_own_rows_of_a_layer(unprepared: Pool) -> None:
    """The ledger records that torch-mha-fast gives NaN in fully masked rows, such as all rows of the first sample."""
    got = verdict(unprepared, "first_sample_nan", EMPTY, "torch-mha-fast")
    assert (got.kind, got.why) == (Kind.KNOWN, "torch-mha-fast-empty-row")


def test_a_record_excuses_no_other_rows_of_a_layer(unprepared: Pool) -> None:
    """The record does not excuse the last sample, which has keys."""
    got = verdict(unprepared, "last_sample_nan", EMPTY, "torch-mha-fast")
    assert got.kind is Kind.ALARM
    assert got.why.startswith("NaN: output")


def test_a_record_excuses_no_other_layer(unprepared: Pool) -> None:
    """The same failure is an alarm for another implementation, and without a fully masked row."""
    assert verdict(unprepared, "first_sample_nan", EMPTY, "numpy-layer").kind is Kind.ALARM
    full = replace(EMPTY, kv_lengths=(1, 4))
    assert verdict(unprepared, "first_sample_nan", full, "torch-mha-fast", "float64").kind is Kind.ALARM


def test_gradients_have_the_deviations_of_their_function(unprepared: Pool) -> None:
    """torch-sdpa gives NaN where is_causal meets a negative scale, which excuses its gradients and no others."""
    problem = GradientProblem(Problem("p", Shape(), is_causal=True, scale=-1.0), 1.0)
    got = verdict(unprepared, "nan_gradients", problem, "torch-sdpa-gradients")
    assert (got.kind, got.why) == (Kind.KNOWN, "torch-flash-causal-scale")
    assert verdict(unprepared, "nan_gradients", problem, "numpy-gradients").kind is Kind.ALARM
    plain = replace(problem, of_sdpa=replace(problem.of_sdpa, scale=1.0))
    assert verdict(unprepared, "nan_gradients", plain, "torch-sdpa-gradients", "float64").kind is Kind.ALARM


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_projection_beyond_the_range_is_excused(unprepared: Pool) -> None:
    """NaN is excused where q exceeds float16, and an alarm where it does not."""
    large, small = (LayerProblem("p", "mha", PLAIN, spread, values=10.0) for spread in (1e5, 1.0))
    assert verdict(unprepared, "first_sample_nan", large, "numpy-layer", "float16").why == "SDPA-26"
    assert verdict(unprepared, "first_sample_nan", small, "numpy-layer", "float16").kind is Kind.ALARM
