"""Faults do what their titles say and nothing else: masks next to block masks, sinks, checks, sums and paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.faults import FAULTS, PATH_FAULTS, registry
from attention_conformance.conformance.faults.models.on_path import Mistake
from attention_conformance.conformance.faults.models.sdpa import Array, Attention
from attention_conformance.conformance.faults.sdpa.precision import MOST_KEYS
from attention_conformance.conformance.faults.sdpa.softcaps import SoftcapIgnored
from attention_conformance.conformance.faults.sdpa.validation import Lenient
from attention_conformance.conformance.faults.trials import fails
from attention_conformance.impls.contract import Profile

#: A call with five rows and keys, and a mask and a block mask for it.
RNG = np.random.default_rng(7)
Q, K, V = (RNG.standard_normal((2, 2, 5, 4)).astype(np.float32) for _ in range(3))
MASK = RNG.random((2, 2, 5, 5)) < 0.6
BLOCKS: dict[str, Any] = {"block_mask": RNG.random((2, 2, 3, 3)) < 0.6, "block_size": (2, 2)}
CAUSAL = np.tri(5, dtype=bool)

#: Faults of masks, the options with which each shows, and the mask that the call then uses.
OF_MASKS: dict[str, tuple[Mapping[str, Any], Callable[[Array], Array | None]]] = {
    "mask-inverted": ({}, np.logical_not),
    "mask-ignored": ({}, lambda mask: None),
    "mask-dropped-with-causal": ({"is_causal": True}, lambda mask: None),
    "mask-dropped-with-lengths": ({"kv_lengths": np.array([4, 2])}, lambda mask: None),
    "mask-transposed": ({}, lambda mask: mask.swapaxes(2, 3)),
    "mask-of-first-head": ({}, lambda mask: mask[:, :1]),
    "mask-of-first-row": ({}, lambda mask: mask[:, :, :1]),
}


def called(name: str, *arrays: Array, **options: Any) -> Any:
    """Results of a fault, called like a user's function."""
    return FAULTS[name].make()(*arrays, **options)


@pytest.mark.parametrize("name", OF_MASKS)
def test_a_fault_of_masks_leaves_a_block_mask_as_it_is(name: str) -> None:
    """The result is attention with the fault's mask and the given block mask."""
    options, change = OF_MASKS[name]
    right = Attention()(Q, K, V, mask=change(MASK), **options, **BLOCKS)
    assert np.array_equal(called(name, Q, K, V, mask=MASK, **options, **BLOCKS), right)


def test_a_mask_or_causal_leaves_a_block_mask_as_it_is() -> None:
    """The mask or causal allows keys, within the blocks that are True."""
    right = Attention()(Q, K, V, mask=MASK | CAUSAL, **BLOCKS)
    assert np.array_equal(called("mask-or-causal", Q, K, V, mask=MASK, is_causal=True, **BLOCKS), right)


def test_a_mask_ignored_with_one_query_leaves_a_block_mask_as_it_is() -> None:
    """A call with one query still applies the block mask."""
    blocks = {**BLOCKS, "block_mask": BLOCKS["block_mask"][:, :, :1]}
    right = Attention()(Q[:, :, :1], K, V, **blocks)
    assert np.array_equal(called("mask-ignored-one-query", Q[:, :, :1], K, V, mask=MASK[:, :, :1], **blocks), right)


@pytest.mark.parametrize("name", ["mask-ignored", "mask-added", "mask-after-softmax"])
@pytest.mark.parametrize("case", ["block", "block-causal", "tree", "tree-lengths"])
def test_a_fault_of_masks_passes_where_none_is_given(name: str, case: str) -> None:
    """Faults of masks do not apply to block masks and trees."""
    assert not fails(FAULTS[name].make, every_case()[case], "float32", Profile.WIDE)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if issubclass(fault.make, Lenient)])
@pytest.mark.parametrize("case", ["alibi-invalid", "head-scale-invalid", "block-invalid-count", "tree-invalid"])
def test_an_input_that_is_not_checked_leaves_other_checks_on(name: str, case: str) -> None:
    """Slopes, scales of heads, block masks and trees that do not fit are still refused."""
    found = [each for each in every_case().values() if each.name.startswith(case) and each.invalid]
    assert found
    assert not any(fails(FAULTS[name].make, each, "float32", Profile.WIDE) for each in found)


