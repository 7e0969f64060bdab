"""Signatures of packed and paged attention: functions of flash-attention, PyTorch and vLLM, called as they are written.

A function is recognised by the names of its parameters: boundaries of queries and of keys mean varlen, a block table
and lengths mean paged.  ``NAMES`` says which parameter takes each argument and keyword of the spec; values that a
function takes in another form are translated (``Form``), and results get the shapes of the spec.  No number of a result
is changed.

Sources: ``flash_attn_varlen_func`` and ``flash_attn_with_kvcache``,
https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py, and of flash-attention 3
https://github.com/Dao-AILab/flash-attention/blob/main/hopper/flash_attn_interface.py; ``unified_attention``,
https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/ops/triton_unified_attention.py; ``varlen_attn``,
https://github.com/pytorch/pytorch/blob/main/torch/nn/attention/varlen.py.  A bias for each
sequence has the shape and the name of ``rab``, https://github.com/NVIDIA/recsys-examples/blob/main/corelib/hstu/hstu_attn/hstu_attn_interface.py.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.impls.contract import Returning
from attention_conformance.impls.merging import module_of

#: Other names of arguments and keywords, which come after their own; the first name that a function has is used.
NAMES = {
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "cu_seqlens_q": ("cu_seq_q",),
    "cu_seqlens_k": ("cu_seq_k", "cu_seqlens_kv"),
    "k_cache": ("key_cache", "k", "key"),
    "v_cache": ("value_cache", "v", "value"),
    "kv_cache": ("paged_kv_cache",),
    "block_table": ("block_tables", "page_table"),
    "kv_lengths": ("seqused_k", "cache_seqlens", "context_lens", "kv_lens", "seq_lens"),
    "max_seqlen_q": ("max_q",),
    "max_seqlen_k": ("max_k", "max_seqlen_kv"),
    "is_causal": ("causal",),
    "causal_offset": (),
    "window": ("window_size",),
    "scale": ("softmax_scale", "sm_scale"),
    "softcap": (),
    "sinks": ("learnable_sink", "s_aux"),
    "num_splits": (),
    "return_lse": ("return_softmax_lse", "return_attn_probs", "return_aux"),
    "k_new": (),
    "v_new": (),
    "k_scale": ("k_descale",),
    "v_scale": ("v_descale",),
    "bias": ("rab",),
    "cache_batch_idx": (),
}
#: The arguments of each operator, in order; a function that has those of several is of the first one.
ARGUMENTS = {
    "varlen": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
    "paged": ("q", "k_cache", "v_cache", "cu_seqlens_q", "block_table", "kv_lengths"),
}
#: The keywords of both, those of varlen only and of paged only, and those given in every call if a function takes them.
KEYWORDS = ("is_causal", "causal_offset", "window", "scale", "softcap", "sinks", "num_splits", "return_lse")
OF_VARLEN = ("bias",)
OF_PAGED = ("k_new", "v_new", "k_scale", "v_scale")
MAXIMA = ("max_seqlen_q", "max_seqlen_k")


def nothing(given: Mapping[str, Any]) -> None:
    """No value for a parameter that has no default."""


#: Values of parameters without a default where a call gives none, by name.
DEFAULTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    **dict.fromkeys(("scale", "softmax_scale", "sm_scale"), lambda given: 1 / math.sqrt(given["q"].shape[-1])),
    **dict.fromkeys(("causal", "is_causal"), lambda given: False),
    **dict.fromkeys(("cu_seq_k", "cu_seqlens_k", "q_descale", "k_descale", "v_descale"), nothing),
    "softcap": lambda given: 0.0,
    "window_size": lambda given: (-1, -1),
    "out": lambda given: _unwritten(given),
}

#: Axes in which a cache (pages, P, Hkv, D) is passed, by ``function.cache_layout``: whether heads come before slots,
#: and which axis of one ``kv_cache`` separates keys from values, if there is one for both.
CACHE_LAYOUTS: dict[str, tuple[bool, int | None]] = {
    "NHD": (False, None),  # (pages, P, Hkv, D)
    "HND": (True, None),  # (pages, Hkv, P, D)
    "interleaved": (False, 1),  # (pages, 2, P, Hkv, D)
    "interleaved-HND": (True, 1),  # (pages, 2, Hkv, P, D)
    "stacked": (False, 0),  # (2, pages, P, Hkv, D)
    "contiguous": (False, None),  # (rows, keys, Hkv, D): a row for each sequence, which ``cache_batch_idx`` names
}
#: The layout without a table.
CONTIGUOUS = "contiguous"

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def packed_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of packed or paged attention with its operator's signature; any other function is returned unchanged.

    Parameters
    ----------
    function
        Function of known parameters.  ``function.operator`` says which operator is meant where it has the parameters of
        both; ``function.cache_layout``, a key of CACHE_LAYOUTS, says in which axes it takes a cache.

    Returns
    -------
    Callable
        A function whose signature has the keywords that it takes, under the spec's names.

    Raises
    ------
    ValueError
        For an unknown layout, or an unknown parameter without a default.
    """
    form = form_of(function)
    if form is None:
        return function
    names = ARGUMENTS[form.operator]
    called = Returning(function)
    form = replace(form, function=called)

    def packed(*arguments: Any, **given: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **given}
        given = {name: value for name, value in given.items() if value is not None or name in names}
        with called:
            return form.call(given) if form.parameters["cu_seqlens_q"] else _by_queries(form.call, given)

    functools.update_wrapper(packed, function)
    kinds = inspect.Parameter
    packed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names]
        + [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in form.keywords]
    )
    packed.operator = form.operator  # type: ignore[attr-defined]
    return packed


