"""Triggers of known deviations: the records that inputs other than fixed cases trigger, and the rows that they spoil.

The ledger names fixed cases.  Here each record that random inputs can trigger has a predicate: the query rows that the
library is known to get wrong.  A record excuses a failure of its own kind, in those rows, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds.sdpa import LARGEST
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.spec.varlen import PackedExpected

#: The rows that a deviation spoils: boolean (B, Hq, Sq), for a pack (Hq, Tq), or simply True for all rows.
Spoils = Callable[[Inputs, Expected], np.ndarray | bool]

#: The number that ONNX Runtime's MultiHeadAttention adds to masked scores (mask_filter_value), and how far below
#: another a score must be for exp to underflow in float32.
MASK_FILL, EXP_RANGE = -10_000.0, 104.0


@dataclass(frozen=True)
class Triggered:
    """A record that an input triggers, and the rows that it may spoil, (B, Hq, Sq), or (Hq, Tq) for a pack."""

    deviation: Deviation
    rows: np.ndarray


def records(
    implementation: str, device: str, dtype: str, ledger: Ledger, versions: Mapping[str, str]
) -> tuple[Deviation, ...]:
    """The records in force for one implementation, device and dtype that random inputs can trigger.

    Parameters
    ----------
    implementation, device, dtype
        Names of the implementation, the device and the dtype.
    ledger
        The records.
    versions
        Versions of packages, which decide whether a record is in force.

    Returns
    -------
    tuple[Deviation, ...]
        Records in the order of the ledger.
    """
    return tuple(
        record
        for record in ledger.deviations
        if record.id in SPOILS and record.concerns(implementation, device, dtype) and record.in_force(versions)
    )


def triggered(chosen: Iterable[Deviation], inputs: Any, expected: Any) -> tuple[Triggered, ...]:
    """Records among the chosen ones that these inputs trigger, with the rows that each spoils.

    Parameters
    ----------
    chosen
        Records that ``records`` gave.
    inputs
        Inputs of a call, in the layout of the spec.
    expected
        Results that the reference gives for them.

    Returns
    -------
    tuple[Triggered, ...]
        Records that are triggered, each with the rows of the output that it spoils.
    """
    found = []
    for record in chosen:
        rows = SPOILS[record.id](inputs, expected)
        if np.any(rows):
            found.append(Triggered(record, np.broadcast_to(rows, rows_of(expected))))
    return tuple(found)


def rows_of(expected: Any) -> tuple[int, ...]:
    """Shape of the rows: (B, Hq, Sq) for the reference's results of sdpa, merge or latent, (Hq, Tq) for varlen."""
    shape: tuple[int, ...] = expected.allowed.shape[:3] if isinstance(expected, Expected) else expected.lse.shape
    return shape


