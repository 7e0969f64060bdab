"""Questions of invariance: ways to put the same rows into another call, for sdpa, packs and paged caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape, PagedCase, PagedShape, boundaries
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.operators import PAGED, SDPA, VARLEN

#: The clauses about other sequences in the call, and about other rows of the same sequence.
BATCH = {SDPA.name: "SDPA-40", VARLEN.name: "VARLEN-14", PAGED.name: "PAGED-17"}
CHUNKS = {SDPA.name: "SDPA-41", VARLEN.name: "VARLEN-15", PAGED.name: "PAGED-18"}

_WHY = "Large enough that libraries share it between threads, and split its keys."

#: A whole prompt, a step of decoding, a chunk of a prompt, and another step.
_LENGTHS: dict[str, Any] = {"q_lengths": (96, 1, 64, 1), "k_lengths": (96, 300, 320, 40), "hq": 4, "hkv": 4}
_PACK = PackedShape(**_LENGTHS, d=64, dv=64)
_PAGES = PagedShape(**_LENGTHS, d=64, dv=64, page=16)

#: The case of each operator; every sequence of it is asked for.
CASES: dict[str, AnyCase] = {
    SDPA.name: sdpa_case("invariance", BATCH[SDPA.name], _WHY, Shape(3, 8, 8, 128, 320, 64, 64), needs="B > 1"),
    VARLEN.name: PackedCase.of("invariance", BATCH[VARLEN.name], _WHY, _PACK, _PACK.options),
    PAGED.name: PagedCase.of("invariance", BATCH[PAGED.name], _WHY, _PAGES, _PAGES.options),
}

#: Part of the output of the first call, the second call, and the part of its output that has the same rows.
Pair = tuple[tuple[Any, ...], Any, tuple[Any, ...]]
WHOLE = (slice(None),)


def _of(x: Inputs, pick: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return Inputs(pick(x.q), pick(x.k), pick(x.v), x.keywords)


def _alone(x: Inputs) -> Pair:
    return (slice(1, 2),), _of(x, lambda a: a[1:2].copy()), WHOLE


def _place(x: Inputs) -> Pair:
    return (slice(None, None, -1),), _of(x, lambda a: a[::-1].copy()), WHOLE


def _neighbours(x: Inputs) -> Pair:
    def others(a: np.ndarray) -> np.ndarray:
        rolled = np.roll(a, 1, axis=2) * a.dtype.type(2)
        return np.concatenate([a[:1], rolled[1:]])

    return (slice(0, 1),), _of(x, others), (slice(0, 1),)


def _larger(x: Inputs) -> Pair:
    return WHOLE, _of(x, lambda a: np.concatenate([a] * 4)), (slice(0, len(x.q)),)


def _padding(x: Inputs) -> Pair:
    def longer(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.ones_like(a)], axis=2)

    lengths = np.full(len(x.q), x.k.shape[2], np.int64)
    return WHOLE, Inputs(x.q, longer(x.k), longer(x.v), {"kv_lengths": lengths}), WHOLE


def _chunk(x: Inputs) -> Pair:
    rows = slice(x.q.shape[2] // 2, None)
    return (slice(None), slice(None), rows), Inputs(x.q[:, :, rows].copy(), x.k, x.v), WHOLE


def _row(x: Inputs) -> Pair:
    return (slice(None), slice(None), slice(-1, None)), Inputs(x.q[:, :, -1:].copy(), x.k, x.v), WHOLE


# Packed sequences and paged caches: x is a PackedInputs or PagedInputs.

#: Function of a sequence's numbers of queries and keys: the queries, and the number of keys, in the second call.
Taken = Callable[[int, int], tuple[range, int]]


def _everything(queries: int, keys: int) -> tuple[range, int]:
    return range(queries), keys


def _last_half(queries: int, keys: int) -> tuple[range, int]:
    return range(queries // 2, queries), keys


def _last_row(queries: int, keys: int) -> tuple[range, int]:
    return range(max(queries - 1, 0), queries), keys


def _first_half(queries: int, keys: int) -> tuple[range, int]:
    """The first chunk of a prompt, before the rest has come; for a step of decoding, the step itself."""
    count = max(queries // 2, min(queries, 1))
    return range(count), keys - (queries - count)


def _repacked(x: Any, order: Sequence[int] | None = None, taken: Taken = _everything) -> Pair:
    """A second call with the sequences in ``order``, each with the queries and the number of keys from ``taken``."""
    order = range(len(x.cu_seqlens_q) - 1) if order is None else order
    counts, starts = np.diff(x.cu_seqlens_q), x.cu_seqlens_q
    lengths = x.kv_lengths if hasattr(x, "kv_lengths") else np.diff(x.cu_seqlens_k)
    chosen = [taken(int(counts[n]), int(lengths[n])) for n in order]
    rows = np.concatenate([starts[n] + np.array(own, np.int64) for n, (own, _) in zip(order, chosen, strict=True)])
    queries, keys = tuple(len(own) for own, _ in chosen), tuple(count for _, count in chosen)
    maxima = {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys)}
    changes: dict[str, Any] = {"q": x.q[rows], "cu_seqlens_q": boundaries(queries), "keywords": x.keywords | maxima}
    if hasattr(x, "kv_lengths"):
        changes |= {"block_table": x.block_table[list(order)], "kv_lengths": np.array(keys, x.kv_lengths.dtype)}
    else:
        of_keys = [np.arange(count) + x.cu_seqlens_k[n] for n, count in zip(order, keys, strict=True)]
        own = np.concatenate(of_keys)
        changes |= {"k": x.k[own], "v": x.v[own], "cu_seqlens_k": boundaries(keys)}
    return (rows,), replace(x, **changes), WHOLE


def _packed_neighbours(x: Any) -> Pair:
    """The same call with other numbers everywhere except in the first sequence."""
    end = int(x.cu_seqlens_q[1])
    if hasattr(x, "kv_lengths"):
        pages = -(-int(x.kv_lengths[0]) // x.k_cache.shape[1])
        kept = np.isin(np.arange(len(x.k_cache)), x.block_table[0, :pages])
        names = ("k_cache", "v_cache")
    else:
        kept = np.arange(len(x.k)) < x.cu_seqlens_k[1]
        names = ("k", "v")

    def others(array: np.ndarray, own: np.ndarray) -> np.ndarray:
        rolled = np.roll(array, 1, axis=-1) * array.dtype.type(2)
        return np.where(own.reshape(-1, *(1,) * (array.ndim - 1)), array, rolled)

    changes = {name: others(getattr(x, name), kept) for name in names} | {"q": others(x.q, np.arange(len(x.q)) < end)}
    return (slice(0, end),), replace(x, **changes), (slice(0, end),)


def _packed_larger(x: Any) -> Pair:
    _, second, _ = _repacked(x, [*range(len(x.cu_seqlens_q) - 1)] * 4)
    return WHOLE, second, (slice(0, len(x.q)),)


def _larger_maxima(x: Any) -> Pair:
    """Larger maxima, as engines that replay a captured graph give them, and as many more columns of a table."""
    changes = {"keywords": x.keywords | {name: 4 * x.keywords[name] for name in ("max_seqlen_q", "max_seqlen_k")}}
    if hasattr(x, "block_table"):
        changes["block_table"] = np.concatenate([x.block_table, *[np.zeros_like(x.block_table)] * 3], axis=1)
    return WHOLE, replace(x, **changes), WHOLE


def _one_split(x: Any) -> Pair:
    """Keys in one piece, instead of as many as a heuristic chooses."""
    return WHOLE, replace(x, keywords=x.keywords | {"num_splits": 1}), WHOLE


def _other_pages(x: Any) -> Pair:
    """The same pages elsewhere in the cache."""
    place = np.random.default_rng(1).permutation(len(x.k_cache))
    origin = np.argsort(place)
    table = place[x.block_table].astype(x.block_table.dtype)
    return WHOLE, replace(x, k_cache=x.k_cache[origin], v_cache=x.v_cache[origin], block_table=table), WHOLE


@dataclass(frozen=True)
class Question:
    """One way to put the same rows into another call."""

    clause: str
    #: Text of the question, as a message says it.
    text: str
    pair: Callable[[Any], Pair]
    #: Keywords that both calls give.
    needs: tuple[str, ...] = ()


def _of_packs(operator: str) -> dict[str, Question]:
    batch, chunks = BATCH[operator], CHUNKS[operator]
    return {
        "alone": Question(batch, "the third sequence alone", lambda x: _repacked(x, [2])),
        "place": Question(batch, "the sequences in reverse order", lambda x: _repacked(x, [3, 2, 1, 0])),
        "neighbours": Question(batch, "the first sequence beside others", _packed_neighbours),
        "larger-batch": Question(batch, "the batch four times over", _packed_larger),
        "padding": Question(batch, "maxima four times as large", _larger_maxima),
        "splits": Question(batch, "with keys in one piece", _one_split, ("num_splits",)),
        "chunk": Question(chunks, "the second half of the queries", lambda x: _repacked(x, taken=_last_half)),
        "row": Question(chunks, "the last query of each sequence", lambda x: _repacked(x, taken=_last_row)),
        "prefill": Question(
            chunks,
            "the first half of the queries, over the keys until then",
            lambda x: _repacked(x, taken=_first_half),
            ("is_causal",),
        ),
    }


#: The questions of each operator, by name.
QUESTIONS: Mapping[str, Mapping[str, Question]] = {
    SDPA.name: {
        "alone": Question(BATCH[SDPA.name], "the second sequence alone", _alone),
        "place": Question(BATCH[SDPA.name], "the sequences in reverse order", _place),
        "neighbours": Question(BATCH[SDPA.name], "the first sequence beside others", _neighbours),
        "larger-batch": Question(BATCH[SDPA.name], "the batch four times over", _larger),
        "padding": Question(
            BATCH[SDPA.name], "as many keys of padding behind every sequence", _padding, ("kv_lengths",)
        ),
        "chunk": Question(CHUNKS[SDPA.name], "the second half of the queries", _chunk),
        "row": Question(CHUNKS[SDPA.name], "the last query alone", _row),
    },
    VARLEN.name: _of_packs(VARLEN.name),
    PAGED.name: {
        **_of_packs(PAGED.name),
        "pages": Question(BATCH[PAGED.name], "the same pages elsewhere in the cache", _other_pages),
    },
}


def questions(operator: str) -> Mapping[str, Question]:
    """The questions for an operator; none if it has no clause of this kind.

    Parameters
    ----------
    operator
        Operator, such as "sdpa".

    Returns
    -------
    Mapping[str, Question]
        Questions by name.
    """
    return QUESTIONS.get(operator, {})
