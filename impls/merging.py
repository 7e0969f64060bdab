"""Signatures of merging: functions with those of flash-attention, flashinfer, SGLang or vLLM, called as merge.

The gradients of a merge, ``(outputs, lses, grad_output)``, are recognised by these names, and converted the same way.

A function is recognised by the names of its first parameters, and is plugged in unchanged,
``flashinfer:merge_state@torch``.  A function of two parts gets them two at a time, in its layout.  Only two conventions
are converted, which the function declares: ``lse_base`` (e, or 2 for flashinfer's functions) and ``empty_lse``, its
log-sum-exp of a part without a key (−inf by default).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

from attention_conformance.impls.contract import Returning

#: The base of log-sum-exps of packages whose functions do not declare it.
BASES = {"flashinfer": 2}


def merge_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of merging with the signature of merge, ``(outputs, lses)``; any other function is returned unchanged.

    Raises ValueError for a base that is not a number above 1.
    """
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return function
    if names[: len(BACKWARD)] == BACKWARD and getattr(function, "operator", "merge_grad") == "merge_grad":
        return _gradients_form(function)
    joined = next((join for first, join in SIGNATURES.items() if names[: len(first)] == first), None)
    if joined is None or getattr(function, "operator", "merge") != "merge":
        return function
    base, empty = _conventions(function)
    called = Returning(function)

    def merge(outputs: Any, lses: Any) -> tuple[Any, Any]:
        if base != math.e:
            lses = lses * (1 / math.log(base))
        with called:
            output, lse = joined(called, outputs, replaced(lses, -math.inf, empty), empty)
            lse = replaced(lse, empty, -math.inf)
            return output, lse if base == math.e else lse * math.log(base)

    functools.update_wrapper(merge, function)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    merge.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("outputs", "lses")])  # type: ignore[attr-defined]
    merge.operator = "merge"  # type: ignore[attr-defined]
    return merge


def _conventions(function: Callable[..., Any]) -> tuple[float, float]:
    """A function's base of logarithms, and its log-sum-exp of a part without a key.  Raises ValueError for no base."""
    base = getattr(function, "lse_base", BASES.get(str(function.__module__).partition(".")[0], math.e))
    if not isinstance(base, (int, float)) or not base > 1:
        raise ValueError(f"lse_base is {base!r}, which is not the base of a logarithm")
    return base, float(getattr(function, "empty_lse", -math.inf))


