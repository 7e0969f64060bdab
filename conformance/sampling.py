"""Checking long outputs: sampled query rows, recomputed exactly, cost O(Sk · D) a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance import bounds, reference
from conformance.compare import Comparison, compare
from impls.contract import Profile

#: What an input needs of a bound's options.
_BOUND_OPTIONS = ("scale", "softcap", "bias")


def check_rows(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keywords: dict[str, Any],
    output: np.ndarray,
    *,
    dtype: str,
    profile: Profile,
    rows: int = 32,
    seed: int = 0,
) -> Comparison:
    """Compare ``rows`` query rows of every batch and head with the reference, the first and the last among them.

    Inputs and output in layout (B, H, S, D), keywords as in the contract without the ones that ask for extra
    results.  Raises ValueError if the output has another shape than SDPA-1 says.
    """
    wanted = (*q.shape[:3], v.shape[3])
    if output.shape != wanted:
        raise ValueError(f"SDPA-1: the output has shape {output.shape}, expected {wanted}")
    chosen = sample(q.shape[2], rows, seed)
    options = {name: value for name, value in keywords.items() if not name.startswith("return_")}
    expected = reference.sdpa(q, k, v, **options, rows=chosen)
    known = {name: options[name] for name in _BOUND_OPTIONS if name in options}
    bound = bounds.bound(expected, bounds.Options(**known), dtype, profile)
    return compare("output", output[:, :, chosen], expected.output, bound.output, dtype)


def sample(length: int, rows: int, seed: int) -> np.ndarray:
    """Sorted row indices: all of them if there are few, else the first, the last and random ones between."""
    if length <= rows:
        return np.arange(length)
    between = np.random.default_rng(seed).choice(np.arange(1, length - 1), rows - 2, replace=False)
    return np.sort(np.concatenate([[0, length - 1], between]))
