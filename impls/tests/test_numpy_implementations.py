"""NumPy's implementations: right on every case, and tiled without an array as large as the score matrix."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from conformance.cases import all_cases
from conformance.compare import compare
from impls.calls import Request, call, describe
from impls.contract import Implementation
from impls.numpy import IMPLEMENTATIONS
from impls.numpy.tiled import attention as tiled


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", sorted(all_cases()))
def test_case(name: str, implementation: Implementation) -> None:
    """The implementation agrees with the reference within its bound, or refuses what has to be refused."""
    case = all_cases()[name]
    if not case.keywords <= describe(implementation).keywords:
        pytest.skip(f"{implementation.name} does not accept {', '.join(sorted(case.keywords))}")
    for dtype in case.dtypes:
        x = case.inputs(dtype)
        answer = call(implementation, Request("cpu", x.q, x.k, x.v, x.keywords, case.memory, case.repeats))
        if case.invalid:
            assert answer.status == "raised"
            continue
        assert (answer.status, answer.modified, answer.unequal) == ("returned", (), ()), answer.text
        assert tuple(answer.results) == case.results()
        bound = case.bound(dtype, implementation.profile(dtype))
        for result, got in answer.results.items():
            expected = getattr(case.expected(dtype), result)
            assert got.shape == expected.shape
            assert str(got.dtype) == dtype or result == "lse"
            assert compare(result, got, expected, getattr(bound, result), str(got.dtype)).ok


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (64, 0)}], ids=["full", "causal", "window"])
def test_tiled_allocates_no_score_matrix(options: dict[str, object]) -> None:
    """At 2048 keys the tiled implementation never holds as much as one head's score matrix (16 MiB)."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 2048, 64), dtype=np.float32) for _ in range(3))
    tracemalloc.start()
    try:
        tiled(q, k, v, **options)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2048 * 2048 * q.itemsize
