"""(SDPA-31 to SDPA-36, DEC-7, BLOCK-5, TREE-4) Inputs that every written-out implementation refuses, of any framework.

Only ``.ndim``, ``.shape`` and ``.dtype`` are read, so NumPy arrays, torch tensors, JAX arrays and their
tracers all work.  No value is read, so the checks cost nothing when a call is compiled or exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Axes of q, k and v: batch, heads, sequence, width.
RANK = 4

#: Projection weights are y = x @ w + b, so the rows of a weight are its inputs.
_AXES: dict[str, tuple[str, ...]] = {
    "w_q": ("E", "H·D"),
    "w_k": ("Ekv", "H·D"),
    "w_v": ("Ekv", "H·Dv"),
    "w_o": ("H·Dv", "Eo"),
    "b_q": ("H·D",),
    "b_k": ("H·D",),
    "b_v": ("H·Dv",),
    "b_o": ("Eo",),
    "gamma": ("E",),
    "beta": ("E",),
}

#: Ranks of x_q and x_kv: unbatched and batched.
_RANKS = (2, 3)


def check_inputs(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, sinks: Any = None) -> None:
    """Refuse what does not fit together; q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv).

    Parameters
    ----------
    q, k, v
        Arrays of any framework.
    mask, bias
        Must broadcast to (B, Hq, Sq, Sk); None for none.
    sinks
        (Hq,), or None.

    Raises
    ------
    TypeError
        For a dtype, in a sentence that names the dtypes concerned.
    ValueError
        For a rank or a shape, in a sentence that gives the sizes concerned.
    """
    if not q.ndim == k.ndim == v.ndim == RANK:
        raise ValueError(f"q, k and v must have rank {RANK} (B, H, S, D), got ranks {q.ndim}, {k.ndim} and {v.ndim}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k and v must have one length, got {k.shape[2]} and {v.shape[2]} keys")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError(f"q, k and v must have one batch size, got {q.shape[0]}, {k.shape[0]} and {v.shape[0]}")
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must have one head width, got {q.shape[3]} and {k.shape[3]}")
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"k and v must have one number of heads, got {k.shape[1]} and {v.shape[1]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[1]} and {k.shape[1]}")
    scores = (*q.shape[:3], k.shape[2])
    if mask is not None:
        if str(mask.dtype) not in ("bool", "torch.bool"):
            raise TypeError(f"mask must be boolean, got {mask.dtype}")
        _check_broadcast("mask", tuple(mask.shape), scores)
    if bias is not None:
        if bias.dtype != q.dtype:
            raise TypeError(f"bias must have the dtype of q, {q.dtype}, got {bias.dtype}")
        _check_broadcast("bias", tuple(bias.shape), scores)
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ValueError(f"sinks must be ({q.shape[1]},), one per query head, got shape {tuple(sinks.shape)}")


def check_by_head(q: Any, **arrays: Any) -> None:
    """(SDPA-36) Refuse arrays that are not one number per query head, (Hq,).

    Parameters
    ----------
    q
        (B, Hq, Sq, D), of any framework.
    **arrays
        By the names that messages use; None for one that is not given.

    Raises
    ------
    ValueError
        For another shape than (Hq,).
    """
    for name, array in arrays.items():
        if array is not None and tuple(array.shape) != (q.shape[1],):
            raise ValueError(f"{name} must be ({q.shape[1]},), one per query head, got shape {tuple(array.shape)}")


def check_masks(q: Any, k: Any, block_mask: Any = None, block_size: Any = None, tree_parents: Any = None) -> None:
    """(BLOCK-5, TREE-4) Refuse block masks and trees that do not fit q (B, Hq, Sq, D) and k (B, Hkv, Sk, D).

    Parameters
    ----------
    q, k
        Arrays of any framework.
    block_mask, block_size
        (…, Sq / rows, Sk / columns), rounded up, and (rows, columns); both or neither.
    tree_parents
        (Sq,) or (B, Sq), or None.

    Raises
    ------
    TypeError
        For a block mask that is not boolean.
    ValueError
        For a shape, and for a block mask without its size.
    """
    if (block_mask is None) != (block_size is None):
        raise ValueError("block_mask and block_size must be given together")
    if block_mask is not None:
        if str(block_mask.dtype) not in ("bool", "torch.bool"):
            raise TypeError(f"block_mask must be boolean, got {block_mask.dtype}")
        blocks = tuple(-(-n // size) for n, size in zip((q.shape[2], k.shape[2]), block_size, strict=True))
        if tuple(block_mask.shape[-2:]) != blocks:
            raise ValueError(f"block_mask must be (..., {blocks[0]}, {blocks[1]}), got shape {tuple(block_mask.shape)}")
        _check_broadcast("block_mask", tuple(block_mask.shape), (*q.shape[:2], *blocks))
    if tree_parents is not None and tuple(tree_parents.shape) not in ((q.shape[2],), (q.shape[0], q.shape[2])):
        shape = tuple(tree_parents.shape)
        raise ValueError(f"tree_parents must be ({q.shape[2]},), one per query, or that per batch, got shape {shape}")


def check_packs(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    """Refuse packs that do not fit together; q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv), boundaries (N + 1,) each.

    Parameters
    ----------
    q, k, v
        The rows of all sequences, of any framework.
    cu_seqlens_q, cu_seqlens_k
        Offsets at which the N sequences begin and end.

    Raises
    ------
    TypeError
        For dtypes that differ.
    ValueError
        For a rank or a shape (VARLEN-11).
    """
    if not q.ndim == k.ndim == v.ndim == RANK - 1:
        raise ValueError(f"q, k and v must have rank 3 (T, H, D), got ranks {q.ndim}, {k.ndim} and {v.ndim}")
    if tuple(cu_seqlens_q.shape) != tuple(cu_seqlens_k.shape) or cu_seqlens_q.ndim != 1:
        shapes = f"{tuple(cu_seqlens_q.shape)} and {tuple(cu_seqlens_k.shape)}"
        raise ValueError(f"cu_seqlens_q and cu_seqlens_k must have one length, got {shapes}")
    check_heads(q, k, v)
    if k.shape[0] != v.shape[0]:
        raise ValueError(f"k and v must have one length, got {k.shape[0]} and {v.shape[0]} keys")


def check_pack_bias(bias: Any, q: Any, cu_seqlens_q: Any, max_seqlen_q: int | None, max_seqlen_k: int | None) -> None:
    """(VARLEN-16) Refuse a bias that is not (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k) in the dtype of q; None fits.

    Parameters
    ----------
    bias
        Bias of the scores, or None.
    q, cu_seqlens_q
        (Tq, Hq, D), and where each of N sequences begins, (N + 1,).
    max_seqlen_q, max_seqlen_k
        Lengths of the longest sequence; None or 0 is not given, and not checked.

    Raises
    ------
    TypeError, ValueError
        For another dtype, and for another shape.
    """
    if bias is None:
        return
    if bias.dtype != q.dtype:
        raise TypeError(f"bias must have the dtype of q, {q.dtype}, got {bias.dtype}")
    wanted = (cu_seqlens_q.shape[0] - 1, q.shape[1], max_seqlen_q, max_seqlen_k)
    fits = bias.ndim == RANK and all(n in (1, full) for n, full in zip(bias.shape[:2], wanted[:2], strict=True))
    if not fits or any(full and n != full for n, full in zip(bias.shape[2:], wanted[2:], strict=True)):
        raise ValueError(
            f"bias must be (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k) of {wanted}, got {tuple(bias.shape)}"
        )


#: Dtypes of a cache that is stored with scales (PAGED-14).
QUANTISED = ("int8", "float8_e4m3fn", "float8_e5m2")


def check_pages(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cu_seqlens_q: Any,
    block_table: Any,
    kv_lengths: Any,
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Refuse a paged cache that does not fit: q (Tq, Hq, D), caches (pages, page size, Hkv, width), N sequences each.

    Parameters
    ----------
    q
        The rows of all sequences, of any framework.
    k_cache, v_cache
        Pages of keys and of values; with scales in a quantised dtype.
    cu_seqlens_q
        (N + 1,): where the queries of each sequence begin and end.
    block_table, kv_lengths
        (N, pages of a sequence) and (N,).
    k_scale, v_scale
        Broadcast to the caches; both or neither.

    Raises
    ------
    TypeError
        For a dtype.
    ValueError
        For a rank or a shape, and for one scale without the other (PAGED-12, PAGED-14).
    """
    if q.ndim != RANK - 1 or not k_cache.ndim == v_cache.ndim == RANK:
        raise ValueError(f"q must have rank 3 and the caches rank 4, got {q.ndim}, {k_cache.ndim} and {v_cache.ndim}")
    if tuple(k_cache.shape[:2]) != tuple(v_cache.shape[:2]):
        shapes = f"{tuple(k_cache.shape[:2])} and {tuple(v_cache.shape[:2])}"
        raise ValueError(f"k_cache and v_cache must have the same pages, got {shapes}")
    sequences = (cu_seqlens_q.shape[0] - 1, block_table.shape[0], kv_lengths.shape[0])
    if len(set(sequences)) > 1:
        raise ValueError(f"cu_seqlens_q, block_table and kv_lengths must be of as many sequences, got {sequences}")
    if k_scale is None and v_scale is None:
        check_heads(q, k_cache, v_cache)
        return
    if k_scale is None or v_scale is None:
        raise ValueError("k_scale and v_scale must be given together")
    for name, cache, scale in (("k_scale", k_cache, k_scale), ("v_scale", v_cache, v_scale)):
        if str(cache.dtype).rpartition(".")[2] not in QUANTISED:
            raise TypeError(f"a cache with scales must be in {', '.join(QUANTISED)}, got {cache.dtype}")
        fits = scale.ndim == RANK and all(n in (1, full) for n, full in zip(scale.shape, cache.shape, strict=True))
        if not fits:
            raise ValueError(f"{name} of shape {tuple(scale.shape)} does not broadcast to {tuple(cache.shape)}")
    check_heads(q, k_cache, v_cache, one_dtype=False)


