"""Ranks of a JAX mesh: virtual devices of one process, and a function that gets shards or the whole sharded arrays.

A function with the parameter ``axis`` is called in ``jax.shard_map`` with a rank's shards and the name of the mesh's
axis; one with ``mesh`` is called with arrays that are sharded over it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_conformance.impls.contract import Call, Function, Implementation
from attention_conformance.impls.jax.arrays import wide_types
from attention_conformance.impls.jax.gradients import gradient
from attention_conformance.impls.jax.prepare import compiled
from attention_conformance.impls.operators import OPERATORS, SDPA
from attention_conformance.impls.ranks import lengths
from attention_conformance.impls.sharding import Distribution

#: The name of the mesh's axis.
AXIS = "ranks"

_MESH: list[Mesh] = []


def entered(rank: int, ranks: int, meeting: str) -> Any:
    """Make a mesh of this process's devices; returns the function that binds others to it."""
    _MESH[:] = [Mesh(np.array(jax.devices("cpu")[:ranks]), (AXIS,))]
    return bind


def renew(failures: int) -> None:
    """Nothing to do: a failed call leaves nothing behind."""


def specification(distribution: Distribution, name: str, shape: tuple[int, ...], query: tuple[int, ...]) -> Any:
    """The PartitionSpec of an array or result of a call, in the function's layout."""
    swapped = distribution.layout == "BSHD" and len(shape) == 4 and name not in ("mask", "bias", "weights")
    axis = None if distribution.replicated and name in SDPA.returned(SDPA.keywords) else 0
    axis = axis if axis is None else distribution.axis(name, shape, query)
    if axis is None or len(shape) < -axis:
        return PartitionSpec()
    axis = {-2: -3, -3: -2}.get(axis, axis) if swapped else axis
    return PartitionSpec(*(AXIS if place == len(shape) + axis else None for place in range(len(shape))))


def bind(function: Function, implementation: Implementation) -> Function:
    """A function of sharded arrays: a function of shards in ``shard_map``, or a function of a mesh unchanged."""
    distribution = implementation.distribution
    assert distribution is not None
    parameters = inspect.signature(function).parameters
    results = SDPA if implementation.function_of else OPERATORS[implementation.operator]

    @functools.wraps(function)
    def bound(*arguments: Any, **keywords: Any) -> Any:
        extras = {"mesh": _MESH[0], "axis": AXIS, "lengths": lengths()}
        own = {n: v for n, v in extras.items() if n in parameters}
        given = {**dict(zip(results.arguments, arguments, strict=False)), **keywords}
        held = {name: value for name, value in given.items() if isinstance(value, jax.Array)}
        plain = {name: value for name, value in given.items() if name not in held}
        query = _query(held["q"].shape, distribution)
        specs = {name: specification(distribution, name, array.shape, query) for name, array in held.items()}
        if "axis" not in parameters:
            sharded = {n: lax.with_sharding_constraint(a, NamedSharding(_MESH[0], specs[n])) for n, a in held.items()}
            return function(**sharded, **plain, **own)
        names = results.returned({**{n: v for n, v in plain.items() if v is not False and v is not None}, **held})
        outs = tuple(specification(distribution, n, query[: 3 if n == "lse" else 4], query) for n in names)
        mapped = jax.shard_map(
            lambda shards: function(**shards, **plain, **own),
            mesh=_MESH[0],
            in_specs=(specs,),
            out_specs=outs if len(outs) > 1 else outs[0],
        )
        return mapped(held)

    return bound


def _query(shape: tuple[int, ...], distribution: Distribution) -> tuple[int, ...]:
    """The shape of q as (B, H, S, D)."""
    return (shape[0], shape[2], shape[1], shape[3]) if distribution.layout == "BSHD" and len(shape) == 4 else shape


def prepare(function: Function, call: Call) -> Function:
    """One compiled program of a call, whose arrays are put onto the mesh first."""
    return _prepared(function, call)


def prepare_gradients(function: Function, call: Call) -> Function:
    """Prepare the gradients of the function, as ``prepare`` does the function."""
    return _prepared(gradient(function, call.operator), call)


@functools.cache
def _program(function: Function, lengths: tuple[int, int]) -> Any:
    """The program of a function for calls of these lengths, which padded shards do not show."""

    @functools.wraps(function)
    def of_lengths(**arguments: Any) -> Any:
        return function(**arguments)

    return compiled(of_lengths)


def _prepared(function: Function, call: Call) -> Function:
    static = call.options
    whole = NamedSharding(_MESH[0], PartitionSpec())

    def run(**arrays: Any) -> Any:
        with wide_types(call.dtype == "float64"):
            put = {name: jax.device_put(array, whole) for name, array in arrays.items()}
            return _program(function, lengths())(put, {}, static=static)

    return run
