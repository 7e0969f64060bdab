"""Keys in pages: how an adapter passes dense or packed keys to a kernel that takes only a paged cache."""

from __future__ import annotations

from typing import Any

import torch

from attention_conformance.impls.kernels import fit


def dense(
    paged: Any, size: int, q: Any, k: Any, v: Any, *, kv_lengths: Any = None, causal_offset: Any = None, **options: Any
) -> Any:
    """A call of sdpa by a function of paged attention.

    Parameters
    ----------
    paged
        Function with the inputs of the operator ``paged``.
    size
        Keys per page; slots after the last key of a page are 0.
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv).
    kv_lengths, causal_offset
        As sdpa has them.
    **options
        Passed on.

    Returns
    -------
    Any
        The output, (B, Hq, Sq, Dv), and the lse, (B, Hq, Sq), where the function gives one.

    Raises
    ------
    NotImplementedError
        Where causal or a window are not aligned at the last key, as kernels over pages have them.
    TypeError, ValueError
        As ``fit`` does; and where k and v differ in heads.
    """
    fit(q, k, v)
    if k.shape[1] != v.shape[1]:
        raise ValueError("k and v differ in heads")
    batch, rows, keys = q.shape[0], q.shape[2], k.shape[2]
    lengths = torch.full((batch,), keys, device=q.device) if kv_lengths is None else kv_lengths
    if options.get("is_causal") or options.get("window") is not None:
        offsets = torch.as_tensor(0 if causal_offset is None else causal_offset, device=q.device).expand(batch)
        if not torch.equal(offsets.long(), lengths.long() - rows):
            raise NotImplementedError("causal and windows are aligned at the last key")
    k_cache, v_cache, table = pages(
        k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1), [keys] * batch, size
    )
    found = paged(
        q.transpose(1, 2).flatten(0, 1),
        k_cache,
        v_cache,
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows,
        table,
        lengths.int(),
        max_seqlen_q=rows,
        max_seqlen_k=keys,
        **options,
    )
    output, *rest = found if isinstance(found, tuple) else (found,)
    output = output.unflatten(0, (batch, rows)).transpose(1, 2)
    return (output, rest[0].unflatten(1, (batch, rows)).transpose(0, 1)) if rest else output


def pages(k: Any, v: Any, lengths: list[int], size: int) -> tuple[Any, Any, Any]:
    """Caches (pages, size, Hkv, D) and a table of pages, the last one first, for sequences one after the other.

    Parameters
    ----------
    k, v
        (Tk, Hkv, D) and (Tk, Hkv, Dv).
    lengths
        Keys of each sequence.
    size
        Keys per page.

    Returns
    -------
    tuple[Any, Any, Any]
        Keys, values, and the table, int32 (N, most pages of a sequence, at least one).
    """
    counts = [-(-length // size) for length in lengths]
    table = torch.zeros((len(lengths), max([1, *counts])), dtype=torch.int32, device=k.device)
    caches = [each.new_zeros((max(1, sum(counts)) * size, *each.shape[1:])) for each in (k, v)]
    page, start = sum(counts), 0
    for n, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        table[n, :count] = torch.arange(page - 1, page - 1 - count, -1, device=k.device)
        slots = (table[n, :count, None].long() * size + torch.arange(size, device=k.device)).flatten()[:length]
        for cache, rows in zip(caches, (k, v), strict=True):
            cache[slots] = rows[start : start + length]
        page, start = page - count, start + length
    return *(cache.unflatten(0, (-1, size)) for cache in caches), table
