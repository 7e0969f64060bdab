"""The bound of the gradients: correct programs stay inside it, wrong ones leave it, and what cannot fail is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from conformance.bounds import profiles
from conformance.compare import shares
from conformance.gradients.bounds import check_telling, telling
from conformance.gradients.reference import sum_to
from conformance.tests.gradient_problems import Problem, problem
from conformance.tests.gradient_variants import VARIANTS
from impls.backend import backend
from impls.contract import Call, Framework, Profile
from impls.loading import load
from impls.numpy.gradients import gradients

Gradients = Mapping[str, np.ndarray]

WIDE, FUSED, STORAGE, TF32 = Profile.WIDE, Profile.FUSED, Profile.STORAGE, Profile.TF32
SINGLE, HALF = ("float32", "float64"), ("float16", "bfloat16")


def worst(got: Gradients, p: Problem, profile: Profile) -> float:
    """The largest error of any element in units of its bound; inf where a gradient is missing."""
    right, limit = p.expected().gradients, p.bound(profile)
    if got.keys() != right.keys():
        return np.inf
    return max(float(shares(got[n].astype(float), right[n], limit[n], p.dtype).max(initial=0.0)) for n in right)


# Correct programs.

#: Implementation: how it is prepared, the function, and its profile in half precision.
IMPLEMENTATIONS = {
    "numpy": ("impls.prepare:partial", "impls.numpy.gradients:gradients", "numpy", WIDE),
    "torch": ("impls.torch.gradients:prepare", "impls.torch.eager:attention", "torch", STORAGE),
    "torch-compile": ("impls.torch.gradients:compiled", "impls.torch.compiled:attention", "torch", STORAGE),
    "torch-sdpa": ("impls.torch.gradients:prepare", "impls.torch.sdpa:attention", "torch", FUSED),
    "torch-sdpa-flash": ("impls.torch.gradients:prepare", "impls.torch.sdpa:flash", "torch", FUSED),
    "jax": ("impls.jax.gradients:prepare", "impls.jax.eager:attention", "jax", WIDE),
    "jax-jit": ("impls.jax.gradients:jitted", "impls.jax.eager:attention", "jax", WIDE),
}


def computed(name: str, p: Problem) -> Gradients:
    """The gradients that an implementation computes.  Raises NotImplementedError for what it does not have."""
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

    Forwards too: torch-flash-causal-scale and torch-flash-rank-1 in the ledger.
    """
    scaled = p.options.get("is_causal") and p.options.get("scale", 1.0) <= 0
    flat = any(np.ndim(p.options.get(n, np.zeros((1, 1)))) < 2 for n in ("mask", "bias"))
    return name.startswith("torch-sdpa") and (scaled or flat)


#: Problems for each implementation and dtype; JAX and torch.compile compile for each of them.
COUNTS = {"jax": 2, "jax-jit": 6, "torch-compile": 2}


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch says why a kernel refuses
@pytest.mark.parametrize("dtype", [*SINGLE, *HALF])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_correct_implementations_stay_inside(name: str, dtype: str, record_property: Any) -> None:
    """No element of any gradient leaves the bound of the profile that the implementation has."""
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
    assert len(found) >= 2
    record_property(
        "shares",
        f"{len(found)} problems: median {np.median(list(found.values())):.3g}, largest {max(found.values()):.3g}",
    )
    assert not {seed: share for seed, share in found.items() if not share <= 1}


#: Variants of conformance.tests.gradient_variants with the profile that they use up, and their dtypes.
USED_UP = {
    "flash": (FUSED, HALF),
    "flash, one by one": (WIDE, SINGLE),
    "literal": (WIDE, (*SINGLE, *HALF)),
    "literal, one by one": (WIDE, SINGLE),
    "literal, stored": (STORAGE, HALF),
    "tf32": (TF32, ("float32",)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (_, each) in USED_UP.items() for dtype in each])
def test_honest_variants_stay_inside(name: str, dtype: str, record_property: Any) -> None:
    """Programs that round wherever their profile rounds, or add in the worst order, are correct."""
    profile = USED_UP[name][0]
    found = {seed: worst(VARIANTS[name](p), p, profile) for seed in range(80) for p in [problem(seed, dtype)]}
    record_property("shares", f"median {np.median(list(found.values())):.3g}, largest {max(found.values()):.3g}")
    assert not {seed: share for seed, share in found.items() if not share <= 1}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", HALF)
