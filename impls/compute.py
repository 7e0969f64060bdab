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
    """The result, or the tuple of results, of a built-in implementation on the CPU.

    ``arguments`` are those of its operator, in order (q, k, v of sdpa; x_q, w_q, w_k, w_v of mha and sublayer), all of
    one dtype; keywords as in impls.operators.  In this process, so a crash is one of the caller's.  Raises
    ImplementationError for an unknown name, NotImplementedError for what the implementation does not support, and
    RuntimeError with the text of whatever it raises itself.
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
