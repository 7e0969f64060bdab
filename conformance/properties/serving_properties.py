"""Properties of packed, paged, quantised and merged attention: what holds between calls, each with its clause.

The counterpart of properties.py, with problems of serving.py.  The properties of block masks, trees and latents, in
the modules next to it, are registered too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from attention_conformance.conformance.properties import latent_properties, mask_properties  # noqa: F401  # register theirs
from attention_conformance.conformance.properties.form_property import SERVING_PROPERTIES, follows
from attention_conformance.conformance.properties.properties import AS_DRAWN
from attention_conformance.conformance.properties.trial import Answer, Measured, Trial, constant, merged
from attention_conformance.conformance.spec.varlen import of_sequences

__all__ = ["SERVING_PROPERTIES"]

#: Results with a row for each key, and results with the heads first.
_OF_KEYS, _HEADS_FIRST = ("grad_k", "grad_v"), ("lse",)

#: Keywords with an entry for each row of queries, and keywords with an entry for each sequence.
_OF_ROWS, _OF_SEQUENCES = ("k_new", "v_new"), ("causal_offset",)


@follows("varlen", "VARLEN-2")
@follows("varlen_grad", "GRAD-31")
@follows("paged", "PAGED-2")
@follows("quantised", "PAGED-14", needs="k_scale v_scale")
@follows("merge", "MERGE-2")
@follows("merge_grad", "GRAD-37")
def agrees_with_reference(trial: Trial) -> None:
    """The results with random options are those of the reference, within the bound of the declared profile."""
    for name, result in trial.call(trial.inputs, AS_DRAWN).results.items():
        trial.equal(name, result, constant(result.exact))


# Sequences.


@follows("varlen", "VARLEN-2")
@follows("varlen_grad", "GRAD-31")
@follows("paged", "PAGED-2")
def sequence_alone(trial: Trial) -> None:
    """A sequence computed alone is that sequence packed with the others."""
    one = trial.call(trial.inputs, AS_DRAWN)
    n = trial.draw(st.integers(0, _count(trial.inputs) - 1)) if not trial.few else _count(trial.inputs) - 1
    two = trial.call(_sequences(trial.inputs, [n]), f"its sequence {n} alone")
    _same_rows(trial, two, one, trial.inputs, [n])


@follows("varlen", "VARLEN-2")
@follows("varlen_grad", "GRAD-31")
@follows("paged", "PAGED-2")
def sequences_permuted(trial: Trial) -> None:
    """The sequences in another order give the same rows in that order."""
    order = list(trial.draw(st.permutations(range(_count(trial.inputs)))))
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(_sequences(trial.inputs, order), f"its sequences in the order {order}")
    _same_rows(trial, two, one, trial.inputs, order)


@follows("varlen", "VARLEN-10", needs="return_lse", is_causal="causal_offset", window="causal_offset", sinks="")
def keys_split(trial: Trial) -> None:
    """Two parts of the keys of every sequence, merged by their lse, give what all keys give."""
    x = trial.inputs
    lengths = np.diff(x.cu_seqlens_k)
    hypothesis.assume(lengths.max() > 1)
    first = trial.draw(st.integers(1, int(lengths.max()) - 1)) if not trial.few else int(lengths.max()) // 2
    left = trial.call(_keys(x, 0, first), f"the first {first} keys of its sequences")
    right = trial.call(_keys(x, first, None), "their other keys")
    whole = trial.call(x, AS_DRAWN)
    output, lse = merged(*_rows_first(left), *_rows_first(right))
    trial.equal("output", whole["output"], output[0].each(lambda a: a.swapaxes(0, 1)))
    trial.equal("lse", whole["lse"], lse[0])


# Pages.


@follows("paged", "PAGED-2")
@follows("quantised", "PAGED-14", needs="k_scale v_scale")
def pages_permuted(trial: Trial) -> None:
    """The pages in another order in the cache, with their scales and a table to match, give the same results."""
    x = trial.inputs
    pages = len(x.k_cache)
    order = np.random.default_rng(trial.draw(st.integers(0, 999)) if not trial.few else 0).permutation(pages)
    place = np.argsort(order).astype(np.int32)
    known = (x.block_table >= 0) & (x.block_table < pages)
    table = np.where(known, place[np.where(known, x.block_table, 0)], x.block_table).astype(np.int32)
    scales = {n: a[order] for n, a in x.keywords.items() if n in ("k_scale", "v_scale") and len(a) == pages}
    moved = replace(
        x, k_cache=x.k_cache[order], v_cache=x.v_cache[order], block_table=table, keywords=x.keywords | scales
    )
    one = trial.call(x, AS_DRAWN)
    trial.same(trial.call(moved, "its pages in another order"), one)


@follows("paged", "PAGED-4")
def unused_slots(trial: Trial) -> None:
    """Other finite numbers in the slots that no sequence uses change nothing."""
    x = trial.inputs
    used = np.zeros(x.k_cache.shape[:2], bool)
    for row, length in zip(x.block_table, x.kv_lengths.tolist(), strict=True):
        j = np.arange(length)
        used[row[j // used.shape[1]], j % used.shape[1]] = True
    caches = [np.where(used[..., None, None], a, a.dtype.type(1000)) for a in (x.k_cache, x.v_cache)]
    one = trial.call(x, AS_DRAWN)
    two = trial.call(replace(x, k_cache=caches[0], v_cache=caches[1]), "1000 in every slot that is not used")
    trial.same(two, one)


@follows("quantised", "PAGED-14", needs="k_scale v_scale", k_new="", v_new="")
def dequantised_before(trial: Trial) -> None:
    """Caches with scales that are powers of two give the same as caches dequantised, exactly, before the call."""
    x = trial.inputs
    scales = {n: np.exp2(np.rint(np.log2(x.keywords[n]))).astype(np.float32) for n in ("k_scale", "v_scale")}
    plain = {n: value for n, value in x.keywords.items() if n not in scales}
    numbers = [c.astype(np.float32) * s for c, s in zip((x.k_cache, x.v_cache), scales.values(), strict=True)]
    before = replace(x, k_cache=numbers[0].astype(x.q.dtype), v_cache=numbers[1].astype(x.q.dtype), keywords=plain)
    one = trial.call(before, "dequantised before the call")
    trial.same(trial.call(replace(x, keywords=x.keywords | scales), "with its scales, of powers of two"), one)


# Parts.


@follows("merge", "MERGE-5")
def parts_permuted(trial: Trial) -> None:
    """The parts in another order give the same output and lse."""
    order = list(trial.draw(st.permutations(range(len(trial.inputs.outputs)))))
    one = trial.call(trial.inputs, AS_DRAWN)
    trial.same(trial.call(_parts(trial.inputs, order), f"its parts in the order {order}"), one)


@follows("merge", "MERGE-4")
def merged_in_two_steps(trial: Trial) -> None:
    """Some parts merged, then the others, then both results, give the same as all parts at once."""
    count = len(trial.inputs.outputs)
    hypothesis.assume(count > 1)
    first = trial.draw(st.integers(1, count - 1)) if not trial.few else count // 2
    left = trial.call(_parts(trial.inputs, list(range(first))), f"its first {first} parts")
    right = trial.call(_parts(trial.inputs, list(range(first, count))), "its other parts")
    whole = trial.call(trial.inputs, AS_DRAWN)
    output, lse = merged(left["output"], left["lse"], right["output"], right["lse"])
    trial.equal("output", whole["output"], output)
    trial.equal("lse", whole["lse"], lse)


@follows("merge", "MERGE-6")
def part_without_keys(trial: Trial) -> None:
    """An additional part without a key, (0, −inf), at any place changes nothing."""
    x = trial.inputs
    at = trial.draw(st.integers(0, len(x.outputs))) if not trial.few else 0
    outputs, lses = (np.insert(a, at, value, axis=0) for a, value in ((x.outputs, 0), (x.lses, -np.inf)))
    one = trial.call(x, AS_DRAWN)
    trial.same(trial.call(replace(x, outputs=outputs, lses=lses), f"with a part without a key at {at}"), one)


# Gradients of parts.


@follows("merge_grad", "GRAD-37")
def gradients_permuted(trial: Trial) -> None:
    """The parts in another order have the same gradients in that order."""
    order = list(trial.draw(st.permutations(range(len(trial.inputs.outputs)))))
    one = trial.call(trial.inputs, AS_DRAWN)
    two = trial.call(_parts(trial.inputs, order), f"its parts in the order {order}")
    for name in two.results:
        trial.equal(name, two[name], one[name][order])


@follows("merge_grad", "GRAD-37")
def gradients_add_up(trial: Trial) -> None:
    """Gradients are linear: those for grad_output in some rows, with grad_lse, and for the other rows add up."""
    x = trial.inputs
    rows = np.arange(x.grad_output.shape[2])[:, None] % 2 == 0
    rest = {name: np.zeros_like(value) for name, value in x.keywords.items()}
    whole = trial.call(x, AS_DRAWN)
    one = trial.call(replace(x, grad_output=np.where(rows, x.grad_output, 0).astype(x.grad_output.dtype)), "even rows")
    others = np.where(rows, 0, x.grad_output).astype(x.grad_output.dtype)
    two = trial.call(replace(x, grad_output=others, keywords=rest), "odd rows, without grad_lse")
    for name in whole.results:
        trial.equal(name, one[name] + two[name], whole[name])


@follows("merge_grad", "GRAD-38")
def gradients_without_keys(trial: Trial) -> None:
    """An additional part without a key, at any place, has gradients of zero and changes no others."""
    x = trial.inputs
    at = trial.draw(st.integers(0, len(x.outputs))) if not trial.few else 0
    outputs, lses = (np.insert(a, at, value, axis=0) for a, value in ((x.outputs, 0), (x.lses, -np.inf)))
    one = trial.call(x, AS_DRAWN)
    two = trial.call(replace(x, outputs=outputs, lses=lses), f"with a part without a key at {at}")
    for name in two.results:
        trial.equal(name, two[name].each(lambda a: np.delete(a, at, axis=0)), one[name])
        trial.equal(name, two[name][at], constant(np.zeros(one[name].exact.shape[1:])))


# Parts of inputs and of results.


def _count(x: Any) -> int:
    return len(x.cu_seqlens_q) - 1


def _places(boundaries: np.ndarray, chosen: list[int]) -> np.ndarray:
    """The rows of some sequences, in their order."""
    return np.concatenate([np.arange(boundaries[n], boundaries[n + 1]) for n in chosen])


def _ends(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _sequences(x: Any, chosen: list[int]) -> Any:
    """The inputs of some sequences, in their order."""
    rows = _places(x.cu_seqlens_q, chosen)
    changes: dict[str, Any] = {"q": x.q[rows], "cu_seqlens_q": _ends(np.diff(x.cu_seqlens_q)[chosen])}
    if "grad_output" in x.arrays:
        changes["grad_output"] = x.grad_output[rows]
    if "block_table" in x.arrays:
        changes |= {"block_table": x.block_table[chosen], "kv_lengths": x.kv_lengths[chosen]}
    else:
        keys = _places(x.cu_seqlens_k, chosen)
        changes |= {"k": x.k[keys], "v": x.v[keys], "cu_seqlens_k": _ends(np.diff(x.cu_seqlens_k)[chosen])}
    given = dict(x.keywords)
    given |= {name: given[name][rows] for name in _OF_ROWS if name in given}
    given |= {name: given[name][chosen] for name in _OF_SEQUENCES if np.ndim(given.get(name, 0))}
    given |= {"bias": of_sequences(given["bias"], chosen)} if "bias" in given else {}
    return replace(x, **changes, keywords=given)


def _same_rows(trial: Trial, got: Answer, wanted: Answer, x: Any, chosen: list[int]) -> None:
    """Check that the results of some sequences are those that they have among all."""
    for name in got.results:
        places = _places(x.cu_seqlens_k if name in _OF_KEYS else x.cu_seqlens_q, chosen)
        trial.equal(name, got[name], wanted[name][(slice(None), places) if name in _HEADS_FIRST else places])


def _keys(x: Any, first: int, last: int | None) -> Any:
    """A part of the keys of every sequence, in their original positions."""
    lengths = np.diff(x.cu_seqlens_k)
    ends = lengths if last is None else np.minimum(lengths, last)
    starts = np.minimum(first, ends)
    begins = x.cu_seqlens_k[:-1]
    chosen = np.concatenate([np.arange(a, b) for a, b in zip(begins + starts, begins + ends, strict=True)])
    given = dict(x.keywords)
    if given.get("is_causal") or given.get("window") is not None:
        own = given.get("causal_offset")
        offset = lengths - np.diff(x.cu_seqlens_q) if own is None else np.broadcast_to(own, len(lengths))
        given["causal_offset"] = (offset - first).astype(np.int64)
    if first and "bias" in given:  # each key keeps its own, and entries behind the last key are unused
        given["bias"] = np.roll(given["bias"], -first, axis=3)
    return replace(x, k=x.k[chosen], v=x.v[chosen], cu_seqlens_k=_ends(ends - starts), keywords=given)


def _rows_first(answer: Answer) -> tuple[Measured, Measured]:
    """Output (1, H, T, Dv) and lse (1, H, T), as a merge has them."""
    return answer["output"].each(lambda a: a.swapaxes(0, 1)[None]), answer["lse"].each(lambda a: a[None])


def _parts(x: Any, order: list[int]) -> Any:
    return replace(x, outputs=x.outputs[order], lses=x.lses[order])
