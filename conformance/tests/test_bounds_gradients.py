"""Correct programs, from libraries and written for this test, stay inside the bounds of their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np
import pytest

from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.evidence import gradient_variants
from attention_conformance.conformance.evidence.gradient_variants import every_array, flash
from attention_conformance.conformance.tests.gradient_problems import Problem, problem, worst
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Call, Framework, Profile
from attention_conformance.impls.loading import load

Gradients = Mapping[str, np.ndarray]

WIDE, FUSED, STORAGE = Profile.WIDE, Profile.FUSED, Profile.STORAGE
SINGLE, HALF = ("float32", "float64"), ("float16", "bfloat16")


# Correct programs.

#: By implementation: how it is prepared, the function, its package, and its profile in half precision.
IMPLEMENTATIONS = {
    "numpy": (
        "attention_conformance.impls.contract:partial",
        "attention_conformance.impls.numpy.gradients:gradients",
        "numpy",
        WIDE,
    ),
    "torch": (
        "attention_conformance.impls.torch.gradients:prepare",
        "attention_conformance.impls.torch.eager:attention",
        "torch",
        STORAGE,
    ),
    "torch-compile": (
        "attention_conformance.impls.torch.gradients:compiled",
        "attention_conformance.impls.torch.compiled:attention",
        "torch",
        STORAGE,
    ),
    "torch-sdpa": (
        "attention_conformance.impls.torch.gradients:prepare",
        "attention_conformance.impls.torch.sdpa:attention",
        "torch",
        FUSED,
    ),
    "torch-sdpa-flash": (
        "attention_conformance.impls.torch.gradients:prepare",
        "attention_conformance.impls.torch.sdpa:flash",
        "torch",
        FUSED,
    ),
    "jax": (
        "attention_conformance.impls.jax.gradients:prepare",
        "attention_conformance.impls.jax.eager:attention",
        "jax",
        WIDE,
    ),
    "jax-jit": (
        "attention_conformance.impls.jax.gradients:jitted",
        "attention_conformance.impls.jax.eager:attention",
        "jax",
        WIDE,
    ),
}


def computed(name: str, p: Problem) -> Gradients:
    """The gradients that an implementation computes.  Raises NotImplementedError for what it lacks."""
    prepare, target, framework, _ = IMPLEMENTATIONS[name]
    function, arrays = load(target, ""), backend(Framework(framework))
    if missing := p.options.keys() - inspect.signature(function).parameters.keys():
        raise NotImplementedError(f"no {missing}")
    given = dict(zip(("q", "k", "v", "grad_output"), p.arrays, strict=True))
    given |= {n: a for n, a in p.options.items() if isinstance(a, np.ndarray)}
    plain = tuple(sorted((n, o) for n, o in p.options.items() if n not in given))
    call = Call(p.dtype, "cpu", tuple((n, a.shape) for n, a in given.items()), plain, "sdpa_grad")
    run = load(prepare, "")(function, call)
    results = run(**{n: arrays.put(a.copy(), "cpu") for n, a in given.items()})
    return dict(zip(p.expected().gradients, map(arrays.get, results), strict=True))


def deviates(name: str, p: Problem) -> bool:
    """Whether PyTorch's kernel on the CPU is known to fail.

    It fails in the forward pass too: torch-flash-causal-scale and torch-flash-rank-1 in the ledger.
    """
    scaled = p.options.get("is_causal") and p.options.get("scale", 1.0) <= 0
    flat = any(np.ndim(p.options.get(n, np.zeros((1, 1)))) < 2 for n in ("mask", "bias"))
    return name.startswith("torch-sdpa") and (scaled or flat)


def _summary(name: str, dtype: str, profile: Profile, found: Mapping[int, float]) -> str:
    """A line that summarises the shares of some problems."""
    shares = list(found.values())
    return (
        f"{name}, {dtype}, {profile}: {len(shares)} problems, median {np.median(shares):.3g}, largest {max(shares):.3g}"
    )


#: Problems for each implementation and dtype; JAX and torch.compile compile for each of them.
COUNTS = {"jax": 2, "jax-jit": 6, "torch-compile": 2}


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch says why a kernel refuses
@pytest.mark.parametrize("dtype", [*SINGLE, *HALF])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow(40) if name in COUNTS else ()) for name in IMPLEMENTATIONS]
)
def test_correct_implementations_stay_inside(name: str, dtype: str) -> None:
    """No element of any gradient leaves the bound of the implementation's profile."""
    pytest.importorskip(IMPLEMENTATIONS[name][2])
    profile = WIDE if dtype in SINGLE else IMPLEMENTATIONS[name][3]
    found: dict[int, float] = {}
    for seed in range(600):
        p = problem(seed, dtype)
        if deviates(name, p):
            continue
        try:
            got = computed(name, p)
        except NotImplementedError:
            continue
        found[seed] = worst(got, p, profile)
        if len(found) == COUNTS.get(name, 60):
            break
    assert len(found) == COUNTS.get(name, 60)
    print(_summary(name, dtype, profile, found))
    assert not {seed: share for seed, share in found.items() if not share <= 1}


VARIANTS = {name: each for name, each in vars(gradient_variants).items() if isinstance(each, gradient_variants.Variant)}


@pytest.mark.slow(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, each in VARIANTS.items() for dtype in each.dtypes])
def test_honest_variants_stay_inside(name: str, dtype: str) -> None:
    """Programs that round wherever their profile rounds, or add in the worst order, are correct."""
    variant = VARIANTS[name]
    profile = Profile(variant.profiles[dtype])
    found = {seed: worst(variant.compute(p), p, profile) for seed in range(80) for p in [problem(seed, dtype)]}
    print(_summary(name, dtype, profile, found))
    assert not {seed: share for seed, share in found.items() if not share <= 1}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", HALF)
def test_a_program_that_stores_more_than_its_profile_leaves_it(dtype: str) -> None:
    """``fused`` leaves the bound of ``wide``, and ``storage`` leaves the bound of ``fused``."""
    problems = [problem(seed, dtype) for seed in range(40)]
    assert max(worst(flash.compute(p), p, WIDE) for p in problems) > 1
    assert max(worst(every_array.compute(p), p, FUSED) for p in problems) > 1


@pytest.mark.parametrize("dtype", HALF)
def test_a_looser_profile_is_nowhere_stricter(dtype: str) -> None:
    """The bounds grow from ``wide`` to ``fused`` to ``storage``, and none of them is NaN."""
    for seed in range(20):
        strict, *looser = (problem(seed, dtype).bound(profile) for profile in profiles(dtype))
        for loose in looser:
            assert all((strict[name] <= loose[name]).all() for name in strict)
            strict = loose
