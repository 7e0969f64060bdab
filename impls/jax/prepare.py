"""Preparation of JAX calls: jitted once per function, so that calls that differ only in numbers share a compilation.

Compiling takes longer than everything else that a small call does, so compiled programs are kept on disk, in
``$JAX_COMPILATION_CACHE_DIR`` or else in ``attention-conformance/jax`` in the user's cache folder.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_conformance.impls import cache
from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.jax.arrays import device_of, wide_types
from attention_conformance.impls.process.limits import memory_maps

#: Memory maps of this process above which compiled programs are dropped.  Each program holds six or more, Linux allows
#: 65,530 by default (vm.max_map_count), and XLA does not survive the first one that is refused: after ten thousand
#: programs the process is killed by SIGSEGV.
MAPS_KEPT = 30_000

#: Calls that are prepared between two counts of the maps, each of which takes some milliseconds.
LOOK_EVERY = 50

_prepared_calls = itertools.count(1)

#: Plain keywords that are numbers, or tuples of numbers and None; which of them are given is part of the program.
NUMBERS = ("scale", "softcap", "causal_offset", "window", "epsilon")


def eager(function: Function, call: Call) -> Function:
    """Bind the plain keywords; every operation is compiled and run by itself."""
    _keep_compilations()
    _drop_programs()
    return _in_types_of(call, functools.partial(function, **call.static))


def jitted(function: Function, call: Call) -> Function:
    """One program per shapes, booleans and *which* numbers are given; the numbers are arguments of it.

    The program is compiled here, by a call with zeros, so that running is only running.
    """
    options = _non_default(function, call)
    numbers = {name: value for name, value in options.items() if name in NUMBERS}
    return _prepared(function, call, numbers, {n: v for n, v in options.items() if n not in numbers})


def jitted_static(function: Function, call: Call) -> Function:
    """One program per shapes and options: for libraries that need the numbers when they compile."""
    return _prepared(function, call, {}, _non_default(function, call))


@functools.cache
def compiled(function: Function) -> Any:
    """The one ``jax.jit`` of a function: ``program(arrays, numbers, static=((keyword, value), …))``."""

    def program(arrays: dict[str, Any], numbers: dict[str, Any], static: tuple[tuple[str, Any], ...]) -> Any:
        return function(**arrays, **numbers, **dict(static))

    return jax.jit(program, static_argnames="static")


def _prepared(function: Function, call: Call, numbers: Mapping[str, Any], static: Mapping[str, Any]) -> Function:
    _keep_compilations()
    _drop_programs()
    program, fixed = compiled(function), tuple(sorted(static.items()))
    device = device_of(call.device)
    with wide_types(call.dtype == "float64"):
        # A Python number becomes a weakly typed scalar: as wide as float64 calls need, and never widening others.
        held = jax.tree.map(lambda number: jax.device_put(jnp.asarray(number), device), dict(numbers))
    run = _in_types_of(call, lambda **arrays: program(arrays, held, static=fixed))
    jax.block_until_ready(run(**_zeros(call, device)))
    return run


def _in_types_of(call: Call, run: Function) -> Function:
    """The function in the context that its dtype needs: 64-bit types exist in float64 calls only."""
    if call.dtype != "float64":
        return run

    def wide(*arguments: Any, **keywords: Any) -> Any:
        with wide_types():
            return run(*arguments, **keywords)

    return wide


def _non_default(function: Function, call: Call) -> dict[str, Any]:
    """The plain keywords whose values differ from the defaults."""
    parameters = inspect.signature(function).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {name: value for name, value in call.options if value is not defaults.get(name, inspect.Parameter.empty)}


def _zeros(call: Call, device: Any) -> dict[str, jax.Array]:
    """The call's arrays by name, filled with zeros; NumPy makes them, as ``jnp.zeros`` compiles a program per shape."""
    dtypes = dict.fromkeys(("mask", "block_mask"), "bool")
    dtypes |= dict.fromkeys(("causal_offset", "kv_lengths", "tree_parents"), "int64")
    dtypes |= dict.fromkeys(("lses", "grad_lse"), "float64" if call.dtype == "float64" else "float32")
    dtypes |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "int32")
    with wide_types():
        return {
            name: jax.device_put(np.zeros(shape, jnp.dtype(dtypes.get(name, call.dtype))), device)
            for name, shape in call.shapes
        }


@functools.cache
def _keep_compilations() -> None:
    """Let JAX keep every compiled program on disk, unless the user has configured where or whether to."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = cache.folder("jax")
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _drop_programs() -> None:
    """Release compiled programs before there are too many; one that is called again is read from the disk."""
    if next(_prepared_calls) % LOOK_EVERY == 0 and memory_maps() > MAPS_KEPT:
        jax.clear_caches()