def _gradients_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the gradients of a merge, with log-sum-exps and their gradients converted.

    A natural lse is ln(base) times the lse in the base, so the gradient with respect to the lse in the base is ln(base)
    times the gradient with respect to the natural lse.
    """
    base, empty = _conventions(function)
    unit = math.log(base) if base != math.e else 1.0
    called = Returning(function)

    def merge_grad(outputs: Any, lses: Any, grad_output: Any, *, grad_lse: Any = None) -> tuple[Any, Any]:
        given = {} if grad_lse is None else {"grad_lse": grad_lse if unit == 1 else grad_lse * unit}
        lses = replaced(lses if unit == 1 else lses * (1 / unit), -math.inf, empty)
        with called:
            grad_outputs, grad_lses = called(outputs, lses, grad_output, **given)
            return grad_outputs, grad_lses if unit == 1 else grad_lses * (1 / unit)

    functools.update_wrapper(merge_grad, function)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kinds[0]) for name in BACKWARD]
    own = inspect.signature(function).parameters.values()
    if any(each.name == "grad_lse" or each.kind is each.VAR_KEYWORD for each in own):
        parameters.append(inspect.Parameter("grad_lse", kinds[1], default=None))
    merge_grad.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    merge_grad.operator = "merge_grad"  # type: ignore[attr-defined]
    return merge_grad


def as_it_is(function: Callable[..., Any], outputs: Any, lses: Any, empty: float) -> Any:
    """The operator itself."""
    return function(outputs, lses)


def pairs(function: Callable[..., Any], outputs: Any, lses: Any, empty: float) -> Any:
    """``merge_state(v_a, s_a, v_b, s_b)`` of flashinfer and SGLang: v (S, H, D), s (S, H)."""
    return folded(function, outputs, lses, empty, rows_first)


def at_once(function: Callable[..., Any], outputs: Any, lses: Any, empty: float) -> Any:
    """``merge_states(v, s)`` of flashinfer: v (S, P, H, D), s (S, P, H)."""
    parts, batch, heads, rows, width = outputs.shape
    v = outputs.swapaxes(2, 3).reshape(parts, batch * rows, heads, width).swapaxes(0, 1)
    # By its own sizes: where they differ from those of the outputs, the function must refuse them.
    s = lses.swapaxes(2, 3).reshape(lses.shape[0], lses.shape[1] * lses.shape[3], lses.shape[2]).swapaxes(0, 1)
    v, s = function(v, s)
    return v.reshape(batch, rows, heads, width).swapaxes(1, 2), s.reshape(batch, rows, heads).swapaxes(1, 2)


def combined(function: Callable[..., Any], outputs: Any, lses: Any, empty: float) -> Any:
    """``flash_attn_combine(out_partial, lse_partial, out, out_dtype)`` of flash-attention.

    Outputs are (P, B, S, H, D), log-sum-exps (P, B, S, H).  Its kernel takes partial outputs only in float32, so half
    precision is converted; ``out_dtype`` is the dtype in which the output is stored.
    """
    wider = module_of(outputs).result_type(outputs, lses)  # which holds both exactly
    wide = outputs.to(wider, copy=True) if hasattr(outputs, "to") else outputs.astype(wider)
    typed = {"out_dtype": outputs.dtype} if "out_dtype" in inspect.signature(function).parameters else {}
    output, lse = function(wide.swapaxes(2, 3), lses.swapaxes(2, 3), **typed)
    return output.swapaxes(1, 2), lse.swapaxes(1, 2)


def into_memory(function: Callable[..., Any], outputs: Any, lses: Any, empty: float) -> Any:
    """``merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse)`` of vLLM.

    Outputs are (S, H, D), log-sum-exps (H, S).  The arrays that are written to hold NaN before.
    """

    def two(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
        full_like = module_of(v_a).full_like
        output, lse = full_like(v_a, math.nan), full_like(s_a, math.nan)
        function(output, v_a, s_a, v_b, s_b, output_lse=lse)
        return output, lse

    return folded(two, outputs, lses, empty, heads_first)


#: The first parameters of a function of the gradients of a merge.
BACKWARD = ("outputs", "lses", "grad_output")

#: Forms of calls, by the names of the function's first parameters.
SIGNATURES: dict[tuple[str, ...], Callable[[Callable[..., Any], Any, Any, float], Any]] = {
    ("outputs", "lses"): as_it_is,
    ("v_a", "s_a", "v_b", "s_b"): pairs,
    ("v", "s"): at_once,
    ("out_partial", "lse_partial"): combined,
    ("output", "prefix_output", "prefix_lse", "suffix_output", "suffix_lse"): into_memory,
}


def rows_first(lses: Any) -> Any:
    """(B, H, S) as (B · S, H)."""
    batch, heads, rows = lses.shape
    return lses.swapaxes(1, 2).reshape(batch * rows, heads)


def heads_first(lses: Any) -> Any:
    """(B, H, S) as (H, B · S)."""
    batch, heads, rows = lses.shape
    return lses.swapaxes(0, 1).reshape(heads, batch * rows)


def folded(
    two: Callable[..., Any], outputs: Any, lses: Any, empty: float, layout: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """All parts merged by a function of two, one after the other; a single part is merged with the neutral one."""
    parts, batch, heads, rows, width = outputs.shape
    if lses.shape[0] != parts:
        raise NotImplementedError(
            f"log-sum-exps of {lses.shape[0]} parts for outputs of {parts} cannot be handed over in this signature"
        )
    states = [
        (output.swapaxes(1, 2).reshape(batch * rows, heads, width), layout(lse))
        for output, lse in zip(outputs, lses, strict=True)
    ]
    if len(states) == 1:
        output, lse = states[0]
        full_like = module_of(output).full_like
        states.append((full_like(output, 0.0), full_like(lse, empty)))
    output, lse = functools.reduce(lambda a, b: two(*a, *b), states)
    lse = lse.reshape(heads, batch, rows).swapaxes(0, 1) if layout is heads_first else lse
    lse = lse if layout is heads_first else lse.reshape(batch, rows, heads).swapaxes(1, 2)
    return output.reshape(batch, rows, heads, width).swapaxes(1, 2), lse


def replaced(array: Any, old: float, new: float) -> Any:
    """An array with one number replaced by another."""
    return array if old == new else module_of(array).where(array == old, new, array)


def module_of(array: Any) -> Any:
    """The module that has ``where`` and ``full_like`` for an array."""
    name = type(array).__module__.partition(".")[0]
    return importlib.import_module(name if name in ("numpy", "torch") else "jax.numpy")
