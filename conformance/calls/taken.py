"""Results as they are compared: the part that a case is about, without what the spec leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.cases.given import (
    GivenHeads,
    GivenLatent,
    GivenMerge,
    GivenPaged,
    GivenRows,
    GivenVarlen,
)
from attention_conformance.conformance.cases.parts import part_of
from attention_conformance.impls.calls import Reply


def part_in_question(case: Any, name: str, array: np.ndarray) -> np.ndarray:
    """The part of a result that a case is about."""
    if isinstance(case, GivenRows | GivenLatent) and name not in ("present_key", "present_value"):
        return array[:, :, list(case.rows)] if len(case.rows) < array.shape[2] else array
    if isinstance(case, GivenVarlen):
        return array[list(case.rows)] if name == "output" else array[:, list(case.rows)]
    if isinstance(case, GivenHeads):
        if name == "grad_bias":
            return part_of("bias", array, queries=np.asarray(case.queries))
        return array[:, list(case.kept if name in ("grad_k", "grad_v") else case.queries)]
    return array


def without_open(case: Any, reply: Reply, dtype: str) -> Reply:
    """The results, with the reference's numbers where a result is not finite and no clause forbids that with MUST.

    Such results are NaN where a masked key holds NaN (SDPA-22 says SHOULD), rows whose scores overflow the dtype
    (SDPA-26), and NaN from unused memory or another sequence (VARLEN-13, PAGED-5, MERGE-7).
    """
    opened = _OPENED.get(type(case))
    if opened is None or all(np.isfinite(a).all() for a in reply.results.values()):
        return reply
    results = {n: a.copy() for n, a in reply.results.items()}
    opened(case, results, case.expected(dtype), dtype)
    return Reply("returned", results)


def _open_rows(case: GivenRows, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    for found, _, (batch, heads, rows) in case.parts():
        with np.errstate(all="ignore"):
            far = np.where(found.allowed, np.maximum(np.abs(found.raw), np.abs(found.scores)), 0) > LARGEST[dtype]
        bad = np.isnan(found.k).any(3)[:, :, None] & ~found.allowed
        row = far.any(3) | bad.any(3)
        column = (~found.allowed).astype(float) @ np.isnan(found.v) > 0
        for name in results.keys() & {"output", "weights", "lse"}:
            got, open_ = results[name][batch, heads, rows], row if name == "lse" else row[..., None]
            open_ = open_ | column if name == "output" else open_
            _fill(got, open_, getattr(expected, name)[batch, heads, rows])


def _open_pack(case: GivenVarlen, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    arrays, done = case.held.arrays, 0
    for one, rows in case.sequences:
        taken = slice(done, done := done + len(rows))
        views = {n: (a[taken].swapaxes(0, 1) if n == "output" else a[:, taken])[None] for n, a in results.items()}
        _open_rows(one, views, one.expected(dtype), dtype)
        held = one.held
        for name, own in ((n, held.arrays[n[0]]) for n in arrays if n in ("k", "v", "k_cache", "v_cache")):
            if np.count_nonzero(~np.isfinite(arrays[name])) > np.count_nonzero(~np.isfinite(own)):  # not its own
                for result, view in views.items():
                    _fill(view, np.broadcast_to(True, view.shape), getattr(one.expected(dtype), result))


def _open_merge(case: GivenMerge, results: Mapping[str, np.ndarray], expected: Any, dtype: str) -> None:
    nobody = np.isneginf(case.held.lses)[..., None] & ~np.isfinite(case.held.outputs)
    _fill(results["output"], nobody.any(0), expected.output)


_OPENED: dict[type, Callable[..., None]] = {
    GivenRows: _open_rows,
    GivenVarlen: _open_pack,
    GivenPaged: _open_pack,
    GivenMerge: _open_merge,
}


def _fill(got: np.ndarray, open_: np.ndarray, wanted: np.ndarray) -> None:
    """Write the wanted numbers where a result is open and not finite."""
    got[...] = np.where(open_ & ~np.isfinite(got), wanted.astype(got.dtype), got)
