"""The count of floating-point operations, against counting them one by one."""

from __future__ import annotations

import itertools

import pytest

from bench.flops import flops
from bench.workloads import Workload


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("batch", "heads", "width", "length"), [(1, 1, 1, 1), (2, 3, 4, 5), (1, 2, 3, 8)])
def test_flops_equal_what_the_two_products_do(batch: int, heads: int, width: int, length: int, is_causal: bool) -> None:
    """The formula gives the multiplications and additions of a loop over every allowed pair."""
    count = 0
    for _, _, i, j in itertools.product(range(batch), range(heads), range(length), range(length)):
        if is_causal and j > i:
            continue
        count += 2 * width  # one term of q·k per d
        count += 2 * width  # weight · v, added to the output, per d
    assert flops(Workload(batch, heads, width, length, is_causal)) == count
