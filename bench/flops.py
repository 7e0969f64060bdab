"""Floating-point operations of a workload, by one printed formula."""

from __future__ import annotations

from bench.workloads import Workload

#: The formula as reports print it.  The two matrix products (Q·Kᵀ and P·V) are counted, a multiplication and an
#: addition per element; the softmax, about 5 operations a pair against 2·(D + Dv), is not.
FORMULA = "2·B·H·pairs·(D + Dv)"


def pairs(workload: Workload) -> int:
    """Pairs (i, j) of a query row and a key that it may attend to, in one head of one sequence."""
    length = workload.length
    return length * (length + 1) // 2 if workload.is_causal else length * length


def flops(workload: Workload) -> int:
    """FORMULA, for one forward pass.  A kernel that also computes masked pairs gets no credit for them."""
    return 2 * workload.batch * workload.heads * pairs(workload) * (workload.width + workload.width)
