"""``torch.compile`` as a way to prepare a call, and ``eager.attention`` with the most common keywords to compile.

There is one compiled function for all calls, with dynamic shapes.

torch compiles again whenever the pattern of the call changes (which keywords are given, which axes have length 0 or
1, ranks of a mask); lengths and plain numbers are inputs of the compiled code.  torch keeps compiled code on disk
between runs, in ``$TORCHINDUCTOR_CACHE_DIR`` or else in ``attention-conformance/torch`` in the user's cache folder.

Source: https://pytorch.org/docs/stable/generated/torch.compile.html.  torch compiles once for each set of keywords
and each pattern of axes of length 0 or 1, for several seconds each; with all ten keywords, a set of 38 option
combinations needs 32 compilations for every such pattern of shapes, which is why only three of them are offered here.
What is fused does not depend on the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import torch

from attention_conformance.impls import cache
from attention_conformance.impls.contract import Call, Function
from attention_conformance.impls.torch import eager

#: Compiled forms that one function may have.  Beyond torch's own limit (8) it would silently run uncompiled.
FORMS = 512

#: Array keywords that do not have the dtype of q.
OTHER_DTYPES = {"mask": torch.bool, "kv_lengths": torch.int64, "causal_offset": torch.int64}


def compiled(function: Function, call: Call) -> Function:
    """The compiled function with the plain keywords bound, compiled here by a call with zeros.

    Inputs with other strides may need another compilation when it runs.  Code that cannot be compiled as a whole
    raises, as does a function with more than FORMS forms.
    """
    return warmed(compile_function(function), call)


def warmed(function: Function, call: Call) -> Function:
    """The function with the plain keywords bound, after a call with zeros, so that running is only running."""
    run, dtype = functools.partial(function, **call.static), getattr(torch, call.dtype)
    run(**{n: torch.zeros(s, dtype=OTHER_DTYPES.get(n, dtype), device=call.device) for n, s in call.shapes})
    return run


@functools.cache
def compile_function(function: Function) -> Function:
    """The one compiled form of a function.

    The limits hold for the process, and are set here: a process that compiles nothing, as it differentiates a plug-in
    that compiles by itself, keeps torch's own limits, and does not import the compiler.
    """
    keep_compilations()
    torch._dynamo.config.recompile_limit = FORMS
    torch._dynamo.config.accumulated_recompile_limit = FORMS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=True, fullgraph=True)


def keep_compilations() -> None:
    """Let torch keep compiled code where the next run finds it, unless the user has configured a place.

    torch's own choice is a folder for temporary files, which is empty on a machine that was just started; it remains
    where the user's cache folder cannot be written.
    """
    folder = cache.folder("torch")
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """The output (B, Hq, Sq, Dv) of ``eager.attention``, which raises for inputs that do not fit together."""
    return eager.attention(q, k, v, mask=mask, is_causal=is_causal, scale=scale)
