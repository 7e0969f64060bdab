"""torch.nn.MultiheadAttention on its fast path, on its slow path, and with its weights as inputs.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html and, for which path is taken,
``forward`` in torch/nn/modules/activation.py (2.13).  The module has E = H · D and Dv = D, always an output projection,
and either all four biases or none: an absent one next to others is the zeros that the module starts with.  It has no
scale.  Its masks are key_padding_mask (B, Sk) and attn_mask (Sq, Sk) or (B · H, Sq, Sk), boolean (True = may *not*
attend) or additive.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import MultiheadAttention
from torch.utils.weak import WeakIdKeyDictionary

_Weights = tuple[torch.Tensor | None, ...]

#: Modules by their first weight, with the other parts that they were made of: kept as long as that weight, so that no
#: timed call builds one, however many layers a process times in turns.
_MODULES = WeakIdKeyDictionary()


def fast(
    x_q: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    *,
    heads: int,
    w_o: torch.Tensor | None = None,
    b_q: torch.Tensor | None = None,
    b_k: torch.Tensor | None = None,
    b_v: torch.Tensor | None = None,
    b_o: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    kv_lengths: torch.Tensor | None = None,
    return_weights: bool = False,
    average_weights: bool = False,
) -> Any:
    """The output (B, S, E), and on request the weights, from the one kernel ``torch._native_multi_head_attention``.

    It is for self-attention on batch-first inputs without an additive mask, so x_kv, bias and sequence_first are not
    accepted.
    Raises NotImplementedError, with torch's reason, for a call that the module would send down its slow path.
    """
    for refused, reason in (
        (not torch.backends.mha.get_fastpath_enabled(), "torch.backends.mha.get_fastpath_enabled() was not True"),
        (x_q.ndim != 3, "the fast path is for batched input"),
        (b_q is None and b_k is None and b_v is None and b_o is None, "the fast path needs in_proj_bias"),
        (heads % 2 != 0, "the fast path needs an even number of heads"),
        (w_k.shape[0] != w_q.shape[1], "the fast path needs keys as wide as queries"),
        (torch.is_autocast_enabled(), "the fast path is not taken under autocast"),
    ):
        if refused:
            # "MHA will use fastpath inference with support for Nested Tensors, iff"
            raise NotImplementedError(reason)
    weights = (w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    padding, attending, hint = _masks(x_q, x_q, heads, False, mask, None, is_causal, kv_lengths)
    module = _module(heads, True, weights)
    with torch.no_grad():  # a condition of the fast path where an input requires a gradient
        found = module(
            x_q, x_q, x_q, padding, return_weights, attending, average_attn_weights=average_weights, is_causal=hint
        )
    return found if return_weights else found[0]


def slow(
    x_q: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    *,
    heads: int,
    x_kv: torch.Tensor | None = None,
    w_o: torch.Tensor | None = None,
    b_q: torch.Tensor | None = None,
    b_k: torch.Tensor | None = None,
    b_v: torch.Tensor | None = None,
    b_o: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    kv_lengths: torch.Tensor | None = None,
    sequence_first: bool = False,
    return_weights: bool = False,
    average_weights: bool = False,
    as_inputs: bool = False,
    hinting: bool = False,
) -> Any:
    """The output (B, Sq, E), and on request the weights, from ``torch.nn.functional.multi_head_attention_forward``.

    With weights requested that is a composition of products and a softmax, without it is scaled_dot_product_attention.
    The module's parameters are inputs of the call with ``as_inputs``.  With ``hinting``, is_causal is given together
    with the caller's own mask or bias; else the triangle is part of the one attn_mask.  Raises NotImplementedError for
    calls that the module cannot express.
    """
    weights = (w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    x_kv = x_q if x_kv is None else x_kv
    padding, attending, hint = _masks(x_q, x_kv, heads, sequence_first, mask, bias, is_causal, kv_lengths, hinting)
    arguments = (x_q, x_kv, x_kv, padding, return_weights, attending, average_weights, hint)
    with _fast_path_disabled():
        if as_inputs:
            module = _shape(heads, not sequence_first, weights)
            found = torch.func.functional_call(module, _state(weights), arguments)
        else:
            found = _module(heads, not sequence_first, weights)(*arguments)
    return found if return_weights else found[0]


@functools.wraps(slow, assigned=("__module__", "__annotations__"))
def functional(*arguments: torch.Tensor, **keywords: Any) -> Any:
    """``slow`` with the weights as inputs of the module instead of its parameters, for export and for gradients."""
    return slow(*arguments, **keywords, as_inputs=True)


@functools.wraps(slow, assigned=("__module__", "__annotations__"))
def hinted(*arguments: torch.Tensor, **keywords: Any) -> Any:
    """``slow`` called as many users do: their own mask as attn_mask, and is_causal for the triangle."""
    return slow(*arguments, **keywords, hinting=True)


def composed(
    x_q: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    *,
    heads: int,
    x_kv: torch.Tensor | None = None,
    w_o: torch.Tensor | None = None,
    b_q: torch.Tensor | None = None,
    b_k: torch.Tensor | None = None,
    b_v: torch.Tensor | None = None,
    b_o: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    kv_lengths: torch.Tensor | None = None,
    sequence_first: bool = False,
) -> torch.Tensor:
    """The output of ``functional`` with weights requested, as the module does by default, and then dropped."""
    given: dict[str, Any] = {"x_kv": x_kv, "w_o": w_o, "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o, "bias": bias}
    given |= {"mask": mask, "is_causal": is_causal, "kv_lengths": kv_lengths, "sequence_first": sequence_first}
    return slow(x_q, w_q, w_k, w_v, heads=heads, return_weights=True, as_inputs=True, **given)[0]


def _module(heads: int, batch_first: bool, weights: _Weights) -> Any:
    """The module that holds exactly these tensors' values, in evaluation mode, built where there is none."""
    first, *others = weights
    assert first is not None
    of = (heads, batch_first, _versions(weights), [other is None for other in others])
    if first in _MODULES:
        known, refs, module = _MODULES[first]
        if known == of and all(ref() is other for ref, other in zip(refs, others, strict=True)):
            return module
    module = _shape(heads, batch_first, weights).to_empty(device=first.device)
    module.load_state_dict(_state(weights))
    _MODULES[first] = of, [_weak(other) for other in others], module
    return module