def check_heads(q: Any, k: Any, v: Any, one_dtype: bool = True) -> None:
    """Refuse arrays (…, heads, width) that do not fit in dtype, width or heads; raises as ``check_inputs`` does."""
    if one_dtype and not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have one head width, got {q.shape[-1]} and {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"k and v must have one number of heads, got {k.shape[-2]} and {v.shape[-2]}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[-2]} and {k.shape[-2]}")


def check_past(k: Any, v: Any, past_key: Any, past_value: Any) -> None:
    """Refuse a past that does not fit: past_key (B, Hkv, P, D) with k, past_value (B, Hkv, P, Dv) with v (DEC-7).

    Parameters
    ----------
    k, v
        (B, Hkv, S, D) and (B, Hkv, S, Dv): the new part.
    past_key, past_value
        Keys and values of the past.

    Raises
    ------
    TypeError
        For dtypes that differ.
    ValueError
        For a rank or a shape, and for one without the other.
    """
    if past_key is None or past_value is None:
        raise ValueError("past_key and past_value must be given together")
    for name, past, new in (("past_key", past_key, k), ("past_value", past_value, v)):
        if past.ndim != RANK or new.ndim != RANK:
            raise ValueError(f"{name} and its new part must have rank {RANK}, got {past.ndim} and {new.ndim}")
        if past.dtype != new.dtype:
            raise TypeError(f"{name} must have the dtype of its new part, {new.dtype}, got {past.dtype}")
        if (*past.shape[:2], past.shape[3]) != (*new.shape[:2], new.shape[3]):
            raise ValueError(f"{name} {tuple(past.shape)} must fit its new part {tuple(new.shape)} but for its length")
    if past_key.shape[2] != past_value.shape[2]:
        raise ValueError(f"the past must have one length, got {past_key.shape[2]} keys, {past_value.shape[2]} values")


