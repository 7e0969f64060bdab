"""Scripts in JAX: arrays on a device, the library's attention jitted as the adapters here do it, and the composition.

Only text: jax is not imported.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from attention_conformance.impls.contract import Call
from attention_conformance.impls.operators import MERGE_GRAD, OPERATORS
from attention_conformance.impls.script import (
    CARRIED,
    WIDTH,
    Given,
    Snippet,
    Terms,
    Writer,
    applied,
    assign_each,
    by_contract,
    leaves,
)

#: Dtypes that JAX truncates unless 64-bit types are enabled.
_WIDE = ("float64", "int64")

#: Options that a jitted function takes as arguments, as in impls.jax.prepare; all others are part of the program.
NUMBERS = ("scale", "softcap", "causal_offset", "window", "epsilon")

#: The arguments whose dtype is that of the call.
_FIRST = {operator.arguments[0] for operator in OPERATORS.values()}


def put(arrays: Sequence[Given], memory: str, device: str) -> list[str]:
    """JAX arrays on a device, in their own dtypes; they have no strides, so ``memory`` changes nothing."""
    lines = [f'jax.config.update("jax_platforms", "{device}")']
    wide = [each.name for each in arrays if each.dtype in _WIDE]
    cast = {dtype: [each.name for each in arrays if each.dtype == dtype] for dtype in CARRIED}
    if any(each.name in _FIRST and each.dtype == "float64" for each in arrays):
        lines.append('jax.config.update("jax_enable_x64", True)')
        wide = []
    others = [each.name for each in arrays if each.dtype not in CARRIED and each.name not in wide]
    lines += [assign_each(others, "jnp.asarray(a)")] if others else []
    lines += [assign_each(names, f"jnp.asarray(a, jnp.{dtype})") for dtype, names in cast.items() if names]
    lines += [f"with {_wide_types()}:", f"    {assign_each(wide, 'jnp.asarray(a)')}"] if wide else []
    return lines


def _wide_types() -> str:
    """The context in which 64-bit types exist, as the installed version names it (jax.enable_x64 came with 0.8)."""
    try:
        version = tuple(int(part) for part in importlib.metadata.version("jax").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        version = (0, 8)
    return "jax.enable_x64(True)" if version >= (0, 8) else "jax.experimental.enable_x64(True)"


TERMS = Terms(
    imports=("import jax", "import jax.numpy as jnp"),
    array="jax.Array",
    put=put,
    content="np.asarray(a).tobytes()",
    wait=lambda device: "jax.block_until_ready(results)",
    packages=("jaxlib",),
)


def jitted(function: str) -> Writer:
    """A function of this room, by its source, jitted with numbers as arguments (impls.jax.prepare)."""

    def write(call: Call) -> Snippet:
        given = dataclasses.replace(call, options=tuple(item for item in call.options if item[1] is not None))
        static = ", ".join(f'"{name}"' for name, _ in given.options if name not in NUMBERS)
        names = f", static_argnames=[{static}]" if static else ""
        lines = f"jitted = jax.jit({function.rpartition(':')[2]}{names})"
        return Snippet("jitted", by_contract(given), TERMS, definitions=lines, sources=(function,))

    return write


def differentiated(inner: Snippet, call: Call) -> Snippet:
    """The gradients of the function that ``inner`` calls, by ``jax.vjp``, jitted as a whole (impls.jax.gradients)."""
    names, listed = tuple(name for name, _ in call.shapes), ", ".join(leaves(call))
    short = _in_one_line(inner, call, names, listed)
    lines = [inner.definitions, *([] if short else ["", ""])] if inner.definitions else []
    lines += short or [
        "@jax.jit",
        f"def gradients({', '.join(names)}):",
        f"    def forward({listed}):",
        inner.call("return ", depth=2),
        "",
        *_backward(call.operator, names, listed),
    ]
    return dataclasses.replace(inner, function="gradients", arguments=names, definitions="\n".join(lines), after="")


def _in_one_line(inner: Snippet, call: Call, names: Sequence[str], listed: str) -> list[str]:
    """The gradients as an expression, [] where it is long, or where the function has two results."""
    direct = ", ".join(inner.arguments) == listed and not inner.after
    forward = inner.function if direct else f"lambda {listed}: {inner.call()}"
    line = f"gradients = jax.jit(lambda {', '.join(names)}: jax.vjp({forward}, {listed})[1](grad_output))"
    imported = all(each.startswith(("from ", "import ", "sys.")) for each in inner.definitions.splitlines())
    return [line] if imported and len(line) <= WIDTH and call.operator != MERGE_GRAD.name else []


def _backward(operator: str, names: Sequence[str], listed: str) -> list[str]:
    """The lines after ``forward``: for its output, and for a merge also for its lse."""
    if operator != MERGE_GRAD.name:
        return [f"    output, backward = jax.vjp(forward, {listed})", "    return backward(grad_output)"]
    of_lse = "grad_lse" if "grad_lse" in names else "jnp.zeros_like(lse)"
    return [
        f"    (output, lse), backward = jax.vjp(forward, {listed})",
        f"    return backward((grad_output, {of_lse}))",
    ]


def library(implementation: str) -> Writer:
    """``jax.nn.dot_product_attention`` by one of its implementations, jitted (impls.jax.nn)."""

    def write(call: Call) -> Snippet:
        q, k, v = (call.shape(name) for name in ("q", "k", "v"))
        if q[-1] == k[-1] != v[-1] and k[:-1] == v[:-1]:
            raise NotImplementedError("values are as wide as the keys")
        options, arrays = call.static, [name for name in ("mask", "bias", "kv_lengths") if name in call.arrays]
        arguments = ["q", "k", "v"]
        arguments += [f"{name}={name}" for name in ("bias", "mask") if name in arrays]
        arguments += ["is_causal=True"] if options.get("is_causal") else []
        arguments += [f"scale={options['scale']!r}"] if options.get("scale") is not None else []
        if options.get("window") is not None:
            arguments.append(f"local_window_size={_window(call, options['window'])!r}")
        arguments += ["key_value_seq_lengths=kv_lengths.astype(jnp.int32)"] if "kv_lengths" in arrays else []
        arguments += ["return_residual=True"] if options.get("return_lse") else []
        arguments.append(f'implementation="{implementation}"')
        function = "jax.nn.dot_product_attention"
        lines = ["@jax.jit", f"def attention({', '.join(['q', 'k', 'v', *arrays])}):"]
        if options.get("return_lse"):
            lines += [applied(function, arguments, depth=1, before="output, lse = ")]
            lines += ["    return output, lse.swapaxes(1, 2)"]
        else:
            lines += [applied(function, arguments, depth=1, before="return ")]
        return Snippet("attention", ("q", "k", "v", *arrays), TERMS, definitions="\n".join(lines))

    return write


def _window(call: Call, window: tuple[Any, Any]) -> tuple[int, int]:
    """The window with open sides as long as all keys and rows together, as in the adapter."""
    whole = call.shape("q")[1] + call.shape("k")[1]
    left, right = (whole if side is None else side for side in window)
    return left, right


CALLS: dict[str, Writer] = {
    "jax-jit": jitted("attention_conformance.impls.jax.eager:attention"),
    "jax-tiled": jitted("attention_conformance.impls.jax.tiled:attention"),
    "jax-layer": jitted("attention_conformance.impls.jax.layer:mha"),
    "jax-sublayer": jitted("attention_conformance.impls.jax.layer:sublayer"),
    "jax-latent": jitted("attention_conformance.impls.jax.latent:latent"),
    "jax-merge": jitted("attention_conformance.impls.jax.merge:merge"),
    "jax-varlen-nn": jitted("attention_conformance.impls.jax.varlen:varlen"),
    "jax-nn": library("xla"),
    "jax-nn-cudnn": library("cudnn"),
}
