"""Attention of the second set of libraries that were not looked at while the diagnosis was improved, as users call it.

Like ``held_out``: a class or function is taken out of its installed file by name.  None of these functions is in an
earlier set or in the gallery.
"""

from __future__ import annotations

import importlib
import math
import types
from typing import Any

import numpy as np

from studies.held_out import _keys, _not_empty, _one_sample, _set, _square, _taken
from studies.library_functions import Array, _equal_heads, _from_torch, _full, _jax, _shsd, _torch


def _side_by_side(array: Array) -> Array:
    """(B, H, S, D) as (B, S, H · D)."""
    b, h, s, d = array.shape
    return np.swapaxes(array, 1, 2).reshape(b, s, h * d)


def _sequence_first(array: Array) -> Array:
    """(B, H, S, D) as (S, B, H, D), in one piece."""
    return np.ascontiguousarray(array.transpose(2, 0, 1, 3))


def _of_rows(array: Array, q: Array, k: Array) -> Array:
    """A mask or bias (Sq, Sk), which all samples and heads share."""
    if any(n != 1 for n in array.shape[:-2]):
        raise NotImplementedError("one for all samples and heads")
    return np.broadcast_to(array.reshape(array.shape[-2:]), (q.shape[2], k.shape[2])).copy()


def _past_window(window: Any, is_causal: bool) -> int | None:
    """Number of past keys in a window that ends at the row's own key; None without a window."""
    left, right = window or (None, None)
    if left is None and right is None:
        return None
    if left is None or (right != 0 and not is_causal):
        raise NotImplementedError("a window of past keys only")
    return int(left)


# sdpa.


def mmpretrain(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: Any = None
) -> Array:
    """MMPretrain's own scaled_dot_product_attention, for versions of torch without one."""
    _equal_heads(q, k)
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    name = "scaled_dot_product_attention_pyimpl"
    attend = getattr(_taken("mmpretrain", "mmpretrain/models/utils/attention.py", name), name)
    a, b, c, added = _torch(q, k, v, _full(mask if bias is None else bias, q, k))
    return _from_torch(attend(a, b, c, attn_mask=added, scale=scale, is_causal=is_causal))


