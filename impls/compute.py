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
    """Call a built-in implementation on the CPU, in this process, which a crash ends.

    Parameters
    ----------
    name
        Name of the implementation: ``"numpy-eager"``.
    arguments
        Arrays of its operator, in order and of one dtype: for sdpa q (B, Hq, Sq, D), k (B, Hkv, Sk, D) and
        v (B, Hkv, Sk, Dv); for mha and sublayer x_q (B, Sq, E), w_q, w_k and w_v.
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
        For a call that the implementation does not support.
    RuntimeError
        With the text of any other exception that the implementation raises.
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