def of_result(rows: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Rows with the axes of a result, to be broadcast to it; the named axes of the result include those of rows."""
    own = ("batch", "head", "row")[-rows.ndim :]
    order = [own.index(name) for name in axes if name in own]
    return np.expand_dims(rows.transpose(order), [at for at, name in enumerate(axes) if name not in own])


def _first_part_empty(x: Any, expected: Any) -> np.ndarray | bool:
    """Rows of a merge whose first part has no key."""
    return np.isneginf(x.arrays["lses"][0]) if "lses" in x.arrays else False


def _packed_row_without_key(x: Any, expected: Any) -> np.ndarray | bool:
    """Rows of a pack that have no allowed key."""
    if not isinstance(expected, PackedExpected):
        return False
    rows = np.zeros(expected.lse.shape, bool)
    for part in expected.parts:
        rows[:, part.rows] = _fully_masked_row(x, part.expected).swapaxes(0, 1)
    return rows


def _pack_without_key(x: Any, expected: Any) -> bool:
    """A pack in which no sequence has a key, and nothing lies behind the last."""
    return isinstance(expected, PackedExpected) and len(x.k) == 0


def _sequences_without_keys(x: Any, expected: Any) -> bool:
    """A pack in which no sequence has a key, whatever lies behind the last."""
    return isinstance(expected, PackedExpected) and int(x.cu_seqlens_k[-1]) == 0


def _pack_with_lse(x: Any, expected: Any) -> bool:
    """A pack whose lse is requested."""
    return isinstance(expected, PackedExpected) and bool(x.keywords.get("return_lse"))


def _always(x: Inputs, expected: Expected) -> bool:
    return True


def _fully_masked_row(x: Inputs, expected: Expected) -> np.ndarray:
    return np.logical_not(expected.allowed.any(axis=3))


def _within_fill(x: Inputs, expected: Expected) -> np.ndarray:
    """Fully masked rows, or rows where −10000, added to a masked key's score, does not remove its weight."""
    masked = np.where(expected.allowed, -np.inf, expected.raw) + MASK_FILL
    top = expected.scores.max(axis=3, keepdims=True, initial=-np.inf)  # −inf in a fully masked row
    return (masked > top - EXP_RANGE).any(axis=3)


def _row_of_minus_inf(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """Fully masked rows where a bias of −inf takes part."""
    bias = x.keywords.get("bias")
    if bias is None:
        return False
    removed = np.broadcast_to(np.isneginf(bias.astype(np.float64)), expected.allowed.shape)
    return removed.any(axis=3) & _fully_masked_row(x, expected)


def _causal_row_of_minus_inf(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """Fully masked rows where a bias of −inf takes part, with is_causal."""
    return bool(x.keywords.get("is_causal")) and _row_of_minus_inf(x, expected)


def _empty_axis(x: Inputs, expected: Expected) -> bool:
    return 0 in (*x.q.shape, *x.v.shape)


def _no_keys(x: Inputs, expected: Expected) -> bool:
    return x.k.shape[2] == 0


def _scale(test: Callable[[float], bool]) -> Spoils:
    """A scale is given, and ``test`` of it holds."""
    return lambda x, expected: x.keywords.get("scale") is not None and test(x.keywords["scale"])


def _causal_scale(x: Inputs, expected: Expected) -> bool:
    """is_causal with a scale that is 0 or negative."""
    scale = x.keywords.get("scale")
    return bool(x.keywords.get("is_causal")) and scale is not None and scale <= 0


def _last_row_causal(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """The last row of a causal call with Sq < Sk."""
    rows, keys = expected.allowed.shape[2:]
    return bool(x.keywords.get("is_causal")) and rows < keys and np.arange(rows) == rows - 1


def _masked_overflow(x: Inputs, expected: Expected) -> np.ndarray:
    """Rows with a masked key whose product with the query, before it is scaled, may overflow."""
    size = np.abs(expected.q) @ np.abs(expected.k).swapaxes(2, 3)
    return ((size > LARGEST[str(x.q.dtype)]) & ~expected.allowed).any(axis=3)


def _mask_or_bias(test: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> Spoils:
    """A mask or bias is given and ``test(its shape, the shape of the scores)`` holds."""

    def spoils(x: Inputs, expected: Expected) -> bool:
        given = (x.keywords.get(name) for name in ("mask", "bias"))
        return any(array is not None and test(array.shape, expected.allowed.shape) for array in given)

    return spoils


def _repeats_rows_or_keys(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return len(shape) < 2 or any(n == 1 < f for n, f in zip(shape[-2:], full[-2:], strict=True))


def _repeats_keys(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return shape[-1] == 1 < full[3]


def _causal_one_row(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """All rows but the first, where is_causal meets a mask or bias with one row for all of them."""
    rows = expected.allowed.shape[2]
    one = _mask_or_bias(lambda shape, full: len(shape) > 1 and shape[-2] == 1 < full[2])(x, expected)
    return bool(x.keywords.get("is_causal")) and bool(one) and np.arange(rows) > 0


def _causal_rank_1(x: Inputs, expected: Expected) -> bool:
    """is_causal with a mask or bias of rank 1."""
    one = _mask_or_bias(lambda shape, full: len(shape) == 1)(x, expected)
    return bool(x.keywords.get("is_causal")) and bool(one)


def _length_zero(x: Inputs, expected: Expected) -> bool:
    """A batch of length 0."""
    return bool(np.any(x.keywords.get("kv_lengths", 1) == 0))


def _vectors(x: Inputs, expected: Expected) -> bool:
    """One batch, one key head, and two of three are 1: the rows of the group, the keys, the width."""
    _, heads, rows, width = x.q.shape
    sizes = (heads * rows, x.k.shape[2], width)
    return x.k.shape[:2] == (1, 1) and sum(size == 1 for size in sizes) > 1


def _fully_masked_row_of_weights(x: Inputs, expected: Expected) -> np.ndarray | bool:
    """Fully masked rows where weights are requested."""
    return bool(x.keywords.get("return_weights")) and _fully_masked_row(x, expected)


def _any_fully_masked_row(x: Inputs, expected: Expected) -> bool:
    return bool(_fully_masked_row(x, expected).any())


def _no_bias(x: Inputs, expected: Expected) -> bool:
    """A layer without a bias of queries, keys or values."""
    return "heads" in x.keywords and all(x.keywords.get(name) is None for name in ("b_q", "b_k", "b_v"))


def _padded(x: Inputs, expected: Expected) -> bool:
    """Several rows with padded keys, by kv_lengths or a mask with one row; not causal, no weights, no bias."""
    given, mask = x.keywords, x.keywords.get("mask")
    one = mask is not None and mask.ndim > 1 and mask.shape[-2] == 1
    beside = given.get("is_causal") or given.get("return_weights") or given.get("bias") is not None
    return expected.allowed.shape[2] > 1 and not beside and ("kv_lengths" in given or one)


def _one_query(x: Inputs, expected: Expected) -> bool:
    """is_causal with one query and a past."""
    return bool(x.keywords.get("is_causal")) and "past_key" in x.keywords and x.q.shape[2] == 1


def _causal_offset(x: Inputs, expected: Expected) -> bool:
    """is_causal with an offset other than 0; a past counts as one."""
    offset = x.keywords.get("causal_offset", 0)
    return bool(x.keywords.get("is_causal")) and ("past_key" in x.keywords or bool(np.any(offset)))


def _no_new_key(x: Inputs, expected: Expected) -> bool:
    """A past and no new key."""
    return "past_key" in x.keywords and x.k.shape[2] == 0


def _returns_lse(x: Inputs, expected: Expected) -> bool:
    return bool(x.keywords.get("return_lse"))


def _table(predicate: Spoils, ids: str) -> dict[str, Spoils]:
    return dict.fromkeys(ids.split(), predicate)


#: The rows that each record of the ledger spoils, by its id, for the records that random inputs can trigger.
SPOILS: dict[str, Spoils] = {
    "torch-context-parallel-no-key": _first_part_empty,
    "torch-context-parallel-first-part-empty": _first_part_empty,
    **_table(
        _masked_overflow,
        "torch-masked-overflow ort-attention-masked-overflow onnx-reference-masked-overflow "
        "export18-sdpa-masked-overflow",
    ),
    **_table(
        _fully_masked_row, "jax-nn-empty-row-1 jax-nn-empty-row-2 export18-sdpa-empty-row-1 export18-sdpa-empty-row-2"
    ),
    **_table(_packed_row_without_key, "jax-varlen-nn-empty-rows jax-varlen-nn-empty-rows-bfloat16"),
    "jax-varlen-nn-lse-dtype": _pack_with_lse,
    "varlen-flex-no-keys": _pack_without_key,
    "varlen-nested-no-keys": _sequences_without_keys,
    "ort-mha-fill": _within_fill,
    "ort-mha-bias-minus-inf-causal": _causal_row_of_minus_inf,
    **_table(
        _row_of_minus_inf,
        "ort-mha-bias-minus-inf jax-nn-bias-minus-inf-1 jax-nn-bias-minus-inf-2 jax-nn-bias-minus-inf-masked "
        "export18-sdpa-bias-minus-inf",
    ),
    **_table(_empty_axis, "ort-attention-empty ort-mha-no-values"),
    **_table(
        _no_keys, "flex-no-keys onnx-reference-no-keys export-lse-no-keys export-no-keys-grouped export18-sdpa-no-keys"
    ),
    **_table(_scale(lambda scale: scale <= 0), "ort-attention-scale-1 ort-attention-scale-2"),
    **_table(
        _scale(lambda scale: scale < 0),
        "onnx-reference-scale export18-sdpa-scale-float64 export18-sdpa-scale-1 export18-sdpa-scale-2",
    ),
    **_table(_scale(lambda scale: scale == 0), "ort-mha-scale-zero ort-gqa-scale-zero ort-layer-scale-zero"),
    "torch-flash-causal-scale": _causal_scale,
    "ort-mha-causal": _last_row_causal,
    "torch-flash-rank-1": _mask_or_bias(lambda shape, full: len(shape) == 1),
    **_table(_mask_or_bias(_repeats_rows_or_keys), "ort-attention-broadcast-1 ort-attention-broadcast-2"),
    "onnx-reference-one-key": _mask_or_bias(_repeats_keys),
    **_table(
        _always,
        "jax-nn-float64 jax-nn-float16 export-float64-scalars-1 export-float64-scalars-2 onnx-reference-bfloat16 "
        "onnx-reference23-bfloat16",
    ),
    "jax-nn-lse-dtype": _returns_lse,
    "onnx-reference-causal-one-row": _causal_one_row,
    "onnx-reference-causal-rank-1": _causal_rank_1,
    "ort-gqa-length-zero": _length_zero,
    "jax-nn-bfloat16-vector": _vectors,
    "ort-attention-past-one-query": _one_query,
    "ort-attention-past-only": _no_new_key,
    "export-causal-lower-right": _causal_offset,
    # Layers: ``expected`` is the reference's result for their heads.
    "torch-mha-fast-empty-row": _fully_masked_row,
    "torch-mha-slow-empty-row": _fully_masked_row_of_weights,
    "export-mha-padding": _padded,
    "ort-mha-layer-causal": _last_row_causal,
    "ort-layer-fill": _within_fill,
    "ort-layer-bias-minus-inf": _row_of_minus_inf,
    "ort-attention-layer-no-bias": _no_bias,
    "torch-mha-gradients-empty-row": _any_fully_masked_row,
}