@dataclass(frozen=True)
class Form:
    """Form of a function's calls: the parameter of every argument and keyword of its operator, "" for none."""

    function: Callable[..., Any]
    operator: str
    parameters: Mapping[str, str]
    #: Names of all its parameters, and of those without a default.
    taken: frozenset[str]
    required: frozenset[str]
    cache_layout: str

    @property
    def keywords(self) -> tuple[str, ...]:
        """The keywords of the operator that can be passed to the function."""
        told = {name for name, parameter in self.parameters.items() if parameter} | set(MAXIMA)
        told |= {"is_causal"} if self.parameters["window"] == "window_size" else set()
        return tuple(name for name in _keywords(self.operator) if name in told)

    @property
    def appends(self) -> bool:
        """Whether new keys are ``k``, which is written into the cache after lengths that do not count it."""
        return self.parameters.get("k_new") == "k"

    def call(self, given: Mapping[str, Any]) -> Any:
        """Results of the function, returned or written to ``out``."""
        if self.cache_layout == CONTIGUOUS and self.operator == "paged":
            given = _in_rows(given, by_index=bool(self.parameters["cache_batch_idx"]))
        arguments = self.arguments(given)
        results = self.function(**arguments)
        results = arguments["out"] if "out" in self.required else results
        return results[:2] if isinstance(results, tuple) and len(results) > 2 else results

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the function, by its own parameters.

        Raises NotImplementedError for what these cannot express.
        """
        values = {**given, **self.translated(given)}
        values |= _laid_out(values, self.cache_layout)
        known = {name: parameter for name, parameter in self.parameters.items() if parameter and name in values}
        always = ARGUMENTS[self.operator]
        found = {known[n]: values[n] for n in known if values[n] is not None or n in always}
        if "enable_gqa" in self.taken:
            found["enable_gqa"] = given["q"].shape[-2] != _key_heads(given)
        if "cu_seqlens_k_new" in self.taken and "k_new" in given:
            found["cu_seqlens_k_new"] = given["cu_seqlens_q"]
        return found | {name: DEFAULTS.get(name, nothing)(given) for name in self.required - found.keys()}

    def translated(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments and keywords that the function takes in another form, in that form."""
        values: dict[str, Any] = {}
        if "qq_bias" in self.taken and not given.get("is_causal"):
            raise NotImplementedError("unified_attention is causal alone")
        if self.parameters["window"] == "window_size":
            values["window"] = _window_size(given, by_window=not self.parameters["is_causal"])
        if self.parameters["return_lse"] == "return_aux" and "return_lse" in given:
            values["return_lse"] = _aux_request() if given["return_lse"] else None
        for name in ("k_scale", "v_scale"):
            if self.parameters.get(name, "").endswith("descale") and name in given:
                values[name] = _by_head(given[name], _key_heads(given), given["kv_lengths"], "qq_bias" in self.taken)
        if self.operator == "paged" and self.parameters["cu_seqlens_k"]:
            ends = itertools.accumulate(given["kv_lengths"].tolist(), initial=0)
            values["cu_seqlens_k"] = _like(given["kv_lengths"], [*ends])
        if self.appends and "k_new" in given:
            _one_for_each(given, "kv_lengths")
            keys = zip(given["kv_lengths"].tolist(), _queries(given), strict=True)
            values["kv_lengths"] = _like(given["kv_lengths"], [before - new for before, new in keys])
            values |= {name: _copy(given[name]) for name in ("k_cache", "v_cache")}
        return values


