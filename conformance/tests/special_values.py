"""For tests of random problems: the special values of their fields, and whether a problem has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def given(problem: Any, name: str) -> bool:
    """Whether a problem gives an option; a scale of 0 is given."""
    return getattr(problem, name) is not None and getattr(problem, name) is not False


def _repeated(problem: Any) -> bool:
    """A mask or bias with an axis of length 1, or with fewer axes than the scores."""
    axes = [each.axes for each in (problem.mask, problem.bias) if each is not None]
    return any(1 in each or len(each) < len(problem.shape.scores) for each in axes)


#: Special values of problems of sdpa.
SPECIAL: dict[str, Callable[[Any], bool]] = {
    "a mask or bias that is repeated along an axis": _repeated,
    "causal_offset, negative": lambda p: isinstance(p.causal_offset, int) and p.causal_offset < 0,
    "causal_offset, one for each batch": lambda p: isinstance(p.causal_offset, tuple),
    "kv_lengths with a 0": lambda p: p.kv_lengths is not None and 0 in p.kv_lengths,
    "scale 0": lambda p: p.scale == 0,
    "scale, negative": lambda p: p.scale is not None and p.scale < 0,
    "grouped heads": lambda p: p.shape.hq > p.shape.hkv,
}

#: Special values of problems of decoding, whose first keys are past ones.
OF_DECODING: dict[str, Callable[[Any], bool]] = {
    "a past that ends before the rows": lambda p: p.past == p.shape.sk - p.shape.sq,
    "no past key": lambda p: p.past == 0,
    "no new key": lambda p: p.past == p.shape.sk,
}

#: Special values of problems of layers.
OF_LAYERS: dict[str, Callable[[Any], bool]] = {
    "no w_o": lambda p: not p.projected or p.operator == "sublayer",
    "every bias": lambda p: len(p.biases) == 3 + p.projected,
    "no bias": lambda p: not p.biases,
    "several heads": lambda p: p.shape.heads > 1,
    **{name: SPECIAL[name] for name in ("a mask or bias that is repeated along an axis", "kv_lengths with a 0")},
}


def specials(problem: Any) -> dict[str, bool]:
    """The special values, and whether a problem of any operator has each."""
    within = getattr(problem, "of_sdpa", problem)
    tables = [(OF_LAYERS, problem)] if hasattr(within, "projected") else [(SPECIAL, within)]
    tables += [(OF_DECODING, problem)] if hasattr(problem, "past") else []
    return {name: bool(np.bool_(special(one))) for table, one in tables for name, special in table.items()}
