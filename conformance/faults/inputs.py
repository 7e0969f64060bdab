"""What an attention taken apart works on: one call of sdpa with its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Inputs:
    """One call: arrays as they were given, options with their defaults, and the dtype to compute in."""

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    bias: Array | None = None
    is_causal: bool = False
    causal_offset: int | Array | None = None
    window: tuple[int | None, int | None] | None = None
    kv_lengths: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    return_weights: bool = False
    return_lse: bool = False
    work: type[np.floating[Any]] = np.float64
    #: The storage dtype where q is in the dtype computed in, within a layer.
    stored: np.dtype | None = None
    sinks: Array | None = None
    past_key: Array | None = None
    past_value: Array | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Sq, Sk), once the past is joined."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def past(self) -> int:
        """P, the number of past keys."""
        return 0 if self.past_key is None else self.past_key.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """The storage dtype."""
        return self.stored or self.q.dtype

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]