def _check_broadcast(name: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """NumPy's rule (SDPA-8): aligned at the right, each axis missing, of length 1, or equal."""
    aligned = target[max(len(target) - len(shape), 0) :]
    fits = len(shape) <= len(target) and all(a in (1, t) for a, t in zip(shape, aligned, strict=True))
    if not fits:
        axes = "(B, Hq, blocks, blocks)" if name == "block_mask" else "(B, Hq, Sq, Sk)"
        raise ValueError(f"{name} of shape {shape} does not broadcast to {axes} = {target}")


def check_layer(heads: int, x_q: Any, x_kv: Any = None, **arrays: Any) -> None:
    """Refuse what does not fit together; ``arrays`` are weights, biases, gamma and beta by name, None for absent.

    Of other arrays, such as the bias of the scores, only the dtype is checked.

    Parameters
    ----------
    heads
        H, the number of them.
    x_q
        (B, Sq, E), (Sq, B, E) or (Sq, E).
    x_kv
        Like x_q; None is self-attention.
    **arrays
        With ``gamma`` there is a residual connection, so the output must be as wide as the input.

    Raises
    ------
    ValueError
        For a shape, and for heads that do not divide the width.
    TypeError
        For a dtype other than that of x_q.
    """
    x_kv = x_q if x_kv is None else x_kv
    if x_q.ndim not in _RANKS or x_kv.ndim != x_q.ndim:
        raise ValueError(f"x_q and x_kv must have rank 3, or both rank 2, got ranks {x_q.ndim} and {x_kv.ndim}")
    given = {name: array for name, array in arrays.items() if array is not None}
    if "b_o" in given and "w_o" not in given:
        raise ValueError("b_o is the bias of w_o, which is not given")
    widths = {"E": x_q.shape[-1], "Ekv": x_kv.shape[-1]}
    for name, array in given.items():
        if name in _AXES:
            _check_shape(name, tuple(array.shape), widths)
    for name, array in {"x_kv": x_kv, **given}.items():
        if array.dtype != x_q.dtype:
            raise TypeError(f"{name} must have the dtype of x_q, {x_q.dtype}, got {array.dtype}")
    for axis in ("H·D", "H·Dv"):
        if heads < 1 or widths[axis] % heads:
            raise ValueError(f"heads must divide the width {axis} of the projections, {widths[axis]}, got {heads}")
    width = widths.get("Eo", widths["H·Dv"])
    if "gamma" in given and width != widths["E"]:
        raise ValueError(f"the residual connection needs an output as wide as x_q, {widths['E']}, got {width}")


def _check_shape(name: str, shape: Sequence[int], widths: dict[str, int]) -> None:
    """Check that each axis is as wide as in an earlier array, or note its width for later ones."""
    axes = _AXES[name]
    if len(shape) != len(axes):
        raise ValueError(f"{name} must be ({', '.join(axes)}), got shape {tuple(shape)}")
    for axis, width in zip(axes, shape, strict=True):
        if widths.setdefault(axis, width) != width:
            raise ValueError(
                f"{name} must be ({', '.join(axes)}) with {axis} = {widths[axis]}, got shape {tuple(shape)}"
            )


def check_latent(q: Any, q_rope: Any, latents: Any, k_rope: Any, w_uk: Any, w_uv: Any) -> None:
    """(MLA-8) Refuse what does not fit together; raises as ``check_inputs`` does.

    Parameters
    ----------
    q, q_rope
        (B, H, Sq, D) and (B, H, Sq, Dr).
    latents, k_rope
        (B, Sk, R) and (B, Sk, Dr).
    w_uk, w_uv
        (H, R, D) and (H, R, Dv).

    Raises
    ------
    TypeError
        For a dtype other than that of q.
    ValueError
        For a rank or a shape.
    """
    arrays = {"q": q, "q_rope": q_rope, "latents": latents, "k_rope": k_rope, "w_uk": w_uk, "w_uv": w_uv}
    axes = {"B": 0, "H": 0, "Sq": 0, "D": 0, "Sk": 0, "R": 0, "Dr": 0, "Dv": 0}
    for name, array in arrays.items():
        if array.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, {q.dtype}, got {array.dtype}")
        names = LATENT_AXES[name]
        fits = array.ndim == len(names)
        for axis, length in zip(names, array.shape, strict=False):
            fits = fits and axes[axis] in (0, length)
            axes[axis] = length
        if not fits:
            raise ValueError(f"{name} must be ({', '.join(names)}), got shape {tuple(array.shape)}")


#: Axes of the arguments of latent (MLA-1).
LATENT_AXES = {
    "q": ("B", "H", "Sq", "D"),
    "q_rope": ("B", "H", "Sq", "Dr"),
    "latents": ("B", "Sk", "R"),
    "k_rope": ("B", "Sk", "Dr"),
    "w_uk": ("H", "R", "D"),
    "w_uv": ("H", "R", "Dv"),
}


def check_merge_gradients(outputs: Any, lses: Any, grad_output: Any, grad_lse: Any = None) -> None:
    """(GRAD-42) Refuse gradients that are not (B, H, S, Dv) and (B, H, S).

    Parameters
    ----------
    outputs, lses
        (P, B, H, S, Dv) and (P, B, H, S), of P parts.
    grad_output, grad_lse
        The gradients of the merged output and lse; grad_lse is None where no loss depends on the lse.

    Raises
    ------
    ValueError, TypeError
        For another shape, and for a dtype of grad_output that is not that of outputs.
    """
    check_merge(outputs, lses)
    if tuple(grad_output.shape) != tuple(outputs.shape[1:]):
        raise ValueError(f"grad_output must be {tuple(outputs.shape[1:])}, got {tuple(grad_output.shape)}")
    if grad_output.dtype != outputs.dtype:
        raise TypeError(f"grad_output must have the dtype of outputs, {outputs.dtype}, got {grad_output.dtype}")
    if grad_lse is not None and tuple(grad_lse.shape) != tuple(lses.shape[1:]):
        raise ValueError(f"grad_lse must be {tuple(lses.shape[1:])}, got {tuple(grad_lse.shape)}")


def check_merge(outputs: Any, lses: Any) -> None:
    """(MERGE-15) Refuse lses that are not (P, B, H, S) for outputs (P, B, H, S, Dv).  Raises ValueError."""
    if outputs.ndim != RANK + 1 or tuple(lses.shape) != tuple(outputs.shape[:-1]):
        raise ValueError(
            f"lses must be (P, B, H, S) of outputs (P, B, H, S, Dv), got {tuple(lses.shape)} and {tuple(outputs.shape)}"
        )
