"""The gradients of layers that libraries compute stay inside their bounds on random problems."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from attention_conformance.conformance.cases.base import ALL_DTYPES
from attention_conformance.conformance.tests.layer_gradient_programs import Gradients, Problem, problem, square, worst
from attention_conformance.impls.calls import Request, call, describe
from attention_conformance.impls.compute import compute
from attention_conformance.impls.loading import load
from attention_conformance.impls.operators import MHA, MHA_GRAD
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow

NAMES = (
    "numpy-layer-gradients",
    "torch-layer-gradients",
    "torch-mha-gradients",
    "torch-mha-composed-gradients",
    "jax-layer-gradients",
)

#: Number of problems for each implementation and dtype; JAX compiles for each of them.
COUNTS = {"jax-layer-gradients": 3}


def computed(name: str, p: Problem) -> Gradients:
    """The gradients that an implementation computes.  Raises NotImplementedError for what it lacks."""
    implementation = builtin()[name]
    given = {**p.call.keywords(), "grad_output": p.grad_output}
    accepted = inspect.signature(load(implementation.target)).parameters
    if missing := given.keys() - accepted.keys() - {"grad_output"}:
        raise NotImplementedError(f"no {missing}")
    results = compute(name, *(given.pop(argument) for argument in MHA_GRAD.arguments), **given)
    return dict(zip(p.expected().gradients, results, strict=True))


def deviates(name: str, p: Problem) -> bool:
    """Whether the module with weights is known to give NaN: torch-mha-gradients-empty-row in the ledger."""
    return "composed" in name and not p.expected().heads.forward.allowed.any(axis=3).all()


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_stay_inside(name: str, dtype: str) -> None:
    """No element of any gradient leaves the bound of the profile that the implementation declares."""
    if builtin()[name].missing():
        pytest.skip(f"{name} is not installed")
    found: dict[int, float] = {}
    for seed in range(400):
        p = square(seed, dtype) if name.startswith("torch-mha") else problem(seed, dtype)
        if deviates(name, p):
            continue
        try:
            got = computed(name, p)
        except NotImplementedError:
            continue
        found[seed] = worst(got, p, builtin()[name].profile(dtype))
        if len(found) == COUNTS.get(name, 30):
            break
    assert len(found) >= 3
    assert not {seed: share for seed, share in found.items() if not share <= 1}


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_arrays_are_left_alone(name: str) -> None:
    """Differentiating leaves the caller's arrays unchanged, and two calls give the same."""
    if builtin()[name].missing():
        pytest.skip(f"{name} is not installed")
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in ("w_q", "w_k", "w_v")}
    arrays |= {n: rng.standard_normal((2, 3, 4)).astype(np.float32) for n in ("x_q", "grad_output")}
    keywords = {"heads": 2, "w_o": rng.standard_normal((4, 4)).astype(np.float32)}
    reply = call(builtin()[name], Request("cpu", arrays, keywords, repeats=2))
    assert (reply.status, reply.modified, reply.unequal) == ("returned", (), ())


@pytest.mark.parametrize("name", NAMES)
def test_keywords_are_those_of_the_layer(name: str) -> None:
    """A differentiated function has its own keywords, except those that request weights."""
    implementation = builtin()[name]
    if implementation.missing():
        pytest.skip(f"{name} is not installed")
    description = describe(implementation)
    assert description.operator == "mha_grad"
    assert description.keywords <= set(MHA.keywords) - {"return_weights", "average_weights"}
    assert {"heads", "x_kv", "w_o", "bias"} <= description.keywords
