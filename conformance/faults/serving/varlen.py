"""(VARLEN-1 to 11) Packed sequences with the boundaries, the diagonal or the rows of another sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.models.varlen import Pack, Packed
from attention_conformance.conformance.faults.registry import fault

#: Keys or rows per tile, in the faults about tiles.
TILE = 16


class OtherKeys(Packed):
    """Reads other keys than the sequence's own, but keeps the diagonal where its own keys put it."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return len(super().keys(x, n)) - queries


@fault("VARLEN-2", "the boundaries of packed sequences are ignored", "HunyuanVideo PR 310, LLaMA-Factory PR 4224")
class PackedBoundariesIgnored(Packed):
    """Every query attends to the whole pack, as on a fallback path whose kernel knows no boundaries."""

    def keys(self, x: Pack, n: int) -> Array:
        return np.arange(x.cu_seqlens_k[-1])


@fault("VARLEN-2", "only the first boundary of a pack is used", "HunyuanVideo PR 310")
class PackedFirstBoundaryOnly(Packed):
    """``cu_seqlens[1]`` splits the pack in two; packs of up to two sequences are right."""

    def keys(self, x: Pack, n: int) -> Array:
        first, last = x.cu_seqlens_k[1], x.cu_seqlens_k[-1]
        return np.arange(first) if n == 0 else np.arange(first, last)


@fault("VARLEN-2", "attention of packed sequences sees all earlier ones", "trl PR 3526, cf. lightning-thunder 1758")
class PackedPrefixSeen(Packed):
    """One causal mask covers the whole pack, because positions do not restart at each sequence."""

    def keys(self, x: Pack, n: int) -> Array:
        return np.arange(x.cu_seqlens_k[n + 1])


