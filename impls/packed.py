"""Signatures of packed attention: functions that name its arguments as flash-attention or PyTorch do, called as varlen.

A function with a parameter ``cu_seqlens_q`` (or ``cu_seq_q``) is of varlen, and is plugged in as it is: names and the
way in which "none" is written are translated, and the maxima are given to whoever takes them.  Results are not touched.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

#: What arguments and keywords of varlen are called elsewhere, besides their own names.
NAMES = {
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "cu_seqlens_q": ("cu_seq_q",),
    "cu_seqlens_k": ("cu_seq_k", "cu_seqlens_kv"),
    "max_seqlen_q": ("max_q",),
    "max_seqlen_k": ("max_k", "max_seqlen_kv"),
    "is_causal": ("causal",),
    "causal_offset": (),
    "window": ("window_size",),
    "scale": ("softmax_scale", "sm_scale"),
    "softcap": (),
    "sinks": ("learnable_sink", "s_aux"),
    "return_lse": ("return_softmax_lse", "return_attn_probs"),
}
#: The arguments, in order; all other names are keywords.
ARGUMENTS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
#: Given in every call, to whoever takes them.
MAXIMA = ("max_seqlen_q", "max_seqlen_k")


def packed_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of packed attention as varlen is called; any other function is given back.

    Its signature has the keywords of varlen that it takes, under whichever name.  Of a window an open side is −1 where
    the parameter is ``window_size``; of more results than output and lse these two are kept.
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
    if not all(theirs[name] for name in ARGUMENTS) or getattr(function, "operator", "varlen") != "varlen":
        return function
    theirs = {name: found or (name if anything else "") for name, found in theirs.items()}

    def varlen(*arguments: Any, **keywords: Any) -> Any:
        given = {**dict(zip(ARGUMENTS, arguments, strict=False)), **keywords}
        if theirs["window"] == "window_size" and given.get("window") is not None:
            given["window"] = tuple(-1 if side is None else side for side in given["window"])
        results = function(**{theirs[name]: value for name, value in given.items() if theirs[name]})
        return results[:2] if isinstance(results, tuple) and len(results) > 2 else results

    functools.update_wrapper(varlen, function)
    kinds = inspect.Parameter
    accepted = [name for name in NAMES if name not in ARGUMENTS and (theirs[name] or name in MAXIMA)]
    varlen.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ARGUMENTS]
        + [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in accepted]
    )
    varlen.operator = "varlen"  # type: ignore[attr-defined]
    return varlen
