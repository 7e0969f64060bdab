"""Call of varlen or paged as a question: rows of the pack, each as a row of sdpa over its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.calls.arrays import (
    WHOLE_NUMBERS,
    array_of,
    check_fit,
    check_options,
    dtype_of,
    pair_of,
    profile_of,
)
from attention_conformance.conformance.calls.question import Part, Question, rows_of, sample_rows, shapes_of
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.given import GivenPaged, GivenRows, GivenVarlen, given
from attention_conformance.conformance.cases.packed import PackedShape, PagedShape
from attention_conformance.conformance.judging.message import runs
from attention_conformance.conformance.spec.inputs import Inputs, PackedInputs, PagedInputs
from attention_conformance.conformance.spec.paged import check_pages, check_scale, in_order
from attention_conformance.conformance.spec.varlen import check_bias, check_packs, of_sequences
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

#: The clause that a wrong output breaks with one of these options, for packed sequences and for pages.
_PACKED_CLAUSES = {
    "varlen": {"": "VARLEN-2", "is_causal": "VARLEN-3", "window": "VARLEN-3"}
    | dict.fromkeys(("scale", "softcap", "sinks"), "VARLEN-5")
    | {"bias": "VARLEN-16"},
    "paged": {"": "PAGED-2", "is_causal": "PAGED-3", "window": "PAGED-3", "k_new": "PAGED-11", "k_scale": "PAGED-14"}
    | dict.fromkeys(("scale", "softcap", "sinks"), "PAGED-8"),
}


def packed(
    given_arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    results: Mapping[str, Any],
    profile: Profile | str | None,
    wanted: int | None,
    seed: int,
) -> Question:
    """A call of varlen, or with a block table of paged: rows of the pack, each as a row of sdpa over its own keys."""
    arrays = {name: array_of(name, array) for name, array in given_arrays.items()}
    keys, values = ("k_cache", "v_cache") if "block_table" in arrays else ("k", "v")
    new = {n: array_of(n, options[n]) for n in ("k_new", "v_new") if options.get(n) is not None}
    scales = {n: array_of(n, options[n]) for n in ("k_scale", "v_scale") if options.get(n) is not None}
    stored = {} if scales else {n: arrays[n] for n in (keys, values)}
    dtype = dtype_of({"q": arrays["q"]} | stored | new)
    came = {name: array_of(name, array) for name, array in results.items() if name == "output" or array is not None}
    keywords: dict[str, Any] = {}
    arrays_of = ("causal_offset", "sinks", "bias")
    keywords |= {n: array_of(n, options[n]) for n in arrays_of if options.get(n) is not None}
    keywords |= {n: float(options[n]) for n in ("scale", "softcap") if options[n] is not None}
    keywords |= {"is_causal": options["is_causal"]} if options["is_causal"] is not None else {}
    keywords |= {"window": pair_of("window", options["window"])} if options["window"] is not None else {}
    check_options(keywords, {})
    for name in arrays.keys() & set(WHOLE_NUMBERS):
        if arrays[name].dtype.kind not in "iu":
            raise TypeError(f"{name} is {arrays[name].dtype}; expected integers")
    own = _Pages(arrays, new, scales) if "block_table" in arrays else _Pack(arrays)
    check_bias(keywords.get("bias"), arrays["q"], arrays["cu_seqlens_q"], None, None)
    longest = (max(own.queries, default=0), max(own.keys, default=0))
    if "bias" in keywords and any(np.less(keywords["bias"].shape[2:], longest)):
        raise ValueError(
            f"bias is {keywords['bias'].shape}; sequences have up to {longest[0]} queries and {longest[1]} keys"
        )
    offsets = keywords.get("causal_offset")
    if offsets is not None and offsets.size not in (1, own.count):
        raise ValueError(f"causal_offset has {offsets.size} entries, and there are {own.count} sequences")
    (total, hq, d), hkv, dv = arrays["q"].shape, arrays[keys].shape[-2], arrays[values].shape[-1]
    whole = {"output": (total, hq, dv), "lse": (hq, total)}
    scores = hq * int(np.dot(own.queries, own.keys))
    if wanted is None:
        wanted = rows_of(scores, total)
    looked = came["output"].swapaxes(0, 1)[None] if came["output"].ndim == 3 else came["output"]
    rows = sample_rows(total, wanted, looked, seed, own.cu_seqlens_q.tolist())
    names, clauses = tuple(came), _PACKED_CLAUSES[own.operator]
    sequences = []
    for n in range(own.count):
        start, end = (int(each) for each in own.cu_seqlens_q[n : n + 2])
        mine = rows[(rows >= start) & (rows < end)]
        if mine.size:
            q, (k, v) = arrays["q"][start:end], own.of(n)
            call = {name: each.swapaxes(0, 1)[None] for name, each in (("q", q), ("k", k), ("v", v))}
            asked = {name: value for name, value in keywords.items() if name not in ("causal_offset", "bias")}
            if "bias" in keywords:
                asked["bias"] = of_sequences(keywords["bias"], [n])[:, :, : len(q), : len(k)]
            if scales:  # then keys and values are in float64, and all have one dtype
                call["q"] = call["q"].astype(np.float64)
                asked |= {"sinks": keywords["sinks"].astype(np.float64)} if "sinks" in keywords else {}
            if asked.keys() & {"is_causal", "window"}:  # VARLEN-3
                at = len(k) - len(q) if offsets is None else int(offsets.reshape(-1)[n % offsets.size])
                asked["causal_offset"] = at
            check_fit(call, asked)
            asked |= {"return_lse": True} if "lse" in came else {}
            shape = Shape(1, hq, hkv, len(q), len(k), d, dv)
            places = tuple((mine - start).tolist())
            one = given(
                GivenRows, Inputs(**call, keywords=asked), "SDPA-16", shape, dtype,
                rows=places, whole=shapes_of(shape), names=names, quantised=bool(scales),
            )  # fmt: skip
            sequences.append((one, tuple(mine.tolist())))
    kind, held, sizes_of = own.made_of
    packed = sizes_of(tuple(own.queries.tolist()), tuple(own.keys.tolist()), hq, hkv, d, dv)
    keywords |= new | scales | ({"return_lse": True} if "lse" in came else {})
    found = {clauses[name] for name in keywords if name in clauses}
    clause = found.pop() if len(found) == 1 else clauses[""]
    case = given(
        kind, held(**arrays, keywords=keywords), clause, packed, dtype,
        names=names, sequences=tuple(sequences), whole=whole,
    )  # fmt: skip
    note = ""
    if len(rows) < total:
        note = f"{len(rows)} of {total} rows, each with every head, seed {seed}: {runs(rows.tolist())}"
    checked = case.rows if note else None
    return Question((Part(case, Reply("returned", came), note),), dtype, profile_of(profile, dtype), checked)


class _Pack:
    """The sequences of a pack: how many queries and keys each has, and its keys and values.

    Raises ValueError for arrays that do not fit together, and for boundaries that VARLEN-12 leaves open.
    """

    operator: ClassVar[str] = "varlen"
    #: Types of its case: the case itself, its inputs, and its sizes.
    made_of: ClassVar[tuple[type, Any, Any]] = (GivenVarlen, PackedInputs, PackedShape)

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays, self.cu_seqlens_q = arrays, arrays["cu_seqlens_q"]
        self._check()
        self.queries = np.diff(self.cu_seqlens_q.astype(np.int64))
        self.keys = self._lengths()
        self.count = len(self.queries)

    def _check(self) -> None:
        check_packs(**self.arrays)
        self._boundaries("cu_seqlens_q", len(self.arrays["q"]))
        self._boundaries("cu_seqlens_k", len(self.arrays["k"]))

    def _boundaries(self, name: str, rows: int) -> None:
        found = self.arrays[name]
        if found.ndim != 1 or not found.size or found[0] != 0 or (found[1:] < found[:-1]).any() or found[-1] > rows:
            raise ValueError(
                f"{name} is {found.tolist()}; expected to begin with 0, never fall, and end within {rows} rows"
            )

    def _lengths(self) -> np.ndarray:
        return np.diff(self.arrays["cu_seqlens_k"].astype(np.int64))

    def of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (Sk, Hkv, D) and values of a sequence."""
        rows = slice(*self.arrays["cu_seqlens_k"][n : n + 2].tolist())
        return self.arrays["k"][rows], self.arrays["v"][rows]