def test_a_program_that_stores_more_than_its_profile_leaves_it(dtype: str) -> None:
    """``fused`` is outside ``wide``, and ``storage`` outside ``fused``."""
    problems = [problem(seed, dtype) for seed in range(40)]
    assert max(worst(VARIANTS["flash"](p), p, WIDE) for p in problems) > 1
    assert max(worst(VARIANTS["literal, stored"](p), p, FUSED) for p in problems) > 1


@pytest.mark.parametrize("dtype", HALF)
def test_a_looser_profile_is_nowhere_stricter(dtype: str) -> None:
    """The bounds grow from ``wide`` to ``fused`` to ``storage``, and none of them is NaN."""
    for seed in range(20):
        strict, *looser = (problem(seed, dtype).bound(profile) for profile in profiles(dtype))
        for loose in looser:
            assert all((strict[name] <= loose[name]).all() for name in strict)
            strict = loose


# Wrong programs.  Each is given the reference's own intermediates, so that nothing but its fault is wrong.


def no_slope(p: Problem) -> dict[str, np.ndarray]:
    """The slope of softcap is forgotten."""
    x = p.expected()
    return {**x.gradients, "grad_q": x.scale * (x.d_scores @ x.forward.k)}


def no_delta(p: Problem) -> dict[str, np.ndarray]:
    """The derivative of normalisation is forgotten: dS = P dP."""
    x = p.expected()
    return {**x.gradients, "grad_q": x.scale * ((x.slope * x.forward.weights * x.d_weights) @ x.forward.k)}


def first_head_of_group(p: Problem) -> dict[str, np.ndarray]:
    """The gradient of k is that of the first query head of each group."""
    x = p.expected()
    group = p.q.shape[1] // p.k.shape[1]
    heads = x.scale * (np.swapaxes(x.d_raw, 2, 3) @ x.forward.q)
    return {**x.gradients, "grad_k": heads[:, ::group]}


def bias_not_summed(p: Problem) -> dict[str, np.ndarray]:
    """The gradient of a broadcast bias is the mean along the axes, not the sum."""
    x = p.expected()
    shape = p.options["bias"].shape
    return {**x.gradients, "grad_bias": sum_to(x.d_scores, shape) / (x.d_scores.size / max(1, p.options["bias"].size))}


def nan_in_rows_without_a_key(p: Problem) -> dict[str, np.ndarray]:
    """0/0 in rows that have no key, hidden in the forward pass by a mask."""
    x = p.expected()
    return {**x.gradients, "grad_q": np.where(x.forward.allowed.any(3)[..., None], x.grad_q, np.nan)}


def values_off(p: Problem) -> dict[str, np.ndarray]:
    """The gradient of v has a relative error of 1e-4."""
    x = p.expected()
    return {**x.gradients, "grad_v": x.grad_v * (1 + 1e-4)}


def in_float32(p: Problem) -> dict[str, np.ndarray]:
    """float64 inputs, computed in float32."""
    options = {n: a.astype(np.float32) if n == "bias" else a for n, a in p.options.items()}
    results = gradients(*(array.astype(np.float32) for array in p.arrays), **options)
    return dict(zip(p.expected().gradients, results, strict=True))


#: More than one key for every row, few enough that every key counts, and a scale that is not 0.
LENGTHY = {"keys": 60, "empty": False, "scale": None}


def several(p: Problem) -> bool:
    """Rows with one key have no gradient of a score."""
    return p.k.shape[2] > 2


def grouped(p: Problem) -> bool:
    """More query heads than key heads."""
    return several(p) and p.q.shape[1] > p.k.shape[1]


def broadcast(p: Problem) -> bool:
    """A bias that is repeated, but not for all keys: then its gradient is a sum over whole rows of dS, which is 0."""
    bias = p.options.get("bias")
    return several(p) and bias is not None and bias.shape[-1] > 1 and bias.size < p.expected().d_scores.size


def emptied(p: Problem) -> bool:
    """A row without a key."""
    return not bool(p.expected().forward.allowed.any(3).all())


def always(p: Problem) -> bool:
    """Every problem."""
    return True


Shows = Callable[[Problem], bool]