def torchtext(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """TorchText's ScaledDotProduct, whose mask is True where a key is masked."""
    _equal_heads(q, k)
    path = "torchtext/nn/modules/multiheadattention.py"
    layer = _taken("torchtext", path, "ScaledDotProduct").ScaledDotProduct().eval()
    samples = q.shape[0] * q.shape[1]
    flat = [_sequence_first(x).reshape(x.shape[2], samples, x.shape[3]) for x in (q, k, v)]
    masked = None if mask is None else ~np.asarray(_full(mask, q, k)).reshape(samples, q.shape[2], k.shape[2])
    found = _from_torch(layer(*_torch(*flat), attn_mask=_torch(masked)[0])[0])
    return found.reshape(found.shape[0], q.shape[0], q.shape[1], found.shape[2]).transpose(1, 2, 0, 3)


def llm_foundry(
    q: Array, k: Array, v: Array, *, bias: Any = None, is_causal: bool = False, kv_lengths: Any = None,
    scale: Any = None, softcap: Any = None, window: Any = None,
) -> Array:  # fmt: skip
    """LLM Foundry's scaled_multihead_dot_product_attention."""
    path = "llmfoundry/models/layers/attention.py"
    names = ("scaled_multihead_dot_product_attention", "repeat_kv_for_gqa")
    attend = getattr(_taken("llm-foundry", path, *names, warnings="warnings"), names[0])
    left, right = window or (None, None)
    if left != right:  # its window has both sides, and causal cuts the right one
        _past_window(window, is_causal)
        is_causal = True
    a, b, c, bias, keys = _torch(*map(_side_by_side, (q, k, v)), _full(bias, q, k), _keys(kv_lengths, k))
    found = attend(
        a, b, c, q.shape[1], k.shape[1], softmax_scale=scale, attn_bias=bias, key_padding_mask=keys,
        is_causal=is_causal, attn_logit_softcapping=softcap, sliding_window_size=-1 if left is None else left,
    )  # fmt: skip
    found = _from_torch(found[0])
    return _shsd(found.reshape(*found.shape[:2], q.shape[1], v.shape[3]))[0]


def litgpt(q: Array, k: Array, v: Array, *, mask: Any = None, softcap: Any = None) -> Array:
    """LitGPT's CausalSelfAttention.scaled_dot_product_attention, with a mask as in its mask_cache."""
    _equal_heads(q, k)
    made = _taken("litgpt", "litgpt/model.py", "CausalSelfAttention", "do_softcapping").CausalSelfAttention
    config = types.SimpleNamespace(
        attention_scores_scalar=None, head_size=q.shape[3], attention_logit_softcapping=softcap
    )
    layer = types.SimpleNamespace(config=config, mscale=1.0)
    found = made.scaled_dot_product_attention(layer, *_torch(q, k, v, _full(mask, q, k)))
    return _shsd(_from_torch(found))[0]


def _softmax_n(q: Array, k: Array, v: Array, mask: Any, bias: Any, **options: Any) -> Array:
    _equal_heads(q, k)
    if sum((mask is not None, bias is not None, options["is_causal"])) > 1:
        raise NotImplementedError("two masks at once")
    found = _taken(
        "flash-attention-softmax-n", "flash_attention_softmax_n/core/functional.py", "slow_attention_n", "softmax_n",
        sqrt="math:sqrt", zeros="torch:zeros", ones="torch:ones", dropout="torch:dropout", exp="torch:exp",
        torch_bool="torch:bool",
    )  # fmt: skip
    a, b, c, given = _torch(q, k, v, _full(mask, q, k) if bias is None else _of_rows(np.asarray(bias), q, k))
    return _from_torch(found.slow_attention_n(a, b, c, attn_mask=given, train=False, **options))


def softmax_n(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: Any = None
) -> Array:
    """slow_attention_n of flash-attention-softmax-n with its default n of 0."""
    return _softmax_n(q, k, v, mask, bias, is_causal=is_causal, scale=scale)


def softmax_one(q: Array, k: Array, v: Array, *, is_causal: bool = False, scale: Any = None) -> Array:
    """slow_attention_n of flash-attention-softmax-n with n = 1."""
    return _softmax_n(q, k, v, None, None, is_causal=is_causal, scale=scale, softmax_n_param=1.0)


def stanza(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """The ScaledDotProductAttention of Stanza's label attention, made for the width of the model."""
    _equal_heads(q, k)
    _not_empty(q, k, v)
    path = "stanza/models/constituency/label_attention.py"
    made = _taken("stanza", path, "ScaledDotProductAttention").ScaledDotProductAttention
    masked = None if mask is None else ~_one_sample(np.asarray(_full(mask, q, k)))
    a, b, c, masked = _torch(*map(_one_sample, (q, k, v)), masked)
    found = _from_torch(made(q.shape[1] * q.shape[3]).eval()(a, b, c, masked)[0])
    return found.reshape(*q.shape[:3], v.shape[3])


def _neginf(dtype: Any) -> float:
    names = ("neginf", "NEAR_INF", "NEAR_INF_FP16")
    return float(_taken("parlai", "parlai/utils/torch.py", *names).neginf(dtype))


def _default(value: Any, otherwise: Any) -> Any:
    return value if value is not None else otherwise


def _parlai(name: str) -> Any:
    path, here = "parlai/agents/transformer/modules/attention.py", "studies.held_out_second"
    return getattr(_taken("parlai", path, name, neginf=f"{here}:_neginf", default=f"{here}:_default"), name)


def parlai_basic(q: Array, k: Array, v: Array, *, kv_lengths: Any = None) -> Array:
    """ParlAI's BasicAttention of products over the root of the width, every head as a sample."""
    _equal_heads(q, k)
    _not_empty(q, k, v)
    keys = _keys(kv_lengths, k)
    keys = None if keys is None else np.repeat(keys, q.shape[1], axis=0)
    a, b, c, keys = _torch(*map(_one_sample, (q, k, v)), keys)
    found = _from_torch(_parlai("BasicAttention")(dim=2, attn="sqrt", get_weights=False)(a, b, keys, c))
    return found.reshape(*q.shape[:2], *found.shape[1:])


class _Kept:
    """A hook that keeps the output."""

    def __call__(self, _module: Any, _given: Any, output: Any) -> None:
        self.seen = output


def transformer_lens(
    q: Array, k: Array, v: Array, *, bias: Any = None, is_causal: bool = False, kv_lengths: Any = None,
    scale: Any = None, softcap: Any = None, window: Any = None,
) -> Array:  # fmt: skip
    """TransformerLens' Attention without its projections, read at hook_z."""
    _equal_heads(q, k)
    left = _past_window(window, is_causal)
    is_causal |= left is not None
    if q.shape[3] != v.shape[3] or (kv_lengths is not None and not is_causal) or scale == 0:
        raise NotImplementedError("values of another width, lengths without causal, or a scale that none divides by")
    a, b, c, bias, keys = _torch(*_shsd(q, k, v), _full(bias, q, k), _keys(kv_lengths, k))
    cfg = types.SimpleNamespace(
        load_in_4bit=False, d_model=q.shape[3], d_head=q.shape[3], n_heads=q.shape[1], dtype=a.dtype, use_qk_norm=False,
        n_ctx=max(q.shape[2], k.shape[2]), window_size=None if left is None else left + 1, use_attn_scale=True,
        attn_scale=math.sqrt(q.shape[3]) if scale is None else 1 / scale, scale_attn_by_inverse_layer_idx=False,
        positional_embedding_type="standard", attention_dir="causal" if is_causal else "bidirectional",
        use_attn_result=False, attn_scores_soft_cap=0.0 if softcap is None else softcap,
    )  # fmt: skip
    layer = _lens()(cfg, "global" if left is None else "local").eval()
    layer.W_O.data.zero_()
    layer.calculate_qkv_matrices = lambda *projected: projected
    kept = _Kept()
    layer.hook_z.register_forward_hook(kept)
    layer(a, b, c, additive_attention_mask=bias, attention_mask=None if keys is None else keys.int())
    return _shsd(_from_torch(kept.seen))[0]


def _lens() -> Any:
    here = "studies.held_out_second"
    base = _taken(
        "transformer-lens", "transformer_lens/components/abstract_attention.py", "AbstractAttention", ABC="abc:ABC",
        abstract_attribute=f"{here}:_later", HookPoint="torch.nn:Identity",
        HookedTransformerConfig=f"{here}:_Unwrapped",
    )  # fmt: skip

    class Attention(base.AbstractAttention):  # type: ignore[misc, name-defined]
        """Like its Attention, which adds projections of keys and values that are not used here."""

    return Attention


def _later() -> None:
    """Placeholder for what a subclass of AbstractAttention must provide."""


class _Unwrapped:
    """HookedTransformerConfig for a config that is one already."""

    @staticmethod
    def unwrap(cfg: Any) -> Any:
        return cfg


def _module_with_config() -> Any:
    """MegatronModule on a single rank: a module that keeps its config."""
    torch = importlib.import_module("torch")

    class MegatronModule(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A module of torch with a config."""

        def __init__(self, config: Any) -> None:
            super().__init__()
            self.config = config

    return MegatronModule


def megatron(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """Megatron Core's DotProductAttention on a single rank; its mask is True where a key is masked."""
    config = types.SimpleNamespace(
        context_parallel_size=1, window_size=None, kv_channels=q.shape[3], num_attention_heads=q.shape[1],
        num_query_groups=k.shape[1], apply_query_key_layer_scaling=False, fp16=q.dtype == np.float16, bf16=False,
        masked_softmax_fusion=False, attention_softmax_in_fp32=True, attention_dropout=0.0, sequence_parallel=True,
    )  # fmt: skip
    here, folder = "studies.held_out_second", "megatron/core/transformer"
    made = _taken(
        "megatron-core", f"{folder}/dot_product_attention.py", "DotProductAttention", Tensor="torch:Tensor",
        MegatronModule=f"{here}:_module_with_config()", parallel_state=f"{here}:_OneRank", divide="operator:floordiv",
        FusedScaleMaskSoftmax=f"{here}:_fused", attention_mask_func=f"{here}:_mask_func",
    )  # fmt: skip
    layer = made.DotProductAttention(config, 1, _MaskType.padding, "self").eval()
    masked = None if mask is None else ~np.asarray(_full(mask, q, k))
    found = _from_torch(layer(*_torch(*map(_sequence_first, (q, k, v))), _torch(masked)[0]))
    return found.reshape(*found.shape[:2], q.shape[1], -1 if found.size else v.shape[3]).transpose(1, 2, 0, 3)


class _MaskType:
    """Megatron's AttnMaskType."""

    padding, causal = "padding", "causal"


class _OneRank:
    """Megatron's parallel_state for a single rank, whose buffers are tensors."""

    @staticmethod
    def get_tensor_model_parallel_world_size() -> int:
        return 1

    @classmethod
    def get_global_memory_buffer(cls) -> type[_OneRank]:
        return cls

    @staticmethod
    def get_tensor(shape: Any, dtype: Any, _name: str) -> Any:
        return importlib.import_module("torch").empty(shape, dtype=dtype)


def _fused(**options: Any) -> Any:
    path = "megatron/core/fusions/fused_softmax.py"
    found = _taken("megatron-core", path, "FusedScaleMaskSoftmax", AttnMaskType="studies.held_out_second:_MaskType")
    return found.FusedScaleMaskSoftmax(**options)


def _mask_func(*given: Any) -> Any:
    path = "megatron/core/transformer/utils.py"
    return _taken("megatron-core", path, "attention_mask_func").attention_mask_func(*given)


def chronos(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None) -> Array:
    """The eager attention of Chronos-2's MHA, with masks as its model inverts them."""
    _equal_heads(q, k)
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    made = _taken("chronos-forecasting", "chronos/chronos2/layers.py", "MHA").MHA
    added = np.zeros((*q.shape[:3], k.shape[2]), q.dtype) if bias is None else _full(bias, q, k)
    if mask is not None:
        added = ((1.0 - np.asarray(_full(mask, q, k))) * np.finfo(q.dtype).min).astype(q.dtype)
    layer = types.SimpleNamespace(dropout=0.0, training=False)
    return _from_torch(made._eager_attention(layer, *_torch(q, k, v, added))[0])


def uni2ts(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, scale: Any = None) -> Array:
    """Uni2TS' native_scaled_dot_product_attention, on queries (B, G, H, S, D) and keys that are repeated in groups."""
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    name = "native_scaled_dot_product_attention"
    attend = getattr(_taken("uni2ts", "uni2ts/module/attention.py", name), name)
    groups, each = k.shape[1], q.shape[1] // k.shape[1]

    def grouped(x: Array | None, at: int = 1) -> Array | None:
        return None if x is None else x.reshape(x.shape[0], groups, at, *x.shape[2:])

    given = grouped(_full(mask if bias is None else bias, q, k), each)
    repeated = [np.repeat(x[:, :, None], each, axis=2) for x in (k, v)]
    found = _from_torch(attend(*_torch(grouped(q, each), *repeated, given), scale=scale))
    return found.reshape(*q.shape[:3], found.shape[4])


def tabicl(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None) -> Array:
    """TabICL's sdpa_with_flattened_batch."""
    _equal_heads(q, k)
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    # flash-attention 3 is not installed
    found = _taken(
        "tabicl", "tabicl/_model/attention.py", "sdpa_with_flattened_batch", "_use_flash_attn3",
        HAS_FLASH_ATTN3="typing:TYPE_CHECKING",
    )  # fmt: skip
    return _from_torch(found.sdpa_with_flattened_batch(*_torch(q, k, v, _full(mask if bias is None else bias, q, k))))


def _kauldron(q: Array, k: Array, v: Array, mask: Any = None, bias: Any = None, **options: Any) -> Array:
    _equal_heads(q, k)
    found = _taken(
        "kauldron", "kauldron/modules/attention.py", "dot_product_attention_weights", "softmax", jax="jax",
        jnp="jax.numpy", typechecked="typing:no_type_check",
    )  # fmt: skip
    a, b, c, bias, mask = _jax(*_shsd(q, k, v), _full(bias, q, k), _full(mask, q, k))
    weights = found.dot_product_attention_weights(a, b, bias=bias, mask=mask, **options)
    return _shsd(importlib.import_module("jax.numpy").einsum("...hqk,...khd->...qhd", weights, c))[0]


def kauldron(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None) -> Array:
    """Kauldron's dot_product_attention_weights, and the weighted sum."""
    return _kauldron(q, k, v, mask, bias)


def kauldron_slots(q: Array, k: Array, v: Array) -> Array:
    """Kauldron's dot_product_attention_weights for slots, and the weighted sum."""
    return _kauldron(q, k, v, softmax_axis=-2)


class _FastMath:
    """Trax' fastmath on JAX."""

    class Backend:
        """Backends of fastmath."""

        JAX = "jax"

    @staticmethod
    def is_backend(_name: str) -> bool:
        return True

    @staticmethod
    def logsumexp(*given: Any, **options: Any) -> Any:
        return importlib.import_module("jax.scipy.special").logsumexp(*given, **options)


def trax(q: Array, k: Array, v: Array, *, mask: Any = None, is_causal: bool = False) -> Array:
    """Trax' DotProductAttention and DotProductCausalAttention, with heads as samples."""
    _equal_heads(q, k)
    _not_empty(q, k, v)
    if mask is not None and is_causal:
        raise NotImplementedError("one of two layers")
    found = _taken(
        "trax", "trax/layers/attention.py", "_per_head_attention", "_causal_mask", jnp="jax.numpy",
        fastmath="studies.held_out_second:_FastMath",
    )  # fmt: skip
    a, b, c, masked = _jax(
        *map(_one_sample, (q, k, v)), None if mask is None else _one_sample(np.asarray(_full(mask, q, k)))
    )
    masked = found._causal_mask(q.shape[2]) if is_causal else masked
    output, _ = found._per_head_attention(a, b, c, masked, dropout=0.0, mode="eval", rng=None)
    return np.asarray(output).reshape(*q.shape[:3], v.shape[3])


def fairseq2(
    q: Array, k: Array, v: Array, *, bias: Any = None, is_causal: bool = False, window: Any = None, scale: Any = None
) -> Array:
    """fairseq2's naive_scaled_dot_product_attention, with its CausalAttentionBias."""
    _equal_heads(q, k)
    left = _past_window(window, is_causal)
    if bias is not None and (is_causal or left is not None):
        raise NotImplementedError("one bias")
    folder = "fairseq2/models/transformer"
    softmax, name = "torch.nn.functional", "naive_scaled_dot_product_attention"
    attend = getattr(
        _taken("fairseq2", f"{folder}/sdpa/naive.py", name, softmax=f"{softmax}:softmax", dropout=f"{softmax}:dropout"),
        name,
    )
    a, b, c, added = _torch(q, k, v, _full(bias, q, k))
    if is_causal or left is not None:
        names = ("AttentionBias", "CausalAttentionBias", "_create_causal_bias_tensor")
        made = _taken(
            "fairseq2", f"{folder}/attention_bias.py", *names, ABC="abc:ABC", abstractmethod="abc:abstractmethod",
            final="typing:final", override="typing_extensions:override",
        ).CausalAttentionBias(attn_window_len=None if left is None else left + 1)  # fmt: skip
        added = made.create_bias_tensor(q.shape[2], k.shape[2], a.device, a.dtype)
    return _from_torch(attend(a, b, c, added, scale=scale)[0])


def deepchem(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """DeepChem's ScaledDotProductAttention."""
    _equal_heads(q, k)
    path = "deepchem/models/torch_models/attention.py"
    layer = _taken("deepchem", path, "ScaledDotProductAttention").ScaledDotProductAttention()
    return _from_torch(layer(*_torch(q, k, v, _full(mask, q, k)))[0])


def linear_attention(q: Array, k: Array, v: Array, *, kv_lengths: Any = None) -> Array:
    """The linear_attn of linear-attention-transformer."""
    _equal_heads(q, k)
    path = "linear_attention_transformer/linear_attention_transformer.py"
    attend = _taken("linear-attention-transformer", path, "linear_attn", "max_neg_value", "exists").linear_attn
    return _from_torch(attend(*_torch(q, k, v, _keys(kv_lengths, k))))


def stickbreaking(q: Array, k: Array, v: Array, *, scale: Any = None) -> Array:
    """The naive_stickbreaking_attn of Flash Linear Attention."""
    path, name = "fla/ops/stickbreaking_attn/naive.py", "naive_stickbreaking_attn"
    attend = getattr(_taken("fla-core", path, name), name)
    return _shsd(_from_torch(attend(*_torch(*_shsd(q, k, v)), scale=scale)[0]))[0]


def flash_linear(
    q: Array, k: Array, v: Array, *, is_causal: bool = False, window: Any = None, scale: Any = None, sinks: Any = None
) -> Array:
    """The naive_parallel_attn of Flash Linear Attention."""
    left = _past_window(window, is_causal)
    attend = _taken("fla-core", "fla/ops/attn/naive.py", "naive_parallel_attn").naive_parallel_attn
    a, b, c, sinks = _torch(*_shsd(q, k, v), sinks)
    found, _ = attend(
        a, b, c, scale, None if left is None else left + 1, is_causal or left is not None, sink_bias=sinks
    )
    return _shsd(_from_torch(found))[0]


def litert(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, scale: Any = None, softcap: Any = None,
    alibi_slopes: Any = None,
) -> Array:  # fmt: skip
    """LiteRT Torch's scaled_dot_product_attention, with masks of −inf as its models build them."""
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    name = "scaled_dot_product_attention"
    attend = getattr(_taken("litert-torch", f"litert_torch/generative/layers/{name}.py", name), name)
    added = _full(bias, q, k) if mask is None else np.where(np.asarray(_full(mask, q, k)), 0, -np.inf).astype(q.dtype)
    away = np.abs(np.arange(q.shape[2])[:, None] - np.arange(k.shape[2]))
    alibi = None if alibi_slopes is None else (-np.reshape(alibi_slopes, (1, -1, 1, 1)) * away).astype(q.dtype)
    a, b, c, added, alibi = _torch(*_shsd(q, k, v), added, alibi)
    return _shsd(_from_torch(attend(a, b, c, q.shape[3], added, scale, softcap, alibi)))[0]


def fms_sinks(
    q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, scale: Any = None, sinks: Any = None
) -> Array:
    """Foundation Model Stack's operator with sinks."""
    if sinks is None or (mask is not None and bias is not None):
        raise NotImplementedError("sinks are part of the operator, and there is one mask")
    name = "_math_attention_with_sinks_op"
    attend = getattr(_taken("ibm-fms", "fms/modules/attention.py", name, cast="typing:cast"), name)
    a, b, c, sinks, given = _torch(*_shsd(q), k, v, sinks, _full(mask if bias is None else bias, q, k))
    return _shsd(_from_torch(attend(a, b, c, q.shape[1], k.shape[1], 0.0, scale, sinks=sinks, mask=given)))[0]


# Layers.


def _rows(x_q: Array, y: Array, mask: Any, is_causal: bool, kv_lengths: Any) -> Array | None:
    """Keys that a row may attend to, as one mask (B, Sq, Sk) for all heads; None for all keys."""
    if mask is None and not is_causal and kv_lengths is None:
        return None
    shape = (x_q.shape[0], x_q.shape[1], y.shape[1])
    allowed = np.ones(shape, bool)
    if mask is not None:
        full = np.asarray(mask)[(None,) * (4 - np.ndim(mask))]
        if full.shape[1] != 1:
            raise NotImplementedError("one mask for all heads")
        allowed &= full[:, 0]
    if is_causal:
        allowed &= np.tri(*shape[1:], dtype=bool)
    if kv_lengths is not None:
        allowed &= (np.arange(y.shape[1]) < np.reshape(kv_lengths, (-1, 1)))[:, None]
    return allowed


def _lengths(kv_lengths: Any, y: Array) -> Array | None:
    return None if kv_lengths is None else np.arange(y.shape[1]) < np.reshape(kv_lengths, (-1, 1))


def _projections(layer: Any, given: dict[str, tuple[Any, Any]]) -> None:
    for name, (w, b) in given.items():
        _set(getattr(layer, name), w, b)


def parlai(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
    kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """ParlAI's MultiHeadAttention, which is always given a mask."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y = x_q if x_kv is None else x_kv
    options = {"n_heads": heads, "embedding_size": x_q.shape[2]}
    layer = _parlai("MultiHeadAttention")(options, heads, x_q.shape[2]).eval()
    _projections(layer, {"q_lin": (w_q, b_q), "k_lin": (w_k, b_k), "v_lin": (w_v, b_v), "out_lin": (w_o, b_o)})
    allowed = _rows(x_q, y, mask, is_causal, kv_lengths)
    a, b, allowed = _torch(x_q, y, np.ones(y.shape[:2], bool) if allowed is None else allowed)
    return _from_torch(layer(a, b, b, mask=allowed)[0])


def joeynmt(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
    kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """Joey NMT's MultiHeadedAttention."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y = x_q if x_kv is None else x_kv
    made = _taken("joeynmt", "joeynmt/transformer_layers.py", "MultiHeadedAttention").MultiHeadedAttention
    layer = made(heads, x_q.shape[2], 0.0).eval()
    names = {"q_layer": (w_q, b_q), "k_layer": (w_k, b_k), "v_layer": (w_v, b_v), "output_layer": (w_o, b_o)}
    _projections(layer, names)
    a, b, allowed = _torch(x_q, y, _rows(x_q, y, mask, is_causal, kv_lengths))
    return _from_torch(layer(b, b, a, allowed)[0])


def opennmt(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
    kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """OpenNMT-py's MultiHeadedAttention, whose mask is True where a key is masked."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y = x_q if x_kv is None else x_kv
    made = _taken(
        "OpenNMT-py", "onmt/modules/multi_headed_attn.py", "MultiHeadedAttention", "shape", "unshape", sqrt="math:sqrt",
        skip_init="torch.nn.utils:skip_init", import_module="importlib:import_module",
    )  # fmt: skip
    layer = made.MultiHeadedAttention(
        heads, x_q.shape[2], 0.0, is_decoder=False, attn_type="context", add_qkvbias=True
    ).eval()
    names = {"query": (w_q, b_q), "keys": (w_k, b_k), "values": (w_v, b_v)}
    _projections(layer, {f"linear_{name}": given for name, given in names.items()} | {"final_linear": (w_o, b_o)})
    allowed = _rows(x_q, y, mask, is_causal, kv_lengths)
    a, b, masked = _torch(x_q, y, None if allowed is None else ~allowed[:, None])
    return _from_torch(layer(b, b, a, mask=masked)[0])


def _multiway(*given: Any) -> Any:
    path = "torchscale/component/multiway_network.py"
    return _taken("torchscale", path, "MultiwayWrapper").MultiwayWrapper(*given)


def torchscale(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, is_causal: bool = False, kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """TorchScale's MultiheadAttention, with the additive causal mask of its decoder."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y = x_q if x_kv is None else x_kv
    made = _taken(
        "torchscale", "torchscale/component/multihead_attention.py", "MultiheadAttention",
        MultiwayWrapper="studies.held_out_second:_multiway",
    )  # fmt: skip
    args = types.SimpleNamespace(multiway=False, xpos_rel_pos=False)
    kind = {"self_attention": x_kv is None, "encoder_decoder_attention": x_kv is not None}
    layer = made.MultiheadAttention(args, x_q.shape[2], heads, **kind).eval()
    names = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    _projections(layer, names)
    above = None
    if is_causal:
        above = np.triu(np.full((x_q.shape[1], y.shape[1]), -np.inf), 1).astype(x_q.dtype)
    keys = _lengths(kv_lengths, y)
    a, b, above, padded = _torch(x_q, y, above, None if keys is None else ~keys)
    return _from_torch(layer(a, b, b, key_padding_mask=padded, attn_mask=above)[0])


def speechbrain(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, w_o: Any = None, b_v: Any = None, b_o: Any = None,
    mask: Any = None,
) -> Array:  # fmt: skip
    """SpeechBrain's RelPosMHAXL over its own input, with position embeddings and biases of zero."""
    _square(x_q, w_q, w_k, w_v, w_o)
    torch, width = importlib.import_module("torch"), x_q.shape[2]
    made = _taken("speechbrain", "speechbrain/nnet/attention.py", "RelPosMHAXL").RelPosMHAXL
    allowed = _rows(x_q, x_q, mask, False, None)
    masked = None if allowed is None else np.repeat(~allowed, heads, axis=0)
    a, columns, masked = _torch(x_q, np.concatenate([w.T for w in (w_q, w_k, w_v)]), masked)
    layer = made(width, heads, vbias=b_v is not None).to(a.dtype).eval()
    # the columns of a head's query, key and value come one after the other
    layer.in_proj_weight.data = columns.reshape(3, heads, -1, width).transpose(0, 1).reshape(3 * width, width)
    for name in ("pos_bias_u", "pos_bias_v"):
        getattr(layer, name).data.zero_()
    if b_v is not None:
        layer.value_bias_weight.data = _torch(b_v)[0]
    _set(layer.out_proj, w_o, b_o)
    places = torch.zeros(1, 2 * x_q.shape[1] - 1, width, dtype=a.dtype)
    return _from_torch(layer(a, a, a, places, attn_mask=masked)[0])


def d3rlpy(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """The CausalSelfAttention of d3rlpy's transformers, with 1 at padding in its attention mask."""
    _square(x_q, w_q, w_k, w_v, w_o)
    found = _taken("d3rlpy", "d3rlpy/models/torch/transformers.py", "CausalSelfAttention", "create_attention_mask")
    layer = found.CausalSelfAttention(x_q.shape[2], heads, x_q.shape[1], 0.0, 0.0).eval()
    _projections(layer, {"_q": (w_q, b_q), "_k": (w_k, b_k), "_v": (w_v, b_v), "_proj": (w_o, b_o)})
    keys = _lengths(kv_lengths, x_q)
    padded = np.zeros(x_q.shape[:2], x_q.dtype) if keys is None else (~keys).astype(x_q.dtype)
    return _from_torch(layer(*_torch(x_q, padded)))


def coqui(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
    kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """The RelativePositionMultiHeadAttention of Coqui TTS without relative positions, with channels first."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y, torch = x_q if x_kv is None else x_kv, importlib.import_module("torch")
    name = "RelativePositionMultiHeadAttention"
    layer = getattr(_taken("coqui-tts", "TTS/tts/layers/glow_tts/transformer.py", name), name)(
        x_q.shape[2], x_q.shape[2], heads
    ).eval()
    for name, (w, bias) in {"q": (w_q, b_q), "k": (w_k, b_k), "v": (w_v, b_v), "o": (w_o, b_o)}.items():
        _set(getattr(layer, f"conv_{name}"), w, bias)
        convolution = getattr(layer, f"conv_{name}")
        convolution.weight = torch.nn.Parameter(convolution.weight[:, :, None], requires_grad=False)
    allowed = _rows(x_q, y, mask, is_causal, kv_lengths)
    channels = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (x_q, y)]
    a, b, allowed = _torch(*channels, None if allowed is None else allowed[:, None])
    return _from_torch(layer(a, b, allowed)).swapaxes(1, 2)


def alphafold2(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_o: Any = None,
) -> Array:  # fmt: skip
    """The Attention of alphafold2-pytorch with its initial gates."""
    _square(x_q, w_q, w_k, w_v, w_o)
    path, width = "alphafold2_pytorch/alphafold2.py", x_q.shape[2]
    names = ("Attention", "exists", "default", "init_zero_")
    made = _taken("alphafold2-pytorch", path, *names, isfunction="inspect:isfunction").Attention
    a, b = _torch(x_q, x_kv)
    layer = made(width, heads=heads, dim_head=width // heads).to(a.dtype).eval()
    given = {"to_q": (w_q, None), "to_kv": (np.concatenate([w_k, w_v], axis=1), None), "to_out": (w_o, b_o)}
    _projections(layer, given)
    return _from_torch(layer(a, context=b))


def _dgl(x_q: Array, weights: tuple[Any, ...], biases: tuple[Any, ...], heads: int, kind: str, **given: Any) -> Array:
    _square(x_q, *weights)
    layer = _taken("dgl", "dgl/nn/pytorch/gt/biased_mha.py", "BiasedMHA", th="torch").BiasedMHA(
        x_q.shape[2], heads, attn_bias_type=kind
    )
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    _projections(layer.eval(), dict(zip(names, zip(weights, biases, strict=True), strict=True)))
    bias, shape = given["bias"], (x_q.shape[0], heads, x_q.shape[1], x_q.shape[1])
    bias = None if bias is None else np.broadcast_to(bias, shape).transpose(0, 2, 3, 1)
    allowed = _rows(x_q, x_q, given["mask"], False, given["kv_lengths"])
    a, bias, masked = _torch(x_q, bias, None if allowed is None else ~allowed)
    return _from_torch(layer(a, bias, masked))


def dgl_biased(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, mask: Any = None, bias: Any = None, kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """DGL's BiasedMHA, whose mask is True where a key is masked."""
    given = {"mask": mask, "bias": bias, "kv_lengths": kv_lengths}
    return _dgl(x_q, (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o), heads, "add", **given)


def dgl_multiplied(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, mask: Any = None, bias: Any = None, kv_lengths: Any = None,
) -> Array:  # fmt: skip
    """DGL's BiasedMHA with attn_bias_type="mul"."""
    given = {"mask": mask, "bias": bias, "kv_lengths": kv_lengths}
    return _dgl(x_q, (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o), heads, "mul", **given)


def perceiver_inverted(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_o: Any = None,
) -> Array:  # fmt: skip
    """The Attention of perceiver-pytorch with inverted_attention."""
    _square(x_q, w_q, w_k, w_v, w_o)
    width = x_q.shape[2]
    made = _taken(
        "perceiver-pytorch", "perceiver_pytorch/perceiver_pytorch.py", "Attention", "exists", "default", "l1norm",
        cat="torch:cat", repeat="einops:repeat", einsum="einops:einsum",
    )  # fmt: skip
    layer = made.Attention(width, heads=heads, dim_head=width // heads).eval()
    names = {"to_q": (w_q, None), "to_kv": (np.concatenate([w_k, w_v], axis=1), None), "to_out": (w_o, b_o)}
    _projections(layer, names)
    a, b = _torch(x_q, x_kv)
    return _from_torch(layer(a, context=b, inverted_attention=True))