class _Pages(_Pack):
    """The same for pages."""

    operator = "paged"
    made_of = (GivenPaged, PagedInputs, PagedShape)

    def __init__(
        self, arrays: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray]
    ) -> None:
        self.new = new
        self.scales: dict[str, Any] = {n: scales.get(n) for n in ("k_scale", "v_scale")} if scales else {}
        super().__init__(arrays)

    def _check(self) -> None:
        check_pages(**self.arrays)
        for name, scale in self.scales.items():
            check_scale(self.arrays[f"{name[0]}_cache"], scale)
        self._boundaries("cu_seqlens_q", len(self.arrays["q"]))
        table, lengths, cache = self.arrays["block_table"], self._lengths(), self.arrays["k_cache"]
        if table.ndim != 2 or lengths.ndim != 1:
            raise ValueError(
                f"block_table has shape {table.shape}, kv_lengths {lengths.shape}; expected (N, M) and (N,)"
            )
        pages = -(-lengths // cache.shape[1])
        if (lengths < 0).any() or (pages > table.shape[1]).any():
            raise ValueError(f"kv_lengths are {lengths.tolist()}; a row of the table has {table.shape[1]} pages")
        used = table[np.arange(table.shape[1]) < pages[:, None]]
        if ((used < 0) | (used >= len(cache))).any():
            raise ValueError(f"block_table refers to pages beyond the {len(cache)} of the cache")
        if self.new:
            self._check_new(np.diff(self.arrays["cu_seqlens_q"].astype(np.int64)), lengths)

    def _check_new(self, queries: np.ndarray, lengths: np.ndarray) -> None:
        wanted = {n: (len(self.arrays["q"]), *self.arrays[f"{n[0]}_cache"].shape[2:]) for n in ("k_new", "v_new")}
        if {n: a.shape for n, a in self.new.items()} != wanted:
            raise ValueError(f"k_new and v_new must be given together, as {wanted['k_new']} and {wanted['v_new']}")
        if (queries > lengths).any():
            raise ValueError("a sequence has more new keys than keys")

    def _lengths(self) -> np.ndarray:
        return self.arrays["kv_lengths"].astype(np.int64)

    def of(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys (Sk, Hkv, D) and values of a sequence, including new ones."""
        found = []
        for name in ("k", "v"):
            cache, table, length = self.arrays[f"{name}_cache"], self.arrays["block_table"][n], int(self.keys[n])
            own = in_order(cache, table, length)
            if self.scales:
                scale = np.broadcast_to(self.scales[f"{name}_scale"], cache.shape)
                own = own.astype(np.float64) * in_order(scale, table, length).astype(np.float64)
            if self.new and self.queries[n]:
                own[-self.queries[n] :] = self.new[f"{name}_new"][slice(*self.cu_seqlens_q[n : n + 2].tolist())]
            found.append(own)
        return found[0], found[1]
