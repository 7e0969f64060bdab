"""Attention of libraries that were not looked at while the diagnosis was improved, called as their users call them.

Like ``library_functions``; a class or function is taken out of its installed file by name, so that the packages that
the rest of its package needs are not needed.
"""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import importlib.metadata
import math
import types
from pathlib import Path
from typing import Any

import numpy as np

from studies.library_functions import Array, _equal_heads, _from_torch, _full, _shsd, _torch

_TYPES = ("Any", "Dict", "List", "Optional", "Tuple", "Union")


@functools.cache
def _taken(package: str, path: str, *names: str, **also: str) -> types.SimpleNamespace:
    """Some classes, functions and constants of an installed file, with the names that such files import.

    ``also`` has further names, each as "module", "module:name" or "module:function()" for what a function returns.
    """
    torch, einops = importlib.import_module("torch"), importlib.import_module("einops")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Like fastai's, whose subclasses do not call its ``__init__``."""

        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
            made = super().__new__(cls)
            torch.nn.Module.__init__(made)
            return made

    typing = importlib.import_module("typing")
    found: dict[str, Any] = {
        name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Tuple", "Union")
    }
    found |= {"torch": torch, "pt": torch, "nn": torch.nn, "F": torch.nn.functional, "Tensor": torch.Tensor}
    found |= {"np": np, "math": math, "partial": functools.partial, "einsum": torch.einsum, "Module": Module}
    found |= {"namedtuple": collections.namedtuple, "version": importlib.import_module("packaging.version")}
    found |= {"rearrange": einops.rearrange, "einops": einops, "AttentionOperator": torch.nn.Module}
    found |= {name: _named(where) for name, where in also.items()}
    file = Path(str(importlib.metadata.distribution(package).locate_file(path)))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kept = [n for n in tree.body if getattr(n, "name", "") in names or _assigned(n) in names]
    exec(compile(ast.Module(kept, []), str(file), "exec"), found)  # noqa: S102 -- what an import would do
    return types.SimpleNamespace(**{name: found[name] for name in names})


def _named(where: str) -> Any:
    module, _, name = where.removesuffix("()").partition(":")
    found: Any = importlib.import_module(module)
    found = getattr(found, name) if name else found
    return found() if where.endswith("()") else found


def _assigned(node: ast.stmt) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else ""


def _keys(kv_lengths: Any, k: Array) -> Array | None:
    return None if kv_lengths is None else np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1))


def _one_sample(array: Array) -> Array:
    """Heads as samples: (B · H, S, D)."""
    return array.reshape(-1, *array.shape[2:])


def _not_empty(*arrays: Array) -> None:
    if any(0 in a.shape for a in arrays):
        raise NotImplementedError("an empty axis cannot be folded into the batch")


def neuralforecast_full(q: Array, k: Array, v: Array, *, is_causal: bool = False, scale: Any = None) -> Array:
    """NeuralForecast's FullAttention with output_attention."""
    _equal_heads(q, k)
    found = _taken("neuralforecast", "neuralforecast/common/_modules.py", "TriangularCausalMask", "FullAttention")
    layer = found.FullAttention(mask_flag=is_causal, scale=scale, output_attention=True).eval()
    return _shsd(_from_torch(layer(*_torch(*_shsd(q, k, v)), None)[0]))[0]