def _weak(tensor: torch.Tensor | None) -> Callable[[], torch.Tensor | None]:
    """Weak reference to the tensor: an identity alone may belong to another tensor by then."""
    return (lambda: None) if tensor is None else weakref.ref(tensor)


def _shape(heads: int, batch_first: bool, weights: _Weights) -> Any:
    """A module of the shapes of the weights, its parameters without memory (and no random number drawn for them)."""
    w_q, w_k, w_v, w_o, *biases = weights
    assert w_q is not None
    assert w_k is not None
    assert w_v is not None
    if w_o is None:
        # "adds bias to input / output projection layers"
        raise NotImplementedError("the module always has an output projection")
    width = w_q.shape[0]
    if w_q.shape[1] != width:
        # "``embed_dim`` will be split across ``num_heads``"
        raise NotImplementedError("the module's heads together are as wide as the query input")
    if w_v.shape[1] != width or w_o.shape[1] != width:
        # "each head will have dimension ``embed_dim // num_heads``"
        raise NotImplementedError("the module's values and its output are as wide as the query input")
    module: Any = MultiheadAttention(
        width,
        heads,
        bias=any(b is not None for b in biases),
        kdim=w_k.shape[0],
        vdim=w_v.shape[0],
        batch_first=batch_first,
        device="meta",
        dtype=w_q.dtype,
    )
    return module.eval().requires_grad_(False)


