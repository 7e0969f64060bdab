"""Floating-point operations of a workload, by one printed formula per operator."""

from __future__ import annotations

import numpy as np

from bench.workloads import Workload

#: The formulas as reports print them, by operator.  Matrix products are counted, a multiplication and an addition per
#: element; softmax (about 5 operations a pair against 2·(D + Dv)), biases and normalisation are not.  ``pairs`` is the
#: number of allowed pairs (i, j) of one head in one sequence, on average over the B sequences.
#:
#: Forward, 2 products a pair: q·k of D terms and P·V of Dv.
#: Gradients, 5 products: q·k again, dP = dO·Vᵀ, dV = Pᵀ·dO (Dv terms), dQ = dS·K and dK = dSᵀ·Q (D terms) are what
#: has to be computed from q, k, v and dO (Dao et al. 2022, FlashAttention, algorithm 4); with D = Dv that is 5/2 of the
#: forward pass.  A program that runs its forward pass as well gets no credit for it.
#: Layers, a product E × H·D for q, k and v, and H·D × E for the output, per token; E = H·D.
#: Gradients of the layer: the products of q, k and v again, and two for the gradients of each projection, of its input
#: and of its weight: 3 + 3 + 3 + 2 of them; of attention the 5, and P·V, of which the gradient of w_o is made.
FORMULAS = {
    "sdpa": "2·B·H·pairs·(D + Dv)",
    "sdpa_grad": "2·B·H·pairs·(3·D + 2·Dv)",
    "mha": "8·B·S·E² + 4·B·H·pairs·D",
    "sublayer": "8·B·S·E² + 4·B·H·pairs·D",
    "mha_grad": "22·B·S·E² + 12·B·H·pairs·D",
}


def pairs(workload: Workload) -> int:
    """Pairs (i, j) of a query row and a key that it may attend to, in one head, summed over the sequences."""
    positions = np.arange(workload.length) + workload.past
    first = 0 if workload.window is None else np.maximum(positions - workload.window, 0)
    total = 0
    for keys in workload.kv_lengths:
        last = np.minimum(positions, keys - 1) if workload.is_causal else np.full_like(positions, keys - 1)
        total += int(np.maximum(last - first + 1, 0).sum())
    return total


def flops(workload: Workload) -> int:
    """The operator's formula, for one call.  A kernel that also computes masked pairs gets no credit for them."""
    w, terms = workload, workload.heads * pairs(workload)
    projection = 2 * w.tokens * (w.heads * w.width) ** 2
    counts = {
        "sdpa": 2 * terms * (w.width + w.value_width),
        "sdpa_grad": 2 * terms * (3 * w.width + 2 * w.value_width),
        "mha": 4 * projection + 4 * terms * w.width,
        "sublayer": 4 * projection + 4 * terms * w.width,
        "mha_grad": 11 * projection + 12 * terms * w.width,
    }
    return counts[w.operator]