def form_of(function: Any) -> Form | None:
    """Form of a function's calls, if it is of packed or paged attention.

    Parameters
    ----------
    function
        Any object; the top of this module says how it is recognised.

    Returns
    -------
    Form or None
        None for any other function.

    Raises
    ------
    ValueError
        As ``packed_form`` does.
    """
    if not callable(function):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    taken = {each.name for each in parameters}
    theirs = {name: next((n for n in (name, *others) if n in taken), "") for name, others in NAMES.items()}
    layout = getattr(function, "cache_layout", "NHD")
    if layout not in CACHE_LAYOUTS:
        raise ValueError(f"cache_layout is {layout!r}, which is none of {', '.join(CACHE_LAYOUTS)}")
    fitting = _fitting(theirs, CACHE_LAYOUTS[layout][1] is not None, layout == CONTIGUOUS)
    operator = getattr(function, "operator", fitting[0] if fitting else "")
    if operator not in fitting:
        return None
    known = [*ARGUMENTS[operator], *_keywords(operator)]
    if operator == "paged":
        known += ["kv_cache"] if CACHE_LAYOUTS[layout][1] is not None else []
        known += ["cu_seqlens_k", "cache_batch_idx"]
        for name in ("k", "v"):  # next to a cache these are new ones
            if name in taken and theirs[f"{name}_cache"] != name:
                theirs[f"{name}_new"] = theirs[f"{name}_new"] or name
        if theirs["kv_lengths"]:  # either says where keys end, and some functions refuse both together
            theirs["cu_seqlens_k"] = ""
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    theirs = {name: theirs[name] or (name if anything and name in _keywords(operator) else "") for name in known}
    required = {each.name for each in parameters if each.default is each.empty and each.kind not in _VARIADIC}
    unknown = sorted(required - set(theirs.values()) - DEFAULTS.keys())
    if unknown:
        raise ValueError(f"it requires the argument {unknown[0]!r}, which {operator} does not have; give it a default")
    return Form(function, operator, theirs, frozenset(taken), frozenset(required), layout)


def _keywords(operator: str) -> tuple[str, ...]:
    return (*KEYWORDS, *MAXIMA, *(OF_PAGED if operator == "paged" else OF_VARLEN))


def _fitting(theirs: Mapping[str, str], one_cache: bool, by_rows: bool) -> list[str]:
    """The operators whose arguments all have a parameter; paged may do without boundaries, or without lengths."""
    found = ["varlen"] if all(theirs[name] for name in ARGUMENTS["varlen"]) else []
    caches = ("kv_cache",) if one_cache else ("k_cache", "v_cache")
    lengths = theirs["kv_lengths"] or (theirs["cu_seqlens_q"] and theirs["cu_seqlens_k"])
    needed = ("q", *caches) if by_rows else ("q", "block_table", *caches)
    return [*found, "paged"] if lengths and all(theirs[n] for n in needed) else found


def _by_queries(call: Callable[[Mapping[str, Any]], Any], given: Mapping[str, Any]) -> Any:
    """One call for each number of queries, of all sequences that have it: q (N, Sq, Hq, D) and lse (N, Hq, Sq)."""
    counts, q = _queries(given), given["q"]
    by_sequence = [n for n in ("block_table", "kv_lengths", "causal_offset") if np.ndim(given.get(n, 0))]
    _one_for_each(given, *by_sequence)
    starts = np.cumsum([0, *counts])
    module, outputs, lses, rows = module_of(q), [], [], []
    for count in dict.fromkeys(n for n in counts if n):
        members = np.array([n for n, each in enumerate(counts) if each == count])
        own = starts[members][:, None] + np.arange(count)
        part = {**given, "cu_seqlens_q": _like(given["cu_seqlens_q"], [*range(0, own.size + 1, count)])}
        part |= {name: given[name][own] for name in ("q", "k_new", "v_new") if name in given}
        part |= {name: given[name][members] for name in by_sequence}
        results = call(part)
        output, lse = results if isinstance(results, tuple) else (results, None)
        outputs.append(output.reshape(own.size, *output.shape[2:]))
        lses += [] if lse is None else [lse.swapaxes(0, 1).reshape(lse.shape[1], own.size)]
        rows.append(own.ravel())
    if not rows:
        return call({**given, "q": q[:, None]})  # which has no row
    order = np.argsort(np.concatenate(rows))
    output = module.concatenate(outputs, 0)[order]
    return (output, module.concatenate(lses, 1)[:, order]) if lses else output


def _one_for_each(given: Mapping[str, Any], *names: str) -> None:
    """Raise NotImplementedError where an array does not have one row per sequence: it cannot be shared out."""
    count = len(given["cu_seqlens_q"]) - 1
    for name in names:
        if len(given[name]) != count:
            raise NotImplementedError(
                f"{name} of {len(given[name])} for {count} sequences cannot be handed over in this signature"
            )