def _state(weights: _Weights) -> dict[str, torch.Tensor]:
    """The module's state: weights transposed, as a Linear holds them, and packed where the inputs are equally wide."""
    w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = weights
    assert w_q is not None
    assert w_k is not None
    assert w_v is not None
    assert w_o is not None
    state = {"out_proj.weight": w_o.mT}
    if w_k.shape[0] == w_q.shape[1]:
        state["in_proj_weight"] = torch.cat((w_q, w_k, w_v), dim=1).mT
    else:
        state |= {"q_proj_weight": w_q.mT, "k_proj_weight": w_k.mT, "v_proj_weight": w_v.mT}
    if any(b is not None for b in (b_q, b_k, b_v, b_o)):
        zeros = w_q.new_zeros(w_q.shape[1])
        b_q, b_k, b_v, b_o = (zeros if b is None else b for b in (b_q, b_k, b_v, b_o))
        state |= {"in_proj_bias": torch.cat((b_q, b_k, b_v)), "out_proj.bias": b_o}
    return state


def _versions(weights: _Weights) -> tuple[int, ...]:
    """Number of times torch has changed each tensor in place; tensors of the inference mode do not count it."""
    return tuple(0 if w is None or w.is_inference() else w._version for w in weights)


def _masks(
    x_q: torch.Tensor,
    x_kv: torch.Tensor,
    heads: int,
    sequence_first: bool,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    is_causal: bool,
    kv_lengths: torch.Tensor | None,
    hinting: bool = False,
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """key_padding_mask, attn_mask and the hint is_causal.

    A mask (B, 1, 1, Sk) and the lengths become the first, any other mask, the bias and the triangle the second, for
    which there is one tensor, boolean or additive.  The hint is given where attn_mask is only the triangle: with it
    the module does not look at attn_mask.
    """
    axis = 0 if sequence_first else x_q.ndim - 2
    batch = 1 if x_q.ndim == 2 else x_q.shape[1 - axis]
    scores = (batch, heads, x_q.shape[axis], x_kv.shape[axis])
    padding = forbidden = None
    if kv_lengths is not None:
        padding = torch.arange(scores[3], device=x_q.device) >= kv_lengths.reshape(-1, 1)
    if mask is not None:
        forbidden = _aligned(~mask)
        if forbidden.shape == (batch, 1, 1, scores[3]):
            rows = forbidden[:, 0, 0]
            padding, forbidden = rows if padding is None else padding | rows, None
    if bias is not None and forbidden is not None:
        # "Binary and float masks are supported." and "their types should match."
        raise NotImplementedError(
            "attn_mask is boolean or additive, and key_padding_mask (B, Sk) is all there is beside it"
        )
    own = bias is not None or forbidden is not None
    hint = is_causal and (hinting or not own)
    attending = forbidden if bias is None else _aligned(bias)
    if is_causal and not (hinting and own):
        triangle = torch.ones(scores[2:], dtype=torch.bool, device=x_q.device).triu(diagonal=1)
        if bias is not None:
            attending = _aligned(bias).masked_fill(triangle, -math.inf)
        else:
            attending = _aligned(triangle) if forbidden is None else forbidden | triangle
    if padding is not None and bias is not None:  # the module wants both of one kind
        padding = torch.zeros_like(padding, dtype=bias.dtype).masked_fill(padding, -math.inf)
    if padding is not None and x_q.ndim == 2:
        padding = padding[0]
    if attending is not None:
        one = attending.shape[:2] == (1, 1)
        attending = attending[0, 0].expand(scores[2:]) if one else attending.expand(scores).reshape(-1, *scores[2:])
    return padding, attending, hint


def _aligned(array: torch.Tensor) -> torch.Tensor:
    """The array with axes of length 1 in front, as broadcasting to (B, H, Sq, Sk) puts them."""
    return array.reshape(*[1] * (4 - array.ndim), *array.shape)


@contextlib.contextmanager
def _fast_path_disabled() -> Iterator[None]:
    """Turn the module's switch off, and restore it afterwards."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