@fault("VARLEN-2", "the last tile of keys runs on into the next sequence", "cf. flash-attention PR 2333")
class PackedTileCrossesBoundary(OtherKeys):
    """Keys are masked by whole tiles of 16; lengths that 16 divides, and causal calls, are right."""

    def keys(self, x: Pack, n: int) -> Array:
        start, end = x.cu_seqlens_k[n : n + 2].tolist()
        return np.arange(start, min(start - (start - end) // TILE * TILE, len(x.k)))


@fault("VARLEN-2", "one key of the next sequence is seen", "cf. prime-rl PR 2392")
class PackedOneKeyTooMany(OtherKeys):
    """The end of a sequence is tested with ≤ instead of <; a causal mask hides it."""

    def keys(self, x: Pack, n: int) -> Array:
        start, end = x.cu_seqlens_k[n : n + 2].tolist()
        return np.arange(start, min(end + 1, len(x.k)))


@fault("VARLEN-2", "the last key of a sequence is not seen", "cf. ring-flash-attention PR 78")
class PackedLastKeyMissing(Packed):
    """The end of a sequence is taken for the index of its last key."""

    def keys(self, x: Pack, n: int) -> Array:
        keys = super().keys(x, n)
        return keys[:-1] if len(keys) > 1 else keys


@fault(
    "VARLEN-6",
    "the longest sequence's keys are taken for every sequence's own",
    "vllm-flash-attention PR 18, flash-attention PR 1192",
)
class PackedLongestKeys(Packed):
    """``params.seqlen_k`` is used for ``actual_seqlen_k``; packs of equally long sequences are right."""

    def keys(self, x: Pack, n: int) -> Array:
        start = int(x.cu_seqlens_k[n])
        return np.arange(start, min(start + x.max_seqlen_k, len(x.k)))


@fault("VARLEN-6", "the diagonal of packed sequences is that of the maxima", "rocm-libraries PR 10999")
class PackedDiagonalOfMaxima(Packed):
    """The kernel has one offset for all sequences, max_seqlen_k − max_seqlen_q."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return x.max_seqlen_k - x.max_seqlen_q


@fault("VARLEN-6", "keys beyond the longest sequence of queries are not seen", "cf. vllm-omni PR 3525")
class PackedKeysUpToLongestQueries(OtherKeys):
    """The loop over keys is bounded by max_seqlen_q instead of max_seqlen_k."""

    def keys(self, x: Pack, n: int) -> Array:
        return super().keys(x, n)[: max(x.max_seqlen_q, 1)]


@fault("VARLEN-1", "keys of packed sequences are found by the boundaries of queries", "vllm-omni PR 3525")
class PackedKeysByQueries(Packed):
    """cu_seqlens_q serves for queries and keys, as in self-attention; keys behind its end are left out."""

    def keys(self, x: Pack, n: int) -> Array:
        start, end = (min(int(each), len(x.k)) for each in x.cu_seqlens_q[n : n + 2])
        return np.arange(start, end)


@fault("VARLEN-3", "causal masks of packed sequences are aligned at the top left", "SageAttention PR 372, cutlass 2336")
class PackedTopLeft(Packed):
    """Sequences with as many queries as keys are right."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return 0


@fault("VARLEN-3", "positions of queries are counted from the start of the pack", "tilelang PR 1530")
class PackedPositionsOfPack(Packed):
    """The start of the sequence is added to positions again, so later sequences see too many keys."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return keys - queries + int(x.cu_seqlens_q[n])


@fault("VARLEN-3", "the window of packed sequences is aligned at the top left", "cf. cudnn-frontend PR 493")
class PackedWindowTopLeft(Packed):
    """The causal mask applies the offset, the window does not."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        window = x.options.get("window")
        if window is None or x.causal_offset is not None:
            return x.options
        offset = len(self.keys(x, n)) - len(self.rows(x, n))
        left, right = window
        return {
            **x.options,
            "window": (None if left is None else left + offset, None if right is None else right - offset),
        }


@fault("VARLEN-3", "the first sequence's offset is every sequence's", "cf. rocm-libraries PR 10999")
class PackedFirstOffset(Packed):
    """One offset is read where there is one per sequence."""

    def offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return super().offset(x, 0, len(self.rows(x, 0)), len(self.keys(x, 0)))


@fault("VARLEN-3", "a given offset of packed sequences is ignored", "cf. flash-attention 1778")
class PackedOffsetIgnored(Packed):
    """The causal diagonal always ends at the last key."""

    def offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return self.default_offset(x, n, queries, keys)


@fault("VARLEN-3", "a single query of a packed sequence sees no window", "cf. imp 1345, cf. vllm PR 49815")
class PackedOneQueryWithoutWindow(Packed):
    """Decoding steps take another kernel, which has no window."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "window": None} if len(self.rows(x, n)) == 1 else x.options


@fault(
    "VARLEN-4", "a packed sequence without keys gives NaN", "flash-attention PR 2568, vllm-fork PR 318, pytorch 81077"
)
class PackedEmptyNan(Packed):
    """The softmax over no keys is 0 / 0."""

    def sequence(self, x: Pack, n: int) -> tuple[Array, Array]:
        output, lse = super().sequence(x, n)
        return (output, lse) if len(self.keys(x, n)) else (output * np.nan, lse * np.nan)


@fault(
    "VARLEN-4", "a row of a pack without a key is the mean of all its values", "cf. onnxruntime 28904, cf. apex 1390"
)
class PackedEmptyMean(Packed):
    """One mask over the whole pack is filled with a finite number, so all weights are equal."""

    def sequence(self, x: Pack, n: int) -> tuple[Array, Array]:
        output, lse = super().sequence(x, n)
        empty = np.isneginf(lse).T[..., None] & (len(x.v) > 0)
        mean = np.repeat(x.v.astype(np.float64).sum(axis=0) / max(len(x.v), 1), x.q.shape[1] // x.k.shape[1], axis=0)
        return np.where(empty, mean, output).astype(output.dtype), lse


@fault("VARLEN-4", "a packed sequence without keys gets the keys behind it", "flash-attention PR 2568")
class PackedEmptyReadsNeighbour(Packed):
    """The loop over tiles of keys runs at least once."""

    def keys(self, x: Pack, n: int) -> Array:
        keys, start = super().keys(x, n), int(x.cu_seqlens_k[n])
        return keys if len(keys) else np.arange(start, len(x.k))[:TILE]


@fault(
    "VARLEN-4",
    "rows of a packed sequence without keys are those of the sequence before",
    "thinc PR 637, cf. flash-attention PR 1155",
)
class PackedEmptyKeepsRows(Packed):
    """Registers or the buffer still hold the last row of the sequence before, which is written out."""

    def write(self, x: Pack, n: int, output: Array, lse: Array, found: Array, of_rows: Array) -> None:
        super().write(x, n, output, lse, found, of_rows)
        rows = self.rows(x, n)
        if len(rows) and not len(self.keys(x, n)) and rows[0] > 0:
            output[rows], lse[:, rows] = output[rows[0] - 1], lse[:, rows[:1] - 1]


@fault("VARLEN-4", "packed sequences behind one without queries read the keys of the sequence before", "thinc PR 637")
class PackedEmptyShifts(Packed):
    """Sequences without queries are left out of the list of queries, but not out of that of keys."""

    def keys(self, x: Pack, n: int) -> Array:
        starts = x.cu_seqlens_q
        return super().keys(x, n - int(np.count_nonzero(starts[1 : n + 1] == starts[:n])))


@fault("VARLEN-4", "a pack ends at its first empty sequence", "cf. flash-linear-attention 103, cf. FlashKDA PR 32")
class PackedEndsAtEmpty(Packed):
    """``break`` is written instead of ``continue``; rows of later sequences stay zero."""

    def count(self, x: Pack) -> int:
        empty = np.flatnonzero(np.diff(x.cu_seqlens_q) * np.diff(x.cu_seqlens_k) == 0)
        return int(empty[0]) if len(empty) else x.sequences


@fault("VARLEN-4", "lse of a row of a pack without keys is +∞", "cf. flashinfer 4484, cf. flash-attention PR 2573")
class PackedEmptyLsePositive(Packed):
    """An empty state is (0, +∞) on one path of flash-attention."""

    def stored_lse(self, x: Pack, lse: Array) -> Array:
        return np.where(np.isneginf(lse), np.inf, lse).astype(lse.dtype)


@fault(
    "VARLEN-4",
    "with max_seqlen_q = 1, sequence n is written to row n, though empty sequences have no row",
    "flash-attention 1537, flash-attention 1619",
)
class PackedOneQueryAsBatch(Packed):
    """The rows are viewed as a batch of one query each."""

    def written(self, x: Pack, n: int) -> Array:
        rows = super().written(x, n)
        return rows * 0 + min(n, len(x.q) - 1) if x.max_seqlen_q == 1 else rows


@fault("VARLEN-5", "softcap is ignored over packed sequences", "unsloth PR 8957, cf. flashinfer 1193")
class PackedSoftcapIgnored(Packed):
    """The path without padding does not pass it on."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "softcap": None}


@fault("VARLEN-5", "sinks are ignored over packed sequences", "cf. TransformerEngine 2541")
class PackedSinksIgnored(Packed):
    """The path without padding does not pass them on."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "sinks": None}


@fault("VARLEN-5", "a window side of 0 means open over packed sequences", "cf. flash-attention 2574")
class PackedWindowZeroIsOpen(Packed):
    """The code tests ``side > 0`` where −1 stands for an open side, and 0 is taken for it."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        window = x.options.get("window")
        return x.options if window is None else {**x.options, "window": tuple(side or None for side in window)}


@fault("VARLEN-5", "windows are ignored over packed sequences", "tvm PR 18630")
class PackedWindowIgnored(Packed):
    """The kernel for ragged prefill lacks the window that the paged one has."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "window": None}


@fault("VARLEN-7", "the last sequence of a pack reads on to the end of k", "flash-attention 1661")
class PackedLastReadsOn(OtherKeys):
    """Everything up to the end of the array counts as its keys; packs that end there are right."""

    def keys(self, x: Pack, n: int) -> Array:
        keys = super().keys(x, n)
        return np.arange(x.cu_seqlens_k[n], len(x.k)) if n == x.sequences - 1 else keys


@fault("VARLEN-8", "packed sequences behind the 256th are not computed", "cf. flash-linear-attention 906")
class PackedFirst256(Packed):
    """The grid ends there, or the index has eight bits; later rows are zeros."""

    def count(self, x: Pack) -> int:
        return min(x.sequences, 256)


@fault("VARLEN-8", "starts of packed sequences are cut to 16 bits", "cf. aiter 3062, cf. flash-linear-attention 906")
class PackedStartsIn16Bits(Packed):
    """Calls with at most 65,535 rows are still right."""

    def starts(self, x: Pack, boundaries: Array) -> Array:
        return boundaries.astype(np.int64) % 2**16

    def rows(self, x: Pack, n: int) -> Array:
        return self.starts(x, x.cu_seqlens_q)[n] + np.arange(x.cu_seqlens_q[n + 1] - x.cu_seqlens_q[n])

    def keys(self, x: Pack, n: int) -> Array:
        return self.starts(x, x.cu_seqlens_k)[n] + np.arange(x.cu_seqlens_k[n + 1] - x.cu_seqlens_k[n])


@fault("VARLEN-8", "starts of packed sequences are cut to 15 bits and a sign", "cf. aiter 3062")
class PackedStartsInInt16(PackedStartsIn16Bits):
    """Calls with at most 32,767 rows are still right; a negative start is read as 0."""

    def starts(self, x: Pack, boundaries: Array) -> Array:
        return np.maximum(boundaries.astype(np.int16).astype(np.int64), 0)


@fault("VARLEN-11", "boundaries of different lengths are accepted", "cf. transformers PR 39653")
class PackedBoundariesNotChecked(Packed):
    """The call computes as many sequences as both arrays have."""

    def check(self, x: Pack) -> None:
        pass

    def count(self, x: Pack) -> int:
        return min(x.sequences, len(x.cu_seqlens_k) - 1)


@fault(
    "VARLEN-1", "rows of a packed sequence behind its last whole tile are not written", "cf. flash-linear-attention 906"
)
class PackedTailNotWritten(Packed):
    """Sequences of up to 16 rows, one tile, or of a multiple of 16 are right."""

    def write(self, x: Pack, n: int, output: Array, lse: Array, found: Array, of_rows: Array) -> None:
        super().write(x, n, output, lse, found, of_rows)
        rows = self.rows(x, n)
        if len(rows) > TILE:
            output[rows[len(rows) // TILE * TILE :]] = 0


@fault("VARLEN-10", "lse of packs is (Tq, Hq)", "vllm-xpu-kernels PR 479")
class PackedLseTransposed(Packed):
    """Rows come before heads; with as many heads as rows the shape fits."""

    def stored_lse(self, x: Pack, lse: Array) -> Array:
        return np.ascontiguousarray(lse.T)


@fault(
    "VARLEN-10", "lse of packs is padded to the longest sequence", "flash-attention 876, cf. TransformerEngine PR 194"
)
class PackedLsePadded(Packed):
    """The shape is (N, Hq, max_seqlen_q), as in flash-attention before 2.6."""

    def stored_lse(self, x: Pack, lse: Array) -> Array:
        padded = np.full((x.sequences, len(lse), x.max_seqlen_q), -np.inf, lse.dtype)
        for n in range(x.sequences):
            rows = self.rows(x, n)
            padded[n, :, : len(rows)] = lse[:, rows]
        return padded


@fault("VARLEN-10", "lse of packs is in base 2", "cf. flashinfer 4484")
class PackedLseBase2(Packed):
    """The kernel works with exp2 and returns log2 of the sum."""

    def stored_lse(self, x: Pack, lse: Array) -> Array:
        return (lse / np.log(2)).astype(lse.dtype)
