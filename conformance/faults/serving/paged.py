"""(PAGED-1 to 15, 19) Caches read at the wrong row, page or slot, and unused slots or entries that are read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.conformance.faults.models.paged import Paged
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


class OtherPlaces(Paged):
    """Reads other places than those of the sequence's keys, but keeps the diagonal where its length puts it."""

    def default_offset(self, x: Any, n: int, queries: int, keys: int) -> int:
        return self.length(x, n) - queries


@fault("PAGED-2", "pages of a cache are read in order, without the table", "flashinfer PR 1976")
class PagedTableIgnored(Paged):
    """Pages are read one after the other from the sequence's first; caches with pages in order are right."""

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return x.table[n, 0] + j // x.page


@fault("PAGED-2", "the table is used for keys, values are read in order", "cf. flash-attention 772")
class PagedTableIgnoredForValues(Paged):
    """Only keys look up their pages; caches with pages in order are right."""

    def taken(self, x: Any, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        q, k, v = super().taken(x, n, rows, keys)
        j = self.places(x, n)
        page = (n * x.table.shape[1] + j // x.page) % max(len(x.v) // x.page, 1)
        v[:] = x.v[page * x.page + j % x.page]
        if x.v_new is not None and len(rows):
            v[self.new_places(x, n, rows, keys)] = x.v_new[rows]
        return q, k, v


@fault("PAGED-2", "every sequence reads the pages of the first", "cf. yalis PR 53")
class PagedFirstTable(Paged):
    """The pointer to the row of the table is not advanced."""

    def row(self, x: Any, n: int) -> Array:
        return x.table[0]


@fault("PAGED-2", "a sequence reads the pages of the next", "cf. vllm PR 47305")
class PagedNextTable(Paged):
    """The row of the table is one too far; the last sequence is right."""

    def row(self, x: Any, n: int) -> Array:
        return x.table[min(n + 1, len(x.table) - 1)]


@fault("PAGED-1", "the page behind the right one is read", "cf. flashinfer 4347")
class PagedNextPage(Paged):
    """Block numbers are counted from 1."""

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return super().blocks(x, n, j) + 1


@fault("PAGED-1", "the table of a paged cache has a row less wide than it is", "cf. vllm-ascend PR 11659")
class PagedTableStride(Paged):
    """The row stride of the table is the number of pages of the longest sequence, without unused entries."""

    def row(self, x: Any, n: int) -> Array:
        width = -(-int(x.lengths.max(initial=0)) // x.page)
        return np.resize(x.table.ravel()[n * width :], x.table.shape[1])


@fault("PAGED-1", "slots are read from the end of a page", "cf. vllm PR 1514")
class PagedSlotsReversed(Paged):
    """Keys of a page come in reverse order, while the masks still count positions forwards."""

    def slots(self, x: Any, n: int, j: Array) -> Array:
        return x.page - 1 - j % x.page


@fault("PAGED-4", "a paged cache is read to the end of its last page", "vllm PR 47305, cf. flashinfer 941")
class PagedWholePages(OtherPlaces):
    """Unwritten slots count as keys."""

    def places(self, x: Any, n: int) -> Array:
        return np.arange(-(-self.length(x, n) // x.page) * x.page)


@fault("PAGED-4", "one slot behind the last key of a paged cache is read", "cf. zml PR 563")
class PagedOneSlotTooMany(OtherPlaces):
    """The loop tests ≤ instead of <; a causal mask hides it."""

    def places(self, x: Any, n: int) -> Array:
        length = self.length(x, n)
        return np.arange(min(length + 1, x.table.shape[1] * x.page)) if length else np.arange(0)


@fault("PAGED-3", "the newest key of a paged cache is not seen", "cf. TransformerEngine 3331")
class PagedNewestKeyMissing(Paged):
    """The length is that from before the new token was written."""

    def places(self, x: Any, n: int) -> Array:
        length = self.length(x, n)
        return np.arange(length - 1 if length > 1 else length)


@fault("PAGED-1", "a last page that is not full is not read", "cf. flash-linear-attention 906")
class PagedPartialPageDropped(OtherPlaces):
    """The number of pages is rounded down."""

    def places(self, x: Any, n: int) -> Array:
        length = self.length(x, n)
        return np.arange(length // x.page * x.page if length > x.page else length)


@fault("PAGED-4", "entries of the table behind the last page are read", "cf. vllm PR 47305, cf. flashinfer 5262")
class PagedPaddingRead(OtherPlaces):
    """The loop over pages runs to the width of the table without a mask; −1 is read as the first page."""

    def places(self, x: Any, n: int) -> Array:
        length = self.length(x, n)
        return np.concatenate([np.arange(length), np.arange(-(-length // x.page), x.table.shape[1]) * x.page])

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return np.clip(super().blocks(x, n, j), 0, len(x.k) // x.page - 1)


@fault("PAGED-8", "the longest context is taken for every sequence's own", "vllm-flash-attention PR 18")
class PagedLongestContext(Paged):
    """max_seqlen_k replaces kv_lengths[n], up to the width of the table."""

    def places(self, x: Any, n: int) -> Array:
        return np.arange(min(x.max_seqlen_k, x.table.shape[1] * x.page))

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return np.clip(super().blocks(x, n, j), 0, len(x.k) // x.page - 1)


@fault("PAGED-6", "block numbers are cut to 16 bits", "aiter 3062")
class PagedBlocksIn16Bits(Paged):
    """Caches of at most 65,536 pages are still right."""

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return super().blocks(x, n, j) % 2**16


@fault("PAGED-6", "pages larger than 128 are read as pages of 128", "flashinfer 4347")
class PagedPagesUpTo128(Paged):
    """Slots from 128 on are read from the start of the page."""

    def slots(self, x: Any, n: int, j: Array) -> Array:
        return super().slots(x, n, j) % 128


@fault("PAGED-6", "the slot in a page is masked as if pages were powers of two", "cf. vllm PR 24486")
class PagedPowersOfTwo(Paged):
    """The slot is j & (P − 1); pages of 1, 16 or 64 are right, pages of 17 are not."""

    def slots(self, x: Any, n: int, j: Array) -> Array:
        return j & (x.page - 1)

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        shift = max(x.page - 1, 0).bit_length()
        return self.row(x, n)[np.minimum(j >> shift, x.table.shape[1] - 1)].astype(np.int64)


@fault("PAGED-6", "pages of one key are read as pages of two", "cf. flashinfer 885")
class PagedSizeOne(Paged):
    """The kernel has no form for P = 1, and reads every other entry of the table twice."""

    def blocks(self, x: Any, n: int, j: Array) -> Array:
        return super().blocks(x, n, j // 2 * 2 if x.page == 1 else j)


@fault("PAGED-3", "causal masks over pages are aligned at the top left", "SageAttention PR 372")
class PagedTopLeft(Paged):
    """A later chunk of a prompt is masked as if it were the first."""

    def default_offset(self, x: Any, n: int, queries: int, keys: int) -> int:
        return 0


@fault("PAGED-3", "new tokens are counted behind the length", "cf. onnx PR 8068")
class PagedLengthWithoutNew(Paged):
    """kv_lengths is taken as the context only, so each query also sees later ones."""

    def default_offset(self, x: Any, n: int, queries: int, keys: int) -> int:
        return keys


@fault("PAGED-3", "a given offset is ignored over pages", "cf. flash-attention 1778")
class PagedOffsetIgnored(Paged):
    """The queries always stand at the last positions."""

    def offset(self, x: Any, n: int, queries: int, keys: int) -> int:
        return self.default_offset(x, n, queries, keys)


@fault("PAGED-8", "a window over pages ends at whole pages", "executorch PR 21857")
class PagedWindowByPages(Paged):
    """The first page inside the window is read from its start."""

    def options(self, x: Any, n: int) -> dict[str, Any]:
        window = x.options.get("window")
        if window is None or window[0] is None:
            return x.options
        return {**x.options, "window": (window[0] + x.page - 1, window[1])}


@fault("PAGED-8", "windows are ignored over pages", "vllm-ascend 2729, vllm 4057")
class PagedWindowIgnored(Paged):
    """The path for chunked prefill has no window."""

    def options(self, x: Any, n: int) -> dict[str, Any]:
        return {**x.options, "window": None}


@fault("PAGED-8", "softcap is ignored over pages", "cf. vllm-metal 665")
class PagedSoftcapIgnored(Paged):
    """The kernel for paged caches has no softcap."""

    def options(self, x: Any, n: int) -> dict[str, Any]:
        return {**x.options, "softcap": None}


@fault("PAGED-8", "sinks are ignored over pages", "vllm-metal 212")
class PagedSinksIgnored(Paged):
    """The kernel for paged caches has no sinks."""

    def options(self, x: Any, n: int) -> dict[str, Any]:
        return {**x.options, "sinks": None}


@fault("PAGED-7", "a sequence without keys in a paged cache gives NaN", "FlashMLA 11, cf. flashinfer 5262")
class PagedEmptyNan(Paged):
    """The softmax over no keys is 0 / 0."""

    def sequence(self, x: Any, n: int) -> tuple[Array, Array]:
        output, lse = super().sequence(x, n)
        return (output, lse) if self.length(x, n) else (output * np.nan, lse * np.nan)


@fault("PAGED-7", "a sequence without keys reads the page of its first entry", "cf. flash-attention PR 2568")
class PagedEmptyReadsPage(Paged):
    """The loop over pages runs at least once."""

    def places(self, x: Any, n: int) -> Array:
        return np.arange(self.length(x, n) or x.page)


@fault("PAGED-7", "in a mixed batch all sequences have as many queries as the first", "cf. vllm-omni PR 3525")
class PagedQueriesOfFirst(Paged):
    """Positions are those of a decoding batch; batches with equal numbers of queries are right."""

    def default_offset(self, x: Any, n: int, queries: int, keys: int) -> int:
        return keys - len(self.rows(x, 0))


@fault("PAGED-10", "lse over pages is of the last page alone", "cf. flash-attention PR 2573")
class PagedLseOfLastPage(Paged):
    """Each page overwrites the lse instead of merging with it."""

    def sequence(self, x: Any, n: int) -> tuple[Array, Array]:
        output, lse = super().sequence(x, n)
        j, rows = self.places(x, n), self.rows(x, n)
        if not len(j) or not len(rows):
            return output, lse
        start = j[-1] // x.page * x.page
        q, k, v = (a.swapaxes(0, 1)[None] for a in self.taken(x, n, rows, self.keys(x, n)))
        offset = self.offset(x, n, len(rows), len(j)) - start
        _, last = self.inner(q, k[:, :, start:], v[:, :, start:], causal_offset=offset, return_lse=True, **x.options)
        return output, last[0]


@fault("PAGED-11", "new keys are not seen in the step that brings them", "cf. llmman PR 118")
class PagedNewNotSeen(Paged):
    """Attention reads what the cache held before the call."""

    def taken(self, x: Any, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        return x.q[rows], x.k[keys], x.v[keys]


@fault("PAGED-11", "new keys are written one slot too far", "cf. llmman PR 118")
class PagedNewOneSlotFar(Paged):
    """The newest key is clamped to the last slot, so calls with one new key per sequence are right."""

    def new_places(self, x: Any, n: int, rows: Array, keys: Array) -> Array:
        return np.minimum(super().new_places(x, n, rows, keys) + 1, len(keys) - 1)


@fault("PAGED-11", "new keys are added to what their slots held", "llmman PR 118")
class PagedNewAdded(Paged):
    """``index_add`` is used instead of ``index_copy``; slots that were cleared before are right."""

    def taken(self, x: Any, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        q, k, v = super().taken(x, n, rows, keys)
        if x.k_new is not None and len(rows):
            at = self.new_places(x, n, rows, keys)
            k[at] += x.k[keys[at]]
            v[at] += x.v[keys[at]]
        return q, k, v


class _InPlace(Paged):
    """Writes new keys of all sequences to the cache first, then reads there; right where no slots are shared."""

    def taken(self, x: Any, n: int, rows: Array, keys: Array) -> tuple[Array, Array, Array]:
        if x.k_new is None:
            return super().taken(x, n, rows, keys)
        k, v = x.k.copy(), x.v.copy()
        for m in range(x.sequences):
            new = self.rows(x, m)
            for slots in self.targets(x, m, len(new)):
                k[slots], v[slots] = x.k_new[new[: len(slots)]], x.v_new[new[: len(slots)]]
        return x.q[rows], k[keys], v[keys]

    def targets(self, x: Any, n: int, count: int) -> list[Array]:
        """PAGED-11: the slots that a sequence's new keys are written to, one array for each write."""
        own = self.keys(x, n)
        return [own[len(own) - count :]]


@fault("PAGED-19", "new keys are appended to the first page of a sequence, which others share", "cf. xllm PR 1984")
class PagedNewInSharedPage(_InPlace):
    """The page of a new key is not looked up; the first page is written to, for all sequences that share it."""

    def targets(self, x: Any, n: int, count: int) -> list[Array]:
        (own,) = super().targets(x, n, count)
        return [int(self.row(x, n)[0]) * x.page + own % x.page if len(own) else own]


@fault("PAGED-19", "shared pages are written twice: each sequence writes its prefix again", "cf. amd-shark-ai PR 2276")
class PagedPrefixWrittenAgain(_InPlace):
    """New keys are also written to the first slots of the sequence, as if nothing were cached."""

    def targets(self, x: Any, n: int, count: int) -> list[Array]:
        return [self.keys(x, n)[: min(count, x.page)], *super().targets(x, n, count)]


@fault("PAGED-12", "tables and lengths of fewer sequences are accepted", "cf. transformers PR 39653")
class PagedNotChecked(Paged):
    """The call computes as many sequences as all arrays have."""

    def check_pages(self, *arrays: Array) -> None:
        pass

    def count(self, x: Any) -> int:
        return min(x.sequences, len(x.table), len(x.lengths))


@fault("PAGED-14", "the scales of a quantised cache are ignored", "flashinfer 4979, flashinfer 1023, vllm PR 42580")
class QuantisedScalesIgnored(Paged):
    """Stored numbers are used as keys and values; calls with scales of 1 are right."""

    def key_scale(self, scale: Array, table: Array) -> Array:
        return np.ones_like(scale)

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return np.ones_like(scale)


@fault("PAGED-14", "the scale of quantised values is ignored", "sglang PR 34765")
class QuantisedValueScaleIgnored(Paged):
    """The scores are right, but the output is 1/scale times too large."""

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return np.ones_like(scale)


@fault("PAGED-14", "the scale of quantised keys is ignored", "cf. sglang PR 34765")
class QuantisedKeyScaleIgnored(Paged):
    """Scores are too large, so weights are far too peaked."""

    def key_scale(self, scale: Array, table: Array) -> Array:
        return np.ones_like(scale)


@fault("PAGED-14", "quantised keys and values share the scale of the keys", "cf. AutoFP8 PR 25")
class QuantisedOneScale(Paged):
    """One kv_scale serves both, as in older checkpoints."""

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return np.broadcast_to(of_keys.mean(axis=3, keepdims=True), (*of_keys.shape[:3], 1))


@fault("PAGED-14", "quantised values are multiplied by their scale twice", "cf. vllm PR 42580")
class QuantisedValuesScaledTwice(Paged):
    """The scale is applied where values are read, and again to the output."""

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return scale * scale


@fault("PAGED-14", "pages that sequences share are scaled once for each of them", "cf. vllm PR 42580")
class QuantisedSharedPagesScaledTwice(Paged):
    """Pages are dequantised in place, sequence by sequence; calls whose sequences share a page show it."""

    def check_pages(self, *arrays: Array) -> None:
        super().check_pages(*arrays)
        _, k_cache, _, _, table, lengths = arrays[:6]
        self.times = np.zeros((len(k_cache), 1, 1, 1), np.int64)
        for row, length in zip(table, lengths.tolist(), strict=True):
            self.times[row[: -(-length // k_cache.shape[1])]] += 1

    def key_scale(self, scale: Array, table: Array) -> Array:
        return scale**self.times

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return scale**self.times


@fault("PAGED-14", "quantised keys are divided by their scale", "cf. InfiniLM PR 553")
class QuantisedKeysDivided(Paged):
    """The descale is taken for a quantisation multiplier."""

    def key_scale(self, scale: Array, table: Array) -> Array:
        return 1 / scale


@fault("PAGED-14", "the first scale of a quantised cache is taken for all", "sgl-kernel-xpu PR 252")
class QuantisedFirstScale(Paged):
    """One scalar is read where there is a scale for each head, token, channel or page."""

    def key_scale(self, scale: Array, table: Array) -> Array:
        return np.full_like(scale, scale.flat[0])

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return np.full_like(scale, scale.flat[0])


@fault(
    "PAGED-14", "scales of a quantised cache are read with the strides of another layout", "vllm 49716, vllm PR 38874"
)
class QuantisedScaleStrides(Paged):
    """Slots and heads of the scales are exchanged, as between the layouts HND and NHD."""

    def key_scale(self, scale: Array, table: Array) -> Array:
        return np.ascontiguousarray(scale.swapaxes(1, 2)).reshape(scale.shape)

    def value_scale(self, scale: Array, of_keys: Array) -> Array:
        return np.ascontiguousarray(scale.swapaxes(1, 2)).reshape(scale.shape)


@fault("PAGED-14", "scales of pages are taken in the order of the sequence", "cf. kvcached 424")
class QuantisedScaleByPlace(Paged):
    """Keys and values use the scale at a page's place in the table row, not at its page number."""

    def dequantised(
        self, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array, table: Array, dtype: np.dtype
    ) -> tuple[Array, Array]:
        of_keys, of_values = (self.by_place(scale, table) for scale in (k_scale, v_scale))
        return super().dequantised(k_cache, v_cache, of_keys, of_values, table, dtype)

    def by_place(self, scale: Array, table: Array) -> Array:
        """Scales in which each page number has the scale of the page's place in its row."""
        moved = scale.copy()
        for row in table if len(scale) > 1 else ():
            pages = row[row >= 0]
            moved[pages] = scale[: len(pages)]
        return moved


@fault("PAGED-14", "8-bit numbers of a cache are read as e4m3fnuz", "vllm 45562, ROCm-vllm PR 242")
class QuantisedFnuz(Paged):
    """The same bits are read with another exponent bias, which gives half of each number."""

    def numbers(self, cache: Array) -> Array:
        return cache.view(ml_dtypes.float8_e4m3fnuz) if cache.dtype == ml_dtypes.float8_e4m3fn else cache


@fault("PAGED-14", "all 8-bit floating-point caches are read as e4m3fn", "cf. vllm PR 45720")
class QuantisedE5m2AsE4m3(Paged):
    """The bits of e5m2 are read with another split of exponent and mantissa."""

    def numbers(self, cache: Array) -> Array:
        return cache.view(ml_dtypes.float8_e4m3fn) if cache.dtype == ml_dtypes.float8_e5m2 else cache


@fault("PAGED-14", "int8 caches are read as unsigned", "cf. vllm PR 38378")
class QuantisedUnsigned(Paged):
    """Signed bytes are read as unsigned, so negative numbers are 256 too large."""

    def numbers(self, cache: Array) -> Array:
        return cache.view(np.uint8) if cache.dtype == np.int8 else cache


@fault("PAGED-15", "dequantised keys and values are rounded to eight bits again", "cf. vllm PR 42916")
class QuantisedRoundedAgain(Paged):
    """Scaled keys and values are rounded to float8_e4m3fn before the product."""

    def dequantised(
        self, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array, table: Array, dtype: np.dtype
    ) -> tuple[Array, Array]:
        k, v = super().dequantised(k_cache, v_cache, k_scale, v_scale, table, dtype)
        return k.astype(ml_dtypes.float8_e4m3fn).astype(dtype), v.astype(ml_dtypes.float8_e4m3fn).astype(dtype)


@fault("PAGED-14", "scales that do not fit a cache are accepted", "cf. sgl-kernel-xpu PR 252")
class QuantisedNotChecked(Paged):
    """Only the first scales are used, however many there are."""

    def check_pages(self, *arrays: Array) -> None:
        if len(arrays) == 6:
            super().check_pages(*arrays)

    def dequantised(
        self, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array, table: Array, dtype: np.dtype
    ) -> tuple[Array, Array]:
        first = tuple(slice(0, n) for n in k_cache.shape[:3])
        return super().dequantised(k_cache, v_cache, k_scale[first], v_scale[first], table, dtype)
