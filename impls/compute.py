"""One call of a built-in implementation by its name, from NumPy arrays to NumPy arrays: for trying things out."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.calls import Request, call
from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS
from attention_conformance.impls.select import builtin


def compute(name: str, *arguments: np.ndarray, **keywords: Any) -> Any:
    """Call a built-in implementation on the CPU, in this process: a crash is one of the caller's.

    Parameters
    ----------
    name
        Name of the implementation: ``"numpy-eager"``.
    arguments
        Arrays of its operator, in order and of one dtype: q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv) of
        sdpa; x_q (B, Sq, E), w_q, w_k, w_v of mha and sublayer.
    keywords
        Options as in ``operators.py``.

    Returns
    -------
    numpy.ndarray or tuple of numpy.ndarray
        The output (B, Hq, Sq, Dv), or all results that the keywords request.

    Raises
    ------
    ImplementationError
        For an unknown name.
    NotImplementedError
        For what the implementation does not support.
    RuntimeError
        With the text of whatever the implementation raises.
    """
    if name not in builtin():
        raise ImplementationError(f"no built-in implementation {name!r}{nearest(name, builtin())}")
    implementation = builtin()[name]
    arrays = dict(zip(OPERATORS[implementation.operator].arguments, arguments, strict=True))
    reply = call(implementation, Request("cpu", arrays, keywords))
    if reply.status == "unsupported":
        raise NotImplementedError(reply.text)
    if reply.status == "raised":
        raise RuntimeError(f"{name}: {reply.text}")
    results = tuple(reply.results.values())
    return results if len(results) > 1 else results[0]
