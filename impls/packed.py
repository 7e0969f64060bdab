"""Signatures of packed and paged attention: functions that name its arguments as flash-attention, PyTorch or vLLM do.

A function with ``cu_seqlens_q`` and ``cu_seqlens_k`` is of varlen, with a ``block_table`` and lengths of paged.
Both are plugged in as they are: names and the way in which "none" is written are translated, and the maxima are given
to whoever takes them.  Results are not touched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

#: What arguments and keywords are called elsewhere, besides their own names.
NAMES = {
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "cu_seqlens_q": ("cu_seq_q",),
    "cu_seqlens_k": ("cu_seq_k", "cu_seqlens_kv"),
    "k_cache": ("key_cache", "k", "key"),
    "v_cache": ("value_cache", "v", "value"),
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
    "return_lse": ("return_softmax_lse", "return_attn_probs"),
    "k_new": (),
    "v_new": (),
    "k_scale": ("k_descale",),
    "v_scale": ("v_descale",),
}
#: The arguments of each operator, in order; of a function that has those of several the first one is meant.
ARGUMENTS = {
    "varlen": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
    "paged": ("q", "k_cache", "v_cache", "cu_seqlens_q", "block_table", "kv_lengths"),
}
#: The keywords of both.
KEYWORDS = ("is_causal", "causal_offset", "window", "scale", "softcap", "sinks", "return_lse")
#: Given in every call, to whoever takes them.
MAXIMA = ("max_seqlen_q", "max_seqlen_k")


def packed_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of packed or paged attention as its operator is called; any other function is given back.

    Its signature has the keywords that it takes, under whichever name.  Of a window an open side is −1 where the
    parameter is ``window_size``; of more results than output and lse these two are kept.
    """
    if not callable(function):
        return function
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    taken = {each.name for each in parameters}
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    theirs = {name: next((n for n in (name, *others) if n in taken), "") for name, others in NAMES.items()}
    fitting = [operator for operator, names in ARGUMENTS.items() if all(theirs[name] for name in names)]
    operator = getattr(function, "operator", fitting[0] if fitting else "")
    if operator not in fitting:
        return function
    names = ARGUMENTS[operator]
    keywords = (*KEYWORDS, *MAXIMA, *(("k_new", "v_new", "k_scale", "v_scale") if operator == "paged" else ()))
    theirs = {name: theirs[name] or (name if anything else "") for name in (*names, *keywords)}

    def packed(*arguments: Any, **given: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **given}
        if theirs["window"] == "window_size" and given.get("window") is not None:
            given["window"] = tuple(-1 if side is None else side for side in given["window"])
        for name in ("k_scale", "v_scale"):
            if theirs.get(name, "").endswith("descale") and given.get(name) is not None:
                given[name] = _by_head(given[name], given["k_cache"], given["kv_lengths"])
        results = function(**{theirs[name]: value for name, value in given.items() if theirs[name]})
        return results[:2] if isinstance(results, tuple) and len(results) > 2 else results

    functools.update_wrapper(packed, function)
    kinds = inspect.Parameter
    packed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names]
        + [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in keywords if theirs[name] or name in MAXIMA]
    )
    packed.operator = operator  # type: ignore[attr-defined]
    return packed


def _by_head(scale: Any, cache: Any, lengths: Any) -> Any:
    """A scale for everything or for each key head as flash-attention takes it, (N, Hkv).

    Raises NotImplementedError for others, which ``k_descale`` and ``v_descale`` cannot say.
    """
    if any(axis != 1 for axis in (scale.shape[0], scale.shape[1], scale.shape[3])):
        raise NotImplementedError(f"k_descale and v_descale have one scale per head, these are {tuple(scale.shape)}")
    row, heads = scale.reshape(1, scale.shape[2]), cache.shape[2]
    columns = np.zeros(heads, np.int64) if scale.shape[2] == 1 else np.arange(heads)
    return row[np.zeros(lengths.shape[0], np.int64)][:, columns]  # as arrays of every framework are indexed
