"""Attention of libraries that are not built in, called as their users call them, and mechanisms written after sources.

Each function takes NumPy arrays in the shapes of the contract and only the keywords that the library has, as a user who
tries the suite on a library would write it.  Libraries are imported when their function is called.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import numpy as np

Array = np.ndarray


def _torch(*arrays: Array | None) -> list[Any]:
    import torch

    return [None if a is None else torch.from_numpy(np.array(a)) for a in arrays]


def _jax(*arrays: Array | None) -> list[Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return [None if a is None else jax.numpy.asarray(a) for a in arrays]


def _shsd(*arrays: Array) -> list[Array]:
    """(B, H, S, D) as (B, S, H, D), and back."""
    return [np.swapaxes(np.asarray(a), 1, 2) for a in arrays]


def _equal_heads(q: Array, k: Array) -> None:
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")


def _full(array: Array | None, q: Array, k: Array) -> Array | None:
    """A mask or bias in full shape."""
    return None if array is None else np.broadcast_to(array, (*q.shape[:3], k.shape[2])).copy()


def _from_torch(result: Any) -> Array:
    found: Array = result.detach().numpy()
    return found


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


# JAX libraries.


def flax_linen(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None) -> Array:
    """flax.linen.dot_product_attention."""
    _equal_heads(q, k)
    attend = _of("flax.linen", "dot_product_attention")
    arrays = _jax(*_shsd(q, k, v), _full(bias, q, k), _full(mask, q, k))
    return _shsd(attend(*arrays[:3], bias=arrays[3], mask=arrays[4]))[0]


def flax_nnx(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Array:
    """flax.nnx.dot_product_attention_weights, and the weighted sum."""
    _equal_heads(q, k)
    weights_of = _of("flax.nnx.nn.attention", "dot_product_attention_weights")
    a, b, c, bias, mask = _jax(*_shsd(q, k, v), _full(bias, q, k), _full(mask, q, k))
    weights = weights_of(a, b, bias, mask, is_causal=is_causal)
    return _shsd(_of("jax.numpy", "einsum")("...hqk,...khd->...qhd", weights, c))[0]


def equinox(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """equinox.nn._attention.dot_product_attention, for every head and batch."""
    _equal_heads(q, k)
    jax, attend = importlib.import_module("jax"), _of("equinox.nn._attention", "dot_product_attention")
    arrays = _jax(q, k, v, _full(mask, q, k))
    one = attend if mask is not None else (lambda a, b, c, _: attend(a, b, c))
    both = jax.vmap(
        jax.vmap(one, in_axes=(0, 0, 0, 0 if mask is not None else None)), (0, 0, 0, 0 if mask is not None else None)
    )
    return np.asarray(both(*arrays))


def haiku(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Array:  # fmt: skip
    """haiku.MultiHeadAttention."""
    if x_q.ndim == 2 or w_o is None or (b_q is None) != (b_o is None) or w_q.shape[1] != w_k.shape[1]:
        raise NotImplementedError("a form of its own")
    hk = importlib.import_module("haiku")
    bias = b_q is not None

    def layer(x: Any, y: Any, m: Any) -> Any:
        width = w_q.shape[1] // heads
        init = hk.initializers.Constant(0.0)
        made = hk.MultiHeadAttention(
            heads,
            width,
            value_size=w_v.shape[1] // heads,
            model_size=w_o.shape[1],
            w_init=init,
            with_bias=bias,
            name="a",
        )
        return made(x, y, y, mask=m)

    x, y = _jax(x_q, x_q if x_kv is None else x_kv)
    keys = (*x_q.shape[:1], heads, x_q.shape[1], y.shape[1])
    (m,) = _jax(None if mask is None else np.broadcast_to(mask, keys))
    names = {"query": (w_q, b_q), "key": (w_k, b_k), "value": (w_v, b_v), "linear": (w_o, b_o)}
    params = {f"a/{n}": dict(zip(("w", "b"), _jax(w, b), strict=True)) for n, (w, b) in names.items()}
    params = {n: {k: v for k, v in p.items() if v is not None} for n, p in params.items()}
    return np.asarray(hk.without_apply_rng(hk.transform(layer)).apply(params, x, y, m))


# Keras.


def keras_ops(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: Any = None
) -> Array:
    """keras.ops.dot_product_attention on torch."""
    attend = _of("keras.ops", "dot_product_attention")
    arrays = _torch(*_shsd(q, k, v), _full(bias, q, k), _full(mask, q, k))
    if bias is not None and mask is not None:
        raise NotImplementedError("mask and bias together")
    found = attend(*arrays[:3], bias=arrays[3], mask=arrays[4], scale=scale, is_causal=is_causal)
    return _shsd(_from_torch(found))[0]


def keras_attention(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """keras.layers.Attention with its defaults, a head at a time."""
    _equal_heads(q, k)
    if 0 in (*q.shape, *k.shape, *v.shape):
        raise NotImplementedError("an empty axis cannot be folded into the batch")
    layer = _of("keras.layers", "Attention")()
    flat = [a.reshape(-1, *a.shape[2:]) for a in (q, k, v)]
    a, b, c = _torch(*flat)
    keys = None
    if kv_lengths is not None:
        (keys,) = _torch(np.repeat(np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1)), q.shape[1], axis=0))
    given = {} if keys is None else {"mask": [None, keys]}
    return _from_torch(layer([a, c, b], use_causal_mask=is_causal, **given)).reshape(*q.shape[:3], v.shape[3])


# torch libraries.


def memory_efficient(
    q: Array, k: Array, v: Array, *, bias: Any = None, is_causal: bool = False, kv_lengths: Any = None
) -> Array:
    """memory_efficient_attention_pytorch's chunked attention."""
    _equal_heads(q, k)
    attend = _of("memory_efficient_attention_pytorch.memory_efficient_attention", "memory_efficient_attention")
    keys = None if kv_lengths is None else np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1))
    a, b, c, bias, keys = _torch(q, k, v, _full(bias, q, k), keys)
    return _from_torch(attend(a, b, c, mask=keys, attn_bias=bias, causal=is_causal))