def _queries(given: Mapping[str, Any]) -> list[int]:
    """Number of queries of each sequence."""
    return [end - start for start, end in itertools.pairwise(given["cu_seqlens_q"].tolist())]


def _key_heads(given: Mapping[str, Any]) -> int:
    return int(given["k_cache"].shape[2] if "k_cache" in given else given["k"].shape[1])


def _window_size(given: Mapping[str, Any], by_window: bool) -> tuple[int, int] | None:
    """A window with −1 for an open side; for a function without a causal flag, (…, 0) is causal."""
    left, right = given.get("window", (None, None))
    if by_window and given.get("is_causal"):
        right = 0
    return None if left is right is None else (-1 if left is None else left, -1 if right is None else right)


def _aux_request() -> Any:
    """Argument that asks PyTorch for an lse."""
    return importlib.import_module("torch.nn.attention.varlen").AuxRequest(lse=True)


def _by_head(scale: Any, heads: int, lengths: Any, one: bool) -> Any:
    """A scale for everything or for each key head as flash-attention takes it, (N, Hkv).

    Raises NotImplementedError for others, which ``k_descale`` and ``v_descale`` cannot express.
    """
    if any(axis != 1 for axis in (scale.shape[0], scale.shape[1], scale.shape[3])):
        raise NotImplementedError(f"k_descale and v_descale have one scale per head, these are {tuple(scale.shape)}")
    if one and scale.shape[2] != 1:
        raise NotImplementedError("unified_attention has one scale for everything")
    row = scale.reshape(1, scale.shape[2])
    columns = np.zeros(heads, np.int64) if scale.shape[2] == 1 else np.arange(heads)
    return row[np.zeros(lengths.shape[0], np.int64)][:, columns]  # as arrays of every framework are indexed


def _laid_out(given: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """The caches, and scales of their shape, in the axes that a function takes them in.

    Raises NotImplementedError for keys and values of unequal shapes, which one cache cannot hold.
    """
    heads_first, axis = CACHE_LAYOUTS[layout]
    names = [name for name in ("k_cache", "v_cache", "k_scale", "v_scale") if name in given]
    found = {n: _contiguous(given[n].swapaxes(1, 2)) for n in names if given[n].ndim == 4} if heads_first else {}
    if axis is None or "k_cache" not in given:
        return found
    k, v = (found.get(name, given[name]) for name in ("k_cache", "v_cache"))
    if tuple(k.shape) != tuple(v.shape):
        raise NotImplementedError(f"one cache holds no keys of {tuple(k.shape)} and values of {tuple(v.shape)}")
    return {**found, "kv_cache": module_of(k).stack([k, v], axis)}


def _in_rows(given: Mapping[str, Any], by_index: bool) -> dict[str, Any]:
    """A call without a table: the pages of each sequence one after the other, in a row of the cache for each.

    With ``by_index`` the rows are in reverse after an unused one, and ``cache_batch_idx`` has the row of each sequence.
    Raises NotImplementedError for scales that differ by token or page, as these are in the order of pages.
    """
    if any(given[name].shape[0] != 1 or given[name].shape[1] != 1 for name in ("k_scale", "v_scale") if name in given):
        raise NotImplementedError("a cache without a table has scales for everything, heads or channels")
    table = given["block_table"]
    count = int(table.shape[0])
    order = [count - 1, *range(count - 1, -1, -1)] if by_index else [*range(count)]
    found: dict[str, Any] = {"block_table": None}
    for name in ("k_cache", "v_cache"):
        pages = given[name][
            (table % given[name].shape[0])[np.array(order, np.int64)]
        ]  # entries after the last page are junk
        found[name] = pages.reshape(len(order), -1, *pages.shape[3:])
    found |= {"cache_batch_idx": _like(table, [count - n for n in range(count)])} if by_index else {}
    return {**given, **found}


def _contiguous(array: Any) -> Any:
    """An array in memory in the order of its axes; JAX arrays always are."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array)
    return array.contiguous() if hasattr(array, "contiguous") else array


def _copy(array: Any) -> Any:
    """An array that may be written to."""
    return array.clone() if hasattr(array, "clone") else array.copy()


def _like(array: Any, numbers: list[int]) -> Any:
    """Numbers as an array of the same framework, dtype and device."""
    return array.new_tensor(numbers) if hasattr(array, "new_tensor") else module_of(array).asarray(numbers, array.dtype)


def _unwritten(given: Mapping[str, Any]) -> Any:
    """Memory for an output, (Tq, Hq, Dv), filled with NaN."""
    q, v = given["q"], given.get("v_cache", given.get("v"))
    return module_of(q).full_like(q[..., :1], math.nan)[..., np.zeros(v.shape[-1], np.int64)]