def neuralforecast_flash(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Array:
    """NeuralForecast's FullAttention with its defaults."""
    _equal_heads(q, k)
    found = _taken("neuralforecast", "neuralforecast/common/_modules.py", "TriangularCausalMask", "FullAttention")
    layer = found.FullAttention(mask_flag=is_causal).eval()
    triangle = found.TriangularCausalMask(q.shape[0], q.shape[2]) if is_causal else None
    return _shsd(_from_torch(layer(*_torch(*_shsd(q, k, v)), triangle)[0]))[0]


def pytorch_forecasting(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """PyTorch Forecasting's ScaledDotProductAttention, whose mask is True where a key is masked."""
    _equal_heads(q, k)
    _not_empty(q, k, v)
    path = "pytorch_forecasting/models/temporal_fusion_transformer/sub_modules.py"
    layer = _taken("pytorch-forecasting", path, "ScaledDotProductAttention").ScaledDotProductAttention()
    masked = None if mask is None else _one_sample(~np.asarray(_full(mask, q, k)))
    a, b, c, masked = _torch(*map(_one_sample, (q, k, v)), masked)
    return _from_torch(layer(a, b, c, masked)[0]).reshape(*q.shape[:3], v.shape[3])


def _allennlp(q: Array, k: Array, v: Array, mask: Any, **options: Any) -> Array:
    _equal_heads(q, k)
    names = ("masked_softmax", "tiny_value_of_dtype", "min_value_of_dtype", "info_value_of_dtype")
    masked_softmax = _taken("allennlp", "allennlp/nn/util.py", *names).masked_softmax
    a, b, c, mask = _torch(q, k, v, _full(mask, q, k))
    return _from_torch(masked_softmax(a @ b.mT / math.sqrt(q.shape[3]), mask, **options) @ c)


def allennlp(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """AllenNLP's masked_softmax of the scores."""
    return _allennlp(q, k, v, mask)


def allennlp_efficient(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """AllenNLP's masked_softmax with memory_efficient."""
    return _allennlp(q, k, v, mask, memory_efficient=True)


def tsai(q: Array, k: Array, v: Array, *, mask: Any = None, bias: Any = None, kv_lengths: Any = None) -> Array:
    """The ScaledDotProductAttention of tsai."""
    _equal_heads(q, k)
    if mask is not None and bias is not None:
        raise NotImplementedError("mask and bias together")
    made = _taken("tsai", "tsai/models/layers.py", "ScaledDotProductAttention").ScaledDotProductAttention
    layer = made(q.shape[1] * q.shape[3], q.shape[1])
    given = bias if mask is None else ~np.asarray(mask)
    keys = _keys(kv_lengths, k)
    a, b, c, given, padding = _torch(q, k, v, _full(given, q, k), None if keys is None else ~keys)
    return _from_torch(layer(a, b.mT, c, attn_mask=given, key_padding_mask=padding)[0])


def _palm(q: Array, k: Array, v: Array, is_causal: bool, kv_lengths: Any, flash: bool) -> Array:
    _equal_heads(q, k)
    _not_empty(q, k, v)
    found = _taken("palm-rlhf-pytorch", "palm_rlhf_pytorch/attention.py", "Attention", "Config", "exists")
    layer = found.Attention(causal=is_causal, use_flash_attn=flash).eval()
    keys = _keys(kv_lengths, k)
    keys = None if keys is None else np.repeat(keys, q.shape[1], axis=0)
    a, b, c, keys = _torch(_one_sample(q)[:, None], _one_sample(k), _one_sample(v), keys)
    return _from_torch(layer(a, b, c, mask=keys)).reshape(*q.shape[:3], v.shape[3])


def palm(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """palm_rlhf_pytorch's attention of one key head, every head as a sample."""
    return _palm(q, k, v, is_causal, kv_lengths, flash=False)


def palm_flash(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """palm_rlhf_pytorch's attention with use_flash_attn."""
    return _palm(q, k, v, is_causal, kv_lengths, flash=True)


def _cosine(q: Array, k: Array, v: Array, is_causal: bool, kv_lengths: Any, **options: Any) -> Array:
    _equal_heads(q, k)
    if is_causal and kv_lengths is not None:
        raise NotImplementedError("mask should not be supplied if causality is needed")
    path = "flash_cosine_sim_attention/flash_cosine_sim_attention.py"
    names = ("plain_cosine_sim_attention", "l2norm_tensors", "grouped_l2norm", "l2norm", "l2norm_cpu", "exists")
    attend = _taken("flash-cosine-sim-attention", path, *names).plain_cosine_sim_attention
    a, b, c, keys = _torch(q, k, v, _keys(kv_lengths, k))
    return _from_torch(attend(a, b, c, mask=keys, causal=is_causal, **options))


def cosine(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """plain_cosine_sim_attention with its defaults."""
    return _cosine(q, k, v, is_causal, kv_lengths)


def cosine_without_norm(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """plain_cosine_sim_attention with l2norm_qk=False, for queries and keys that are normalised already."""
    return _cosine(q, k, v, is_causal, kv_lengths, l2norm_qk=False)


def mega_laplace(q: Array, k: Array, v: Array) -> Array:
    """MEGA's Laplacian attention function instead of the softmax, with its scale of one over the keys."""
    _equal_heads(q, k)
    function = _taken("mega-pytorch", "mega_pytorch/mega_pytorch.py", "LaplacianAttnFn").LaplacianAttnFn()
    a, b, c = _torch(q, k, v)
    return _from_torch(function(a @ b.mT / max(k.shape[2], 1)) @ c)


def sockeye(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """Sockeye's DotAttentionCell."""
    _equal_heads(q, k)
    _not_empty(q, k, v)
    if k.shape != v.shape:
        raise NotImplementedError("keys and values side by side")
    cell = importlib.import_module("sockeye.layers").DotAttentionCell(heads=q.shape[1])
    flat = q.transpose(2, 0, 1, 3).reshape(q.shape[2], q.shape[0], -1)
    pairs = np.stack([k, v], axis=3).transpose(2, 0, 1, 3, 4).reshape(k.shape[2], k.shape[0], -1)
    masked = None if mask is None else _one_sample(~np.asarray(_full(mask, q, k)))
    found = _from_torch(cell(*_torch(flat, pairs, masked)))
    return found.reshape(*found.shape[:2], q.shape[1], -1).transpose(1, 2, 0, 3)


def pypots(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """PyPOTS' ScaledDotProductAttention."""
    _equal_heads(q, k)
    path = "pypots/nn/modules/transformer/attention.py"
    made = _taken("pypots", path, "ScaledDotProductAttention").ScaledDotProductAttention
    a, b, c, mask = _torch(*_shsd(q, k, v), _full(mask, q, k))
    return _from_torch(made(q.shape[3] ** 0.5, 0.0)(a, b, c, mask)[0])


def _set(linear: Any, w: Array, b: Any) -> None:
    torch = importlib.import_module("torch")
    weight, bias = _torch(w.T, b)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        linear.bias = torch.nn.Parameter(torch.zeros_like(weight[:, 0]) if bias is None else bias, requires_grad=False)


def _square(x_q: Array, *weights: Any) -> None:
    if x_q.ndim == 2 or any(w is None or set(w.shape) != {x_q.shape[2]} for w in weights):
        raise NotImplementedError("heads together as wide as the input, a batch, and an output projection")


def nemo(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, kv_lengths: Any = None, is_causal: bool = False,
) -> Array:  # fmt: skip
    """NeMo's MultiHeadAttention of its transformer, with the mask of form_attention_mask."""
    _square(x_q, w_q, w_k, w_v, w_o)
    y = x_q if x_kv is None else x_kv
    if is_causal and y.shape[1] != x_q.shape[1]:
        raise NotImplementedError("the mask is of the decoder's own tokens")
    path = "nemo/collections/common/parts/transformer_utils.py"
    form_mask = _taken("nemo-toolkit", path, "form_attention_mask", "NEG_INF").form_attention_mask
    path = "nemo/collections/asr/modules/transformer/transformer_modules.py"
    layer = _taken("nemo-toolkit", path, "MultiHeadAttention").MultiHeadAttention(x_q.shape[2], heads).eval()
    names = {"query_net": (w_q, b_q), "key_net": (w_k, b_k), "value_net": (w_v, b_v), "out_projection": (w_o, b_o)}
    for name, (w, b) in names.items():
        _set(getattr(layer, name), w, b)
    keys = np.ones(y.shape[:2], bool)
    if kv_lengths is not None:
        keys = np.arange(y.shape[1]) < np.reshape(kv_lengths, (-1, 1))
    a, b, valid = _torch(x_q, y, keys)
    added = form_mask(valid, diagonal=0 if is_causal else None)
    return _from_torch(layer(a, b, b, added)[0])


def dalle(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, w_o: Any = None, b_o: Any = None,
) -> Array:  # fmt: skip
    """dalle_pytorch's Attention with its defaults."""
    _square(x_q, w_q, w_k, w_v, w_o)
    names = ("Attention", "exists", "max_neg_value")
    found = _taken("dalle-pytorch", "dalle_pytorch/attention.py", *names)
    layer = found.Attention(x_q.shape[2], x_q.shape[1], heads=heads, dim_head=x_q.shape[2] // heads).eval()
    _set(layer.to_qkv, np.concatenate([w_q, w_k, w_v], axis=1), None)
    _set(layer.to_out[0], w_o, b_o)
    return _from_torch(layer(*_torch(x_q)))