def memory_efficient_plain(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False
) -> Array:
    """memory_efficient_attention_pytorch's attention in one piece."""
    _equal_heads(q, k)
    attend = _of("memory_efficient_attention_pytorch.memory_efficient_attention", "attention")
    a, b, c, bias, mask = _torch(q, k, v, _full(bias, q, k), _full(mask, q, k))
    return _from_torch(attend(a, b, c, mask=mask, attn_bias=bias, causal=is_causal))


def _x_transformers(q: Array, k: Array, v: Array, mask: Any, bias: Any, causal: bool, **options: Any) -> Array:
    attend = _of("x_transformers.attend", "Attend")(causal=causal, heads=q.shape[1], **options).eval()
    a, b, c, bias, mask = _torch(q, k, v, _full(bias, q, k), _full(mask, q, k))
    return _from_torch(attend(a, b, c, mask=mask, attn_bias=bias)[0])


def x_transformers(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False, softcap: Any = None
) -> Array:
    """x_transformers.Attend."""
    cap = {} if softcap is None else {"softclamp_logits": True, "logit_softclamp_value": softcap}
    return _x_transformers(q, k, v, mask, bias, is_causal, **cap)


def x_transformers_flash(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False
) -> Array:
    """x_transformers.Attend(flash=True)."""
    _equal_heads(q, k)
    return _x_transformers(q, k, v, mask, bias, is_causal, flash=True)


def x_transformers_zero_kv(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """x_transformers.Attend(add_zero_kv=True)."""
    _equal_heads(q, k)
    return _x_transformers(q, k, v, mask, None, False, add_zero_kv=True)


def x_transformers_clamped(q: Array, k: Array, v: Array) -> Array:
    """x_transformers.Attend(softclamp_logits=True), whose value is 50."""
    _equal_heads(q, k)
    return _x_transformers(q, k, v, None, None, False, softclamp_logits=True)


def x_transformers_scaled(q: Array, k: Array, v: Array) -> Array:
    """x_transformers.Attend(scale=10), as its layer sets it for normalised queries and keys."""
    _equal_heads(q, k)
    return _x_transformers(q, k, v, None, None, False, scale=10)


def x_transformers_l2(q: Array, k: Array, v: Array) -> Array:
    """x_transformers.Attend(l2_distance=True)."""
    _equal_heads(q, k)
    return _x_transformers(q, k, v, None, None, False, l2_distance=True)


def ring_attention(
    q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None, softcap: Any = None
) -> Array:
    """ring_attention_pytorch's default_attention."""
    attend = _of("ring_attention_pytorch.ring_attention", "default_attention")
    keys = None if kv_lengths is None else np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1))
    a, b, c, keys = _torch(*_shsd(q, k, v), keys)
    cap = {} if softcap is None else {"softclamp_qk_sim": True, "softclamp_value": softcap}
    return _shsd(_from_torch(attend(a, b, c, mask=keys, causal=is_causal, **cap)))[0]