@pytest.mark.parametrize(
    "name", ["empty-row-nan", "empty-row-poisons-batch", "empty-row-mean", "fill-minus1e20", "fill-float64"]
)
@pytest.mark.parametrize("case", ["sinks-empty-row", "sinks-empty-all", "sinks-lse-empty", "sinks-lse-large"])
def test_a_fault_of_fully_masked_rows_passes_beside_a_sink(name: str, case: str) -> None:
    """Next to a sink, which is a score, a fill weighs nothing and the maximum is finite."""
    assert not fails(FAULTS[name].make, every_case()[case], "float32", Profile.WIDE)


def test_a_sink_of_minus_infinity_is_no_score() -> None:
    """A head with a sink of −inf behaves as without one."""
    sinks, mask = np.array([-np.inf, 0.5], np.float32), np.zeros((5, 5), bool)
    output = called("empty-row-nan", Q, K, V, sinks=sinks, mask=mask)
    assert np.isnan(output[:, 0]).all()
    assert not output[:, 1].any()


def test_lse_without_a_sink_does_not_cancel() -> None:
    """A sink far above the keys does not cancel their sum in lse."""
    sinks = np.full(2, 200, np.float32)
    _, lse = called("lse-without-sink", Q, K, V, sinks=sinks, return_lse=True)
    assert np.array_equal(lse, Attention()(Q, K, V, return_lse=True)[1])


def test_a_sum_in_half_precision_loses_no_keys() -> None:
    """Keys after the first MOST_KEYS, which are added one by one, are still summed."""
    keys = np.zeros((1, 1, MOST_KEYS + 4, 2), np.float16)
    values = np.ones_like(keys)
    values[:, :, MOST_KEYS:] = 1000
    assert np.array_equal(
        called("output-in-half", keys[:, :, :1], keys, values), Attention()(keys[:, :, :1], keys, values)
    )


def test_a_softcap_after_causal_leaves_windows_as_they_are() -> None:
    """Keys that the window hides too do not leak."""
    options: dict[str, Any] = {"is_causal": True, "softcap": 2.0}
    closed = called("softcap-after-causal", Q, K, V, window=(1, 0), **options)
    assert np.array_equal(closed, Attention()(Q, K, V, window=(1, 0), **options))
    assert not np.array_equal(called("softcap-after-causal", Q, K, V, **options), Attention()(Q, K, V, **options))


def test_lse_in_the_storage_dtype_is_that_of_the_call() -> None:
    """The lse is float16 in a float16 call, and float32 in a float32 call."""
    half = [array.astype(np.float16) for array in (Q, K, V)]
    assert called("lse-in-storage", *half, return_lse=True)[1].dtype == np.float16
    assert called("lse-in-storage", Q, K, V, return_lse=True)[1].dtype == np.float32


def test_a_tree_at_the_end_begins_where_the_last_keys_do() -> None:
    """The tree starts at the last keys, whatever offset is given."""
    parents, options = np.array([-1, 0, 1]), {"causal_offset": 1}
    right = Attention()(Q[:, :, :3], K, V, tree_parents=parents, causal_offset=2)
    assert np.array_equal(called("tree-at-the-end", Q[:, :, :3], K, V, tree_parents=parents, **options), right)


def test_a_known_fault_on_a_path_is_a_form_of_it() -> None:
    """The fault has the words and clause of the known one, and shows with the same options."""
    fault = PATH_FAULTS["vllm-partitions-softcap-ignored"]
    make = cast("type[Mistake]", fault.make)
    assert issubclass(make, SoftcapIgnored)
    assert make.shows_with() == {"softcap"}
    assert fault.title.startswith(FAULTS["softcap-ignored"].title)
    assert fault.clause == FAULTS["softcap-ignored"].clause


def test_faults_on_paths_come_after_all_others() -> None:
    """Known faults are registered by their own groups first, in the order of the kill matrix."""
    assert next(iter(FAULTS)) == "empty-row-nan"


def test_a_tracker_is_listed_once() -> None:
    """A repository has one line in trackers.txt."""
    lines = Path(registry.__file__).with_name("trackers.txt").read_text(encoding="utf-8").splitlines()
    assert len({line.split()[0] for line in lines}) == len(lines)
