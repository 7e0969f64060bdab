"""The cases that implementations are run on, one module per group of clauses."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from attention_conformance.conformance.cases import (
    behaviour,
    blocks,
    by_head,
    decode,
    gradient,
    kernels,
    latent,
    masks,
    merge,
    merge_gradient,
    mha,
    mha_gradient,
    one_shape,
    paged,
    positions,
    scores,
    serving,
    shapes,
    sinks,
    softmax,
    sublayer,
    varlen,
    varlen_gradient,
)
from attention_conformance.conformance.cases.base import AnyCase, Case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.packed import PackedCase
from attention_conformance.conformance.spec.inputs import Inputs

__all__ = [
    "AnyCase",
    "Case",
    "Inputs",
    "Shape",
    "all_cases",
    "asked_cases",
    "asked_kernel_cases",
    "asked_serving_cases",
    "case_named",
    "cases_named",
    "every_case",
    "few_kernel_cases",
    "kernel_cases",
    "one_shape_cases",
    "quick_cases",
    "serving_cases",
]

#: Names of the cases of a quick run, one per line: as few as show every fault and every clause; chosen by the kill
#: matrix (faults/kill_matrix.py).
QUICK = Path(__file__).with_name("quick.txt")

_GROUPS = (shapes, scores, masks, positions, softmax, sinks, by_head, decode, blocks, behaviour)


@functools.cache
def all_cases() -> dict[str, Case]:
    """Every case of sdpa by its name, in the order of the spec's clauses.

    Returns
    -------
    dict[str, Case]
        Cases by name.

    Raises
    ------
    ValueError
        If a name occurs twice.
    """
    return _by_name(each for group in _GROUPS for each in group.cases())


@functools.cache
def every_case() -> dict[str, AnyCase]:
    """Every case of every operator by its name, sdpa's first.

    Returns
    -------
    dict[str, AnyCase]
        Cases by name.

    Raises
    ------
    ValueError
        If a name occurs twice.
    """
    others = (mha, sublayer, gradient, mha_gradient, varlen, varlen_gradient, paged, merge, merge_gradient, latent)
    return _by_name([*all_cases().values(), *(each for group in others for each in group.cases())])


@functools.cache
def asked_kernel_cases() -> dict[str, Case]:
    """The kernel-sized cases that a run includes for a plugged-in implementation, by name."""
    return _by_name(kernels.asked_cases())


@functools.cache
def few_kernel_cases() -> dict[str, Case]:
    """The kernel-sized cases that a run includes for built-in implementations that compile nothing, by name."""
    return _by_name(kernels.few_cases())


def case_named(name: str) -> AnyCase:
    """The case with a name, from any tier.  Raises KeyError for a name that no case has."""
    return asked_cases().get(name) or (
        serving.serving_case(name) if name.startswith("serving-") else kernels.kernel_case(name)
    )


@functools.cache
def asked_cases() -> dict[str, AnyCase]:
    """Every case that a run includes by default, by name.

    Returns
    -------
    dict[str, AnyCase]
        The cases of the clauses, then kernel-sized ones, one-shape ones, and kernel-sized serving ones.
    """
    return every_case() | asked_kernel_cases() | one_shape_cases() | asked_serving_cases()


@functools.cache
def asked_serving_cases() -> dict[str, PackedCase]:
    """The kernel-sized packed and paged cases that a run includes for a plugged-in implementation, by name."""
    return _by_name(serving.asked_cases())


@functools.cache
def serving_cases() -> dict[str, PackedCase]:
    """The cases of the designs of packed and paged attention, by name; all of them run only when named."""
    return _by_name(serving.cases())


@functools.cache
def one_shape_cases() -> dict[str, Case]:
    """The cases of data that a run includes for a plugged-in implementation of one shape, by name."""
    return _by_name(one_shape.cases())


@functools.cache
def kernel_cases() -> dict[str, Case]:
    """The cases at the sizes where kernels break, by name; all of them run only when named, as they take longer."""
    return _by_name(kernels.cases())


def quick_cases() -> dict[str, AnyCase]:
    """The cases of a quick run, by name, in the order of all.

    They are the cases that the kill matrix chose, and the smallest case of each clause added since.  Raises KeyError
    for a name that no longer exists.
    """
    named = {name: every_case()[name] for name in QUICK.read_text(encoding="utf-8").split()}
    about = {clause for case in named.values() for clause in case.clauses}
    for case in sorted(every_case().values(), key=lambda case: case.size):
        if not about.issuperset(case.clauses):
            named[case.name] = case
            about |= set(case.clauses)
    return {name: case for name, case in every_case().items() if name in named}


def cases_named(pattern: str) -> list[AnyCase]:
    """The cases whose names match a glob; one-shape, kernel-sized and serving ones only where no other matches."""
    for known in (every_case, one_shape_cases, kernel_cases, serving_cases):
        found: list[AnyCase] = [case for name, case in known().items() if fnmatch(name, pattern)]
        if found:
            return found
    return []


def _by_name(cases: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in cases:
        if each.name in found:
            raise ValueError(f"two cases are named {each.name}")
        found[each.name] = each
    return found
