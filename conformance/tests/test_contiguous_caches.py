"""(PAGED-13) Caches without a table: functions that take rows, by number or in order, and two that misread them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.tests.test_varlen import reply, result
from attention_conformance.impls.numpy.varlen import varlen
from attention_conformance.impls.packed import packed_form

Array = np.ndarray

#: Cases that apply to a cache without a table: chunks, decoding, empty sequences, shared pages, masks and options.
CASES = [
    every_case()[f"paged-{name}"]
    for name in ("mixed", "decode", "shared", "chunk", "window", "padding", "padding-beyond", "empty", "sinks", "lse")
]


def attended(q: Array, keys: Any, values: Any, cu_seqlens_q: Array, lengths: Array, **options: Any) -> Any:
    """Attention over the rows of a cache, of which each sequence has the first keys of its row."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    k, v = (np.concatenate([a[:n] for a, n in zip(rows, lengths, strict=True)]) for rows in (keys, values))
    return varlen(q, k, v, cu_seqlens_q, ends, **options)


def by_index(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, cache_seqlens: Array, cache_batch_idx: Array,
    *, is_causal: bool = False, window: Any = None, sinks: Any = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Sequence n has row ``cache_batch_idx[n]``."""
    options = {"is_causal": is_causal, "window": window, "sinks": sinks, "return_lse": return_lse}
    rows = k_cache[cache_batch_idx], v_cache[cache_batch_idx]
    return attended(q, *rows, cu_seqlens_q, cache_seqlens, **options)


def in_order(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, cache_seqlens: Array,
    *, is_causal: bool = False, window: Any = None, sinks: Any = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Sequence n has row n."""
    options = {"is_causal": is_causal, "window": window, "sinks": sinks, "return_lse": return_lse}
    return attended(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, **options)


def ignored(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, cache_seqlens: Array, cache_batch_idx: Array,
    **options: Any,
) -> Any:  # fmt: skip
    """Sequence n reads row n, whatever ``cache_batch_idx`` says (flash-attention 772, beyond a stride of 2³⁰)."""
    return in_order(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, **options)


def ignored_for_values(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, cache_seqlens: Array, cache_batch_idx: Array,
    **options: Any,
) -> Any:  # fmt: skip
    """Sequence n reads keys from the right row and values from row n."""
    keys = k_cache[cache_batch_idx]
    return in_order(q, keys, v_cache, cu_seqlens_q, cache_seqlens, **options)


for _each in (by_index, in_order, ignored, ignored_for_values):
    _each.cache_layout = "contiguous"  # type: ignore[union-attr]


def outcomes(function: Any) -> list[Outcome]:
    """The outcomes of the cases for a plugged-in function."""
    form = packed_form(function)
    assert form.operator == "paged"  # type: ignore[attr-defined]
    found = [(case, reply(form, case, "float32", "paged")) for case in CASES]
    return [judge(each, case, result(case, "float32"), every_profile=False).outcome for case, each in found]


@pytest.mark.parametrize("function", [by_index, in_order], ids=["by-index", "in-order"])
def test_rows_in_the_place_of_a_table_are_right(function: Any) -> None:
    """Functions that find rows by number, or take them in the order of sequences, pass."""
    assert outcomes(function) == [Outcome.PASSED] * len(CASES)


@pytest.mark.parametrize("function", [ignored, ignored_for_values], ids=["ignored", "ignored-for-values"])
def test_rows_that_are_not_looked_up_are_caught(function: Any) -> None:
    """Functions that ignore the row numbers fail every case, as they never get rows in order."""
    assert outcomes(function) == [Outcome.FAILED] * len(CASES)


def test_scales_of_pages_have_no_place_in_a_row() -> None:
    """Scales of single pages are refused before the call, which is no failure of the function."""
    scale = np.ones((5, 4, 1, 1), np.float32)

    def quantised(
        q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, kv_lengths: Any, *, k_scale: Any, v_scale: Any
    ) -> Any: ...

    quantised.cache_layout = "contiguous"  # type: ignore[attr-defined]
    cache, table = np.zeros((5, 4, 2, 8), np.float32), np.zeros((1, 2), np.int32)
    with pytest.raises(NotImplementedError, match="scales for everything, heads or channels"):
        packed_form(quantised)(None, cache, cache, np.array([0, 1]), table, np.array([3]), k_scale=scale, v_scale=scale)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_rows_are_made_in_every_framework(framework: str) -> None:
    """Arrays of PyTorch and JAX give the same rows as those of NumPy, also with −1 after the last page."""
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    array = getattr(module, "as_tensor", None) or module.asarray
    x = every_case()["paged-padding"].inputs("float32")

    def rows(
        q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, cache_seqlens: Any, cache_batch_idx: Any
    ) -> list[Any]:
        return [k_cache, v_cache, cache_batch_idx]

    rows.cache_layout = "contiguous"  # type: ignore[attr-defined]
    wanted = packed_form(rows)(*x.arrays.values())[:2]
    found = packed_form(rows)(*map(array, x.arrays.values()))[:2]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)
