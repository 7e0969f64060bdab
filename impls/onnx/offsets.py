"""Offsets of the diagonal that an operator computes by itself: compared when the model is run, and not passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from impls.contract import Call, Function


def compared(run: Function, call: Call, get: Callable[[Any], np.ndarray]) -> Function:
    """A model's function for calls with an offset for each batch, of which it is no input; ``get`` gives a NumPy array.

    The function raises NotImplementedError if the offsets are not kv_lengths − Sq, which is what the operator has.
    """
    if "causal_offset" not in call.arrays:
        return run
    queries = call.shape("q")[2]

    def checked(causal_offset: Any, **arrays: Any) -> Any:
        if call.static.get("is_causal") and (get(causal_offset) != get(arrays["kv_lengths"]) - queries).any():
            raise NotImplementedError("the operator's offset is nonpad_kv_seqlen - Sq, and cannot be given")
        return run(**arrays)

    return checked
