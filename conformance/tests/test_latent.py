"""Latent attention: examples by hand, both forms within the bound, and mistakes beyond it."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import latent as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.cases.latent import DEEPSEEK, SMALL, LatentShape, coded, normal
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults.registry import Fault, faults_of
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec.examples import DATA
from attention_conformance.conformance.spec.latent import LatentExpected, latent
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.numpy.eager import attention

Array = np.ndarray

EXAMPLES = tomllib.loads(DATA.read_text(encoding="utf-8"))["latents"]
NAMES = ("q", "q_rope", "latents", "k_rope", "w_uk", "w_uv")


def numbers(nested: Any) -> Array:
    """Numbers of an example as float64."""
    return np.vectorize(lambda text: float(Fraction(text)))(np.array(nested, object))


def of(example: dict[str, Any]) -> LatentExpected:
    """The reference for an example, with one batch and one query."""
    a = {name: numbers(example[name]) for name in NAMES}
    q, rope = a["q"][None, :, None], a["q_rope"][None, :, None]
    return latent(q, rope, a["latents"][None], a["k_rope"][None], a["w_uk"], a["w_uv"], scale=float(np.log(2)))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_the_reference_gives_the_examples(example: dict[str, Any]) -> None:
    """Powers and output are those of the examples in both forms, and none of the rejected results."""
    found = of(example)
    absorbed = found.absorbed.output[0, :, 0, None] @ found.w_uv
    for output in (found.output[0, :, 0], absorbed[:, 0]):
        np.testing.assert_allclose(output, numbers(example["output"]), rtol=1e-14)
    np.testing.assert_allclose(np.exp(found.expanded.scores[0, :, 0]), numbers(example["powers"]), rtol=1e-14)
    np.testing.assert_allclose(np.exp(found.lse[0, :, 0]), numbers(example["powers"]).sum(1), rtol=1e-14)
    for wrong in example["rejected"]:
        assert np.abs(numbers(wrong["output"]) - found.output[0, :, 0]).max() > 0.1


def computed(form: str, arrays: tuple[Array, ...], stored: bool) -> tuple[Array, Array]:
    """Output and lse by one of the forms in NumPy; with ``stored``, products are stored in the dtype of the inputs."""
    dtype = arrays[0].dtype

    def kept(a: Array) -> Array:
        return a.astype(dtype).astype(np.float32) if stored else a

    q, rope, c, k_rope, w_uk, w_uv = (a.astype(np.float32) for a in arrays)
    options = {"scale": (q.shape[3] + rope.shape[3]) ** -0.5, "return_lse": True}
    shared = np.broadcast_to(k_rope[:, None], (len(q), q.shape[1], *k_rope.shape[1:]))
    queries, keys = np.concatenate([q, rope], 3), np.concatenate([kept(c[:, None] @ w_uk), shared], 3)
    if form == "expanded":
        output, lse = attention(queries, keys, kept(c[:, None] @ w_uv), **options)
    else:
        queries = np.concatenate([kept(q @ w_uk.swapaxes(1, 2)), rope], 3)
        cache = np.concatenate([c, k_rope], 2)[:, None]
        output, lse = attention(queries, cache, c[:, None], **options)
        output = kept(output) @ w_uv
    return output.astype(dtype), lse


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize(
    "shape", [SMALL, DEEPSEEK, LatentShape(sq=1, sk=40, rank=64)], ids=["small", "deepseek", "long"]
)
def test_both_forms_are_within_the_bound(shape: LatentShape, form: str, dtype: str) -> None:
    """Both forms stay inside on random problems, whether products between are stored or not."""
    for seed in range(5):
        arrays = tuple(a.astype(NUMPY_DTYPES[dtype]) for a in normal(np.random.default_rng(seed), shape))
        expected = latent(*arrays)
        bound = bounds.bound(expected, Options(), dtype, Profile.WIDE)
        for stored in (False, True):
            output, lse = computed(form, arrays, stored)
            assert np.all(np.abs(output.astype(float) - expected.output) <= bound.output)
            assert np.all(np.abs(lse - expected.lse) <= bound.lse)


def test_the_bound_is_not_loose() -> None:
    """The median bound is below 2e-5 in float32, and below 2e-2, about one rounding, in half precision."""
    arrays = normal(np.random.default_rng(1), SMALL)
    for dtype, most in (("float32", 2e-5), ("float16", 2e-2)):
        given = tuple(a.astype(dtype) for a in arrays)
        bound = bounds.bound(latent(*given), Options(), dtype, Profile.WIDE)
        assert np.median(bound.output) < most


@pytest.mark.parametrize("fault", faults_of("latent"), ids=lambda fault: fault.name)
def test_mistakes_are_caught_and_named(fault: Fault) -> None:
    """Each fault is caught by at least two cases, and the diagnosis names it first."""
    failed = []
    for case in (case for case in every_case().values() if case.operator == "latent" and case.size[0] < 4000):
        found = trial(fault.make, case, "float32", Profile.WIDE)
        if found.verdict.outcome is Outcome.FAILED and found.verdict.failure is not None:
            failed.append(Failed(case, "float32", Profile.WIDE, found.verdict.failure, found.reply))
    assert len(failed) >= 2
    assert tuple(diagnose(failed, (), pairs=False)[0].names) == (fault.name,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fault", faults_of("latent"), ids=lambda fault: fault.name)
def test_mistakes_show_in_half_precision(fault: Fault, dtype: str) -> None:
    """Each fault is caught by at least two cases under the loosest bound, which covering the output would prevent."""
    asked = [case for case in every_case().values() if case.operator == "latent" and dtype in case.dtypes]
    found = (trial(fault.make, case, dtype, Profile.STORAGE).verdict.outcome for case in asked)
    assert sum(each is Outcome.FAILED for each in found) >= 2


@pytest.mark.parametrize("data", [normal, coded], ids=["normal", "coded"])
def test_coded_numbers_tell_at_the_widths_in_use(data: Any) -> None:
    """The half-precision bound is a small part of coded values, and larger than normally distributed values."""
    arrays = tuple(a.astype(NUMPY_DTYPES["bfloat16"]) for a in data(np.random.default_rng(3), DEEPSEEK))
    expected = latent(*arrays)
    bound = bounds.bound(expected, Options(), "bfloat16", Profile.WIDE)
    share = np.median(bound.output) / np.median(np.abs(expected.output))
    assert share < 0.1 if data is coded else share > 1
