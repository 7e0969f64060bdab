"""The check that results are inside the error bound: tests of implementations use the same tolerance as the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.judging.compare import compare
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.contract import Profile


def assert_within(
    results: Mapping[str, np.ndarray],
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keywords: Mapping[str, Any],
    profile: Profile = Profile.WIDE,
) -> None:
    """Assert that every result is inside the bound of a profile, for inputs (B, H, S, D) of one dtype."""
    options = {name: value for name, value in keywords.items() if not name.startswith("return_")}
    expected = reference.sdpa(q, k, v, **options)
    known = {name: options[name] for name in ("scale", "softcap", "bias") if name in options}
    limit = bounds.bound(expected, bounds.Options(**known), str(q.dtype), profile)
    for name, result in results.items():
        found = compare(name, result, getattr(expected, name), getattr(limit, name), str(q.dtype))
        assert result.shape == getattr(expected, name).shape
        assert found.ok, found