#: Fault, dtypes in which it is looked for, options of its problems, and on which of them it acts.
FAULTS: tuple[tuple[Callable[[Problem], Gradients], tuple[str, ...], dict[str, Any], Shows], ...] = (
    (no_slope, ("float32", *HALF), {"softcap": 5.0}, several),
    (no_delta, ("float32", *HALF), {}, several),
    (first_head_of_group, ("float32", *HALF), {}, grouped),
    (bias_not_summed, ("float32", *HALF), {}, broadcast),
    (nan_in_rows_without_a_key, ("float32", *HALF), {"empty": True}, emptied),
    (values_off, SINGLE, {}, always),
    (in_float32, ("float64",), {}, always),
)


@pytest.mark.parametrize(
    ("fault", "dtype", "given", "shows"),
    [(fault, dtype, given, shows) for fault, dtypes, given, shows in FAULTS for dtype in dtypes],
    ids=[f"{fault.__name__}-{dtype}" for fault, dtypes, _, _ in FAULTS for dtype in dtypes],
)
def test_wrong_gradients_are_outside(
    fault: Callable[[Problem], Gradients], dtype: str, given: dict[str, Any], shows: Shows, record_property: Any
) -> None:
    """Nine of ten problems on which a fault acts show it; in half precision those of ``fused``, and most of ``storage``."""
    problems = [p for seed in range(100) if shows(p := problem(seed, dtype, **{**LENGTHY, **given}))]
    assert len(problems) >= 10
    for profile, least in ((WIDE, 0.9),) if dtype in SINGLE else ((FUSED, 0.9), (STORAGE, 0.5)):
        caught = sum(worst(fault(p), p, profile) > 1 for p in problems)
        record_property("caught", f"{profile}: {caught} of {len(problems)}")
        assert caught >= least * len(problems)


def test_what_is_masked_is_exactly_zero() -> None:
    """Where no row may attend to a key, the bound of its gradients is 0: the smallest number is outside."""
    p = problem(3, "float32", is_causal=None, window=None, mask=np.array([[True], [False]] * 8)[:1], kv_lengths=None)
    rows = np.zeros((p.q.shape[2], 1), bool)
    p.options["mask"] = rows
    assert all(not array.any() for array in p.bound(WIDE).values())
    got = {n: a.copy() for n, a in p.expected().gradients.items()}
    assert worst(got, p, WIDE) == 0
    got["grad_v"][0, 0, 0, 0] = 1e-45
    assert worst(got, p, WIDE) > 1


# Inputs that cannot fail.


def test_a_gradient_below_its_bound_is_refused() -> None:
    """With equal values every score has the gradient 0, and zeros would pass for the gradients of q and k."""
    p = problem(5, "float32", **LENGTHY)
    flat = Problem(p.q, p.k, np.ones_like(p.v), p.grad_output, {})
    expected, limit = flat.expected(), flat.bound(WIDE)
    assert telling(expected, limit) == ("grad_v",)
    check_telling(expected, limit)
    with pytest.raises(ValueError, match=r"zeros would pass as gradients: grad_q is nowhere larger than"):
        check_telling(expected, limit, ("grad_q", "grad_v"))


def test_an_input_whose_gradients_are_all_below_their_bounds_is_refused() -> None:
    """A gradient of the output that is zero asks for nothing."""
    p = problem(5, "float16", **LENGTHY)
    nothing = Problem(p.q, p.k, p.v, 0 * p.grad_output, {})
    expected, limit = nothing.expected(), nothing.bound(STORAGE)
    assert telling(expected, limit) == ()
    with pytest.raises(ValueError, match="grad_v is nowhere larger than"):
        check_telling(expected, limit)


def test_gradients_that_are_zero_by_the_spec_tell() -> None:
    """Without any key zero is the only right answer, and everything else fails; without elements the shape is tested."""
    p = problem(5, "float32", **LENGTHY)
    without = Problem(*p.arrays, {"kv_lengths": np.zeros(p.q.shape[0], int)})
    assert telling(without.expected(), without.bound(WIDE)) == ("grad_q", "grad_k", "grad_v")
    none = Problem(*(array[:0] for array in p.arrays), {})
    assert telling(none.expected(), none.bound(WIDE)) == ()
    check_telling(none.expected(), none.bound(WIDE))


def test_ordinary_problems_tell() -> None:
    """Of the problems above every one can fail in float32."""
    for seed in range(60):
        p = problem(seed, "float32")
        check_telling(p.expected(), p.bound(WIDE))
