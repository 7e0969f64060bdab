"""(MERGE-1 to 15) Merging of partial results in float64 NumPy: outputs and log-sum-exps over disjoint sets of keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec.sdpa import Array, InvalidInput


@dataclass(frozen=True)
class MergeExpected:
    """Expected result of a merge, with intermediate results for an error analysis; all float64.

    Shapes: ``output`` (B, H, S, Dv), ``lse`` (B, H, S); ``outputs`` (P, B, H, S, Dv), 0 where a part has no key;
    ``lses`` and ``weights``, the share of each part, (P, B, H, S).
    """

    output: Array
    lse: Array
    outputs: Array
    lses: Array
    weights: Array


def merge(outputs: Array, lses: Array) -> MergeExpected:
    """Attention over the keys of all parts, each of which has its own output and natural log-sum-exp.

    Parameters
    ----------
    outputs
        Output of each of P parts, (P, B, H, S, Dv).
    lses
        Natural log-sum-exp of each part, (P, B, H, S); −inf for a part without an allowed key.

    Returns
    -------
    MergeExpected
        Output (B, H, S, Dv), lse (B, H, S) and the parts' weights, float64.

    Raises
    ------
    InvalidInput
        Where the two do not fit together (MERGE-15).
    """
    if outputs.ndim != 5 or lses.shape != outputs.shape[:-1]:
        raise InvalidInput("MERGE-15", f"outputs are {outputs.shape}, lses {lses.shape}")
    outputs, lses = outputs.astype(np.float64), lses.astype(np.float64)
    has_keys = ~np.isneginf(lses)
    outputs = np.where(has_keys[..., None], outputs, 0.0)  # MERGE-6, MERGE-7: they are ignored
    with np.errstate(all="ignore"):  # NaN is a test case, not an error
        largest = np.max(lses, axis=0, initial=-np.inf)
        largest = np.where(np.isneginf(largest), 0.0, largest)  # MERGE-8: no part has a key
        powers = np.where(has_keys, np.exp(lses - largest), 0.0)
        total = powers.sum(axis=0)
        lse = np.where(total == 0, -np.inf, largest + np.log(total))
        weights = np.where(total == 0, 0.0, powers / np.where(total == 0, 1.0, total))
        output = (weights[..., None] * outputs).sum(axis=0)
    return MergeExpected(output, lse, outputs, lses, weights)