class _Module:
    """Attributes that transformers' functions need from a layer."""

    training, is_causal = False, False

    def __init__(self, group: int) -> None:
        self.num_key_value_groups = group


def _additive(mask: Any, bias: Any, q: Array, k: Array) -> Any:
    """Mask and bias as transformers' models pass them on: the smallest number where a key is masked."""
    if mask is None and bias is None:
        return None
    added = np.zeros((*q.shape[:3], k.shape[2]), q.dtype) if bias is None else _full(bias, q, k)
    return added if mask is None else np.where(mask, added, np.finfo(q.dtype).min)


def transformers_llama(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Array:
    """Transformers' eager attention for Llama."""
    attend = _of("transformers.models.llama.modeling_llama", "eager_attention_forward")
    a, b, c, added = _torch(q, k, v, _additive(mask, bias, q, k))
    scaling = q.shape[3] ** -0.5 if scale is None else scale
    found, _ = attend(_Module(q.shape[1] // k.shape[1]), a, b, c, added, scaling=scaling)
    return _from_torch(found.transpose(1, 2))


def transformers_sdpa(q: Array, k: Array, v: Array, *, mask: Any = None, is_causal: bool = False) -> Array:
    """transformers.integrations.sdpa_attention."""
    attend = _of("transformers.integrations.sdpa_attention", "sdpa_attention_forward")
    a, b, c, mask = _torch(q, k, v, _full(mask, q, k))
    found, _ = attend(_Module(q.shape[1] // k.shape[1]), a, b, c, mask, is_causal=is_causal)
    return _from_torch(found.transpose(1, 2))


def transformers_gpt_oss(q: Array, k: Array, v: Array, *, mask: Any = None, sinks: Any = None) -> Array:
    """Transformers' eager attention for GPT-OSS."""
    if sinks is None:
        raise NotImplementedError("sinks are part of the model")
    attend = _of("transformers.models.gpt_oss.modeling_gpt_oss", "eager_attention_forward")
    module = _Module(q.shape[1] // k.shape[1])
    a, b, c, added, module.sinks = _torch(q, k, v, _additive(mask, None, q, k), sinks)  # type: ignore[attr-defined]
    found, _ = attend(module, a, b, c, added, scaling=q.shape[3] ** -0.5)
    return _from_torch(found.transpose(1, 2))


def transformers_gpt_neo(q: Array, k: Array, v: Array, *, bias: Any = None) -> Array:
    """The attention of transformers' GPT-Neo."""
    _equal_heads(q, k)
    if k.shape[2] < q.shape[2]:
        raise NotImplementedError("more queries than keys")
    config = _of("transformers", "GPTNeoConfig")(
        hidden_size=16, num_heads=2, num_layers=2, attention_types=[[["global", "local"], 1]]
    )
    layer = _of("transformers.models.gpt_neo.modeling_gpt_neo", "GPTNeoSelfAttention")(config, "global").eval()
    a, b, c, added = _torch(q, k, v, _full(bias, q, k))
    return _from_torch(layer._attn(a, b, c, added)[0])


def kornia(q: Array, k: Array, v: Array, *, kv_lengths: Any = None) -> Array:
    """Kornia's FullAttention of LoFTR."""
    _equal_heads(q, k)
    layer = _of("kornia.feature.loftr.loftr_module.linear_attention", "FullAttention")()
    keys = None if kv_lengths is None else np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1))
    rows = None if kv_lengths is None else np.ones((q.shape[0], q.shape[2]), bool)
    a, b, c, rows, keys = _torch(*_shsd(q, k, v), rows, keys)
    return _shsd(_from_torch(layer(a, b, c, rows, keys)))[0]


# Others.


def mlx(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: Any = None,
    sinks: Any = None,
) -> Array:  # fmt: skip
    """mlx.core.fast.scaled_dot_product_attention."""
    mx = importlib.import_module("mlx.core")
    if sum((mask is not None, bias is not None, is_causal)) > 1 or q.dtype == np.float64:
        raise NotImplementedError("two masks at once, or float64")
    added = "causal" if is_causal else _full(mask if mask is not None else bias, q, k)
    a, b, c = (mx.array(np.ascontiguousarray(x)) for x in (q, k, v))
    given = mx.array(added) if isinstance(added, np.ndarray) else added
    scale = q.shape[3] ** -0.5 if scale is None else scale
    found = mx.fast.scaled_dot_product_attention(
        a, b, c, scale=scale, mask=given, sinks=None if sinks is None else mx.array(sinks)
    )
    return np.array(found)


@functools.lru_cache(maxsize=4096)
def _openvino(shapes: tuple[Any, ...], dtype: str, masked: str, causal: bool) -> Any:
    ov, ops = importlib.import_module("openvino"), importlib.import_module("openvino.opset13")
    inputs = [ops.parameter(list(shape), getattr(np, dtype)) for shape in shapes[:3]]
    if masked:
        inputs.append(ops.parameter(list(shapes[3]), np.bool_ if masked == "mask" else getattr(np, dtype)))
    node = ops.scaled_dot_product_attention(*inputs[:3], *([inputs[3]] if masked else []), causal=causal)
    return ov.Core().compile_model(ov.Model([node], inputs), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def openvino(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Array:
    """OpenVINO's ScaledDotProductAttention-13 on the CPU, at its float32 precision."""
    _equal_heads(q, k)
    if q.dtype != np.float32 or 0 in (*q.shape, *k.shape) or (mask is not None and bias is not None):
        raise NotImplementedError("another dtype, an empty axis, or mask and bias together")
    added = _full(mask if mask is not None else bias, q, k)
    arrays = [np.ascontiguousarray(a) for a in (q, k, v, added) if a is not None]
    masked = "" if added is None else "mask" if mask is not None else "bias"
    model = _openvino(tuple(a.shape for a in arrays), q.dtype.name, masked, is_causal)
    return np.array(model(arrays)[0])


# Mechanisms after the source of libraries, in NumPy.


def _softmax(s: Array) -> Array:
    powers = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.finfo(s.dtype).max))
    return powers / powers.sum(axis=-1, keepdims=True)


def _scores(q: Array, k: Array, scale: float | None = None) -> Array:
    _equal_heads(q, k)
    if q.dtype.itemsize < 4:
        raise NotImplementedError("half precision")
    scale = q.shape[3] ** -0.5 if scale is None else scale
    found: Array = (q @ k.swapaxes(2, 3)) * q.dtype.type(scale)
    return found


def deberta_scale(q: Array, k: Array, v: Array) -> Array:
    """DeBERTa: scores divided by √(D · 3), for its three kinds of attention."""
    return _softmax(_scores(q, k, 1 / math.sqrt(3 * q.shape[3]))) @ v


def gemma_scale(q: Array, k: Array, v: Array) -> Array:
    """Gemma 2: query_pre_attn_scalar = 256 for any head width."""
    return _softmax(_scores(q, k, 256**-0.5)) @ v


def t5_scale(q: Array, k: Array, v: Array) -> Array:
    """T5: no scale."""
    return _softmax(_scores(q, k, 1.0)) @ v


def alibi(q: Array, k: Array, v: Array) -> Array:
    """MPT, BLOOM: a slope per head times the distance."""
    heads, rows, keys = q.shape[1], q.shape[2], k.shape[2]
    slopes = 2.0 ** (-8 * (np.arange(heads) + 1) / heads)
    bias = slopes[:, None, None] * (np.arange(keys) - np.arange(rows)[:, None])
    return _softmax(_scores(q, k) + bias.astype(q.dtype)) @ v


def log_rows(q: Array, k: Array, v: Array) -> Array:
    """Llama 4: attention temperature tuned by the logarithm of the position."""
    rows = 1 + np.log(np.arange(q.shape[2]) + 1.0)
    return _softmax(_scores(q, k) * rows[:, None].astype(q.dtype)) @ v


def inverse_layer(q: Array, k: Array, v: Array) -> Array:
    """GPT-2 with scale_attn_by_inverse_layer_idx, in its third layer."""
    return _softmax(_scores(q, k) / q.dtype.type(3)) @ v


def base_two(q: Array, k: Array, v: Array) -> Array:
    """A kernel that calls exp2 without log2(e) in its scale."""
    s = _scores(q, k)
    powers = np.exp2(s - s.max(axis=3, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=3, keepdims=True) @ v


def quiet(q: Array, k: Array, v: Array) -> Array:
    """Softmax with 1 more in the denominator, without the maximum in it."""
    s = _scores(q, k)
    top = np.maximum(s.max(axis=3, keepdims=True, initial=0), 0)
    powers = np.exp(s - top)
    return powers / (powers.sum(axis=3, keepdims=True) + np.exp(-top)) @ v


def grok_cap(q: Array, k: Array, v: Array) -> Array:
    """Grok-1: 30 · tanh(s / 30), in every call."""
    s = _scores(q, k)
    return _softmax(30 * np.tanh(s / 30)) @ v


def window_one_more(q: Array, k: Array, v: Array, *, window: Any = None) -> Array:
    """Transformers' flash attention: sliding_window = W passed as (W, W)."""
    left, right = window or (None, None)
    at = np.arange(k.shape[2]) - np.arange(q.shape[2])[:, None]
    allowed = np.ones(at.shape, bool)
    if left is not None:
        allowed &= at >= -left - 1
    if right is not None:
        allowed &= at <= right + 1
    return _softmax(np.where(allowed, _scores(q, k), q.dtype.type(-1e30))) @ v


def chunked(q: Array, k: Array, v: Array) -> Array:
    """Llama 4: rows attend within their own chunk, here of 4."""
    own = np.arange(k.shape[2]) // 4 == np.arange(q.shape[2])[:, None] // 4
    return _softmax(np.where(own, _scores(q, k), np.finfo(q.dtype).min)) @ v


def modulo_heads(q: Array, k: Array, v: Array) -> Array:
    """Grouped heads by tiling."""
    group = q.shape[1] // k.shape[1]
    return _softmax(_scores(q, np.tile(k, (1, group, 1, 1)))) @ np.tile(v, (1, group, 1, 1))


def clamped_head(q: Array, k: Array, v: Array) -> Array:
    """A head index past the last key head is clamped to it."""
    heads = np.minimum(np.arange(q.shape[1]), k.shape[1] - 1)
    return _softmax(_scores(q, k[:, heads])) @ v[:, heads]


def no_self(q: Array, k: Array, v: Array) -> Array:
    """Reformer's shared queries and keys: a token attends to itself only where nothing else is left."""
    s = _scores(q, k)
    own = np.arange(k.shape[2]) == np.arange(q.shape[2])[:, None]
    return _softmax(np.where(own, q.dtype.type(-5e4), s)) @ v


def bias_lost_with_causal(q: Array, k: Array, v: Array, *, bias: Any = None, is_causal: bool = False) -> Array:
    """A fused causal path without a bias."""
    s = _scores(q, k)
    if is_causal:
        below = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None]
        s = np.where(below, s, -np.inf)
    elif bias is not None:
        s = s + bias
    top = s.max(axis=3, keepdims=True, initial=-np.inf)
    powers = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=3, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


def last_row_open(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Array:
    """The last row of a prompt takes the decoding path, without causal."""
    s = _scores(q, k)
    if is_causal:
        rows = np.arange(q.shape[2])[:, None]
        s = np.where((np.arange(k.shape[2]) <= rows) | (rows == q.shape[2] - 1), s, q.dtype.type(-1e30))
    return _softmax(s) @ v


def causal_and_scale(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Array:
    """Two mistakes: the scale of the model width, and causal at the bottom right."""
    s = _scores(q, k, (q.shape[1] * q.shape[3]) ** -0.5)
    if is_causal:
        shift = k.shape[2] - q.shape[2]
        s = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + shift, s, q.dtype.type(-1e30))
    return _softmax(s) @ v


def rounded_lengths(q: Array, k: Array, v: Array, *, kv_lengths: Any = None) -> Array:
    """Lengths rounded up to whole pages of 4 keys."""
    s = _scores(q, k)
    if kv_lengths is not None:
        upto = -(-np.asarray(kv_lengths) // 4) * 4
        s = np.where(np.arange(k.shape[2]) < upto.reshape(-1, 1, 1, 1), s, q.dtype.type(-1e30))
    return _softmax(s) @ v


def dropout_scaled(q: Array, k: Array, v: Array) -> Array:
    """Weights divided by the keep probability of 0.9, although nothing is dropped."""
    return _softmax(_scores(q, k)) / q.dtype.type(0.9) @ v


def wrong_half(q: Array, k: Array, v: Array) -> Array:
    """Rotary code left in: the scale of the half width."""
    return _softmax(_scores(q, k, (q.shape[3] / 2) ** -0.5)) @ v
