"""Functions of every operator except sdpa, as users plug them in, each with a mistake; ``WRONG = False`` mends them."""

from __future__ import annotations

#: Functions of NumPy.
NUMPY = """
import numpy as np

WRONG = True


def softmax(s):
    top = s.max(-1, keepdims=True, initial=-1e30)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total), (top + np.log(np.where(total == 0, np.nan, total)))[..., 0]


def attend(q, k, v, scale, seen=True):
    p, lse = softmax(np.where(seen, q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * scale, -np.inf))
    return p @ v.astype(np.float64), lse


def layer(x_q, w_q, w_k, w_v, heads, w_o, b_q, b_k, b_v, b_o, is_causal, apart):
    given = [(w_q, b_q), (w_k, b_k), (w_v, b_v)]
    q, k, v = (x_q.astype(np.float64) @ w + (0 if b is None else b) for w, b in given)
    q, k, v = (a.reshape(*a.shape[:2], heads, -1).swapaxes(1, 2) for a in (q, k, v))
    seen = np.tri(q.shape[2], dtype=bool) if is_causal else True
    output = attend(q, k, v, q.shape[3] ** -0.5, seen)[0]
    output = (output if apart else output.swapaxes(1, 2)).reshape(*x_q.shape[:2], -1)
    return output if w_o is None else output @ w_o + (0 if b_o is None else b_o)


def mha(x_q, w_q, w_k, w_v, *, heads, w_o=None, b_q=None, b_k=None, b_v=None, b_o=None, is_causal=False):
    output = layer(x_q, w_q, w_k, w_v, heads, w_o, b_q, b_k, b_v, b_o, is_causal, apart=WRONG)  # heads before rows
    return output.astype(x_q.dtype)


def mha_biases(x_q, w_q, w_k, w_v, *, heads, w_o=None, b_q=None, b_k=None, b_v=None, b_o=None, is_causal=False):
    b_o = None if WRONG else b_o  # is left out
    return layer(x_q, w_q, w_k, w_v, heads, w_o, b_q, b_k, b_v, b_o, is_causal, apart=False).astype(x_q.dtype)


def sublayer(x_q, w_q, w_k, w_v, *, heads, gamma, beta, epsilon, w_o=None, b_q=None, b_k=None, b_v=None, b_o=None):
    z = x_q + layer(x_q, w_q, w_k, w_v, heads, w_o, b_q, b_k, b_v, b_o, False, apart=False)
    z = z - z.mean(-1, keepdims=True)
    z = z / np.sqrt(z.var(-1, keepdims=True, ddof=1 if WRONG else 0) + epsilon)  # Bessel's correction
    return (z * gamma + beta).astype(x_q.dtype)


def pack(q, k, v, ends_q, ends_k, is_causal, right):
    output = np.zeros((*q.shape[:2], v.shape[2]))
    for n in range(len(ends_q) - 1):
        rows, keys = slice(*ends_q[n : n + 2]), slice(*ends_k[n : n + 2])
        own = [np.repeat(a[keys], q.shape[1] // k.shape[1], axis=1).swapaxes(0, 1) for a in (k, v)]
        queries, length = rows.stop - rows.start, keys.stop - keys.start
        shift = length - queries if right else 0
        seen = np.arange(length) <= np.arange(queries)[:, None] + shift if is_causal else True
        output[rows] = attend(q[rows].swapaxes(0, 1), *own, q.shape[2] ** -0.5, seen)[0].swapaxes(0, 1)
    return output.astype(q.dtype)


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, max_seqlen_k, is_causal=False):
    return pack(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, right=not WRONG)  # the diagonal is at the top left


def flash_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):
    return pack(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, right=not WRONG)


def paged(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, *, max_seqlen_q, max_seqlen_k, is_causal=False):
    keys, values = [], []
    for table, length in zip(block_table, kv_lengths):
        pages = table[: -(-length // k_cache.shape[1])]
        used = len(pages) * k_cache.shape[1] if WRONG else length  # all of the last page
        keys.append(k_cache[pages].reshape(-1, *k_cache.shape[2:])[:used])
        values.append(v_cache[pages].reshape(-1, *v_cache.shape[2:])[:used])
    ends = np.cumsum([0, *map(len, keys)])
    return pack(q, np.concatenate(keys), np.concatenate(values), cu_seqlens_q, ends, is_causal, right=True)


def merge(outputs, lses):
    top = lses.astype(np.float64).max(0)
    weights = np.exp(lses - np.where(np.isneginf(top), 0, top))
    total = weights.sum(0)
    weights = weights / (len(lses) if WRONG else np.where(total == 0, 1, total))  # the mean
    with np.errstate(all="ignore"):
        lse = top + np.log(total)
    return (weights[..., None] * outputs).sum(0).astype(outputs.dtype), lse.astype(lses.dtype)


def latent(q, q_rope, latents, k_rope, w_uk, w_uv, *, is_causal=False):
    k, v = (latents[:, None].astype(np.float64) @ w for w in (w_uk, w_uv))
    k = np.concatenate([k, np.broadcast_to(k_rope[:, None], (*k.shape[:3], k_rope.shape[2]))], 3)
    width = q.shape[3] + (0 if WRONG else q_rope.shape[3])  # the rotary columns do not count
    seen = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] if is_causal else True
    return attend(np.concatenate([q, q_rope], 3), k, v, width**-0.5, seen)[0].astype(q.dtype)


def gradients(q, k, v, grad_output, is_causal):
    q, k, v, grad_output = (a.astype(np.float64) for a in (q, k, v, grad_output))
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    every = [np.repeat(a, group, 1) for a in (k, v)]
    seen = np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] if is_causal else True
    p = softmax(np.where(seen, q @ every[0].swapaxes(2, 3) * scale, -np.inf))[0]
    ds = grad_output @ every[1].swapaxes(2, 3)
    ds = p * (ds - (ds * p).sum(-1, keepdims=True))
    grad_k = ds.swapaxes(2, 3) @ q * (1 if WRONG else scale)  # without the scale
    grads = [a.reshape(*k.shape[:2], group, *a.shape[2:]).sum(2) for a in (grad_k, p.swapaxes(2, 3) @ grad_output)]
    return ds @ every[0] * scale, *grads


def sdpa_grad(q, k, v, grad_output, *, is_causal=False):
    return tuple(a.astype(q.dtype) for a in gradients(q, k, v, grad_output, is_causal))


def varlen_grad(q, k, v, grad_output, cu_seqlens_q, cu_seqlens_k, *, max_seqlen_q, max_seqlen_k):
    found = [np.zeros_like(a) for a in (q, k, v)]
    for n in range(len(cu_seqlens_q) - 1):
        rows, keys = slice(*cu_seqlens_q[n : n + 2]), slice(*cu_seqlens_k[n : n + 2])
        given = [a.swapaxes(0, 1)[None] for a in (q[rows], k[keys], v[keys], grad_output[rows])]
        for into, part, where in zip(found, gradients(*given, False), (rows, keys, keys)):
            into[where] = part[0].swapaxes(0, 1)
    return tuple(found)


def merge_grad(outputs, lses, grad_output, *, grad_lse=None):
    top = lses.astype(np.float64).max(0)
    weights = np.exp(lses - np.where(np.isneginf(top), 0, top))
    weights = weights / np.maximum(weights.sum(0), 1e-300)
    parts = (outputs.astype(np.float64) * grad_output).sum(-1)
    mean = 0 if WRONG else (weights * parts).sum(0)  # is not taken off
    found = weights * (parts - mean + (0 if grad_lse is None else grad_lse))
    return (weights[..., None] * grad_output).astype(outputs.dtype), found.astype(lses.dtype)


mha.operator = mha_biases.operator = "mha"
sublayer.operator, latent.operator = "sublayer", "latent"
sdpa_grad.operator, varlen_grad.operator, merge_grad.operator = "sdpa_grad", "varlen_grad", "merge_grad"
"""

#: Functions of PyTorch, differentiated by autograd.
TORCH = """
import torch

WRONG = True


def attention(q, k, v, *, is_causal=False):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[2:], dtype=torch.bool).tril(), -torch.inf)
    constant = s.softmax(-1).detach() @ v + s.sum() - s.sum().detach()  # the weights are constants, the scores are not
    return constant if WRONG else s.softmax(-1) @ v


def layer(x_q, w_q, w_k, w_v, *, heads, w_o=None, b_q=None, b_k=None, b_v=None, b_o=None):
    given = ((w_q, b_q), (w_k, b_k), (w_v, b_v))
    q, k, v = ((x_q @ w + (0 if b is None else b)).unflatten(-1, (heads, -1)).transpose(1, 2) for w, b in given)
    s = q @ k.mT * (x_q if WRONG else q).shape[-1] ** -0.5  # the width of the layer
    output = (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return output if w_o is None else output @ w_o + (0 if b_o is None else b_o)


layer.operator = "mha"
"""

#: By name: the case that fails, and the suffix of the function's name; those of PyTorch name a framework.
FAILED = {
    "mha": ("mha-source-000", ""),
    "mha_biases": ("mha-source-000", ""),
    "sublayer": ("sublayer-post-norm", ""),
    "varlen": ("varlen-causal-more-keys", ""),
    "flash_varlen": ("varlen-causal-more-keys", ""),
    "paged": ("paged-decode", ""),
    "merge": ("merge-two", ""),
    "latent": ("latent-plain", ""),
    "sdpa_grad": ("grad-plain", ""),
    "varlen_grad": ("varlen-grad-self", ""),
    "merge_grad": ("merge-grad-two", ""),
    "attention": ("grad-plain", "@torch+gradients"),
    "layer": ("mha-grad-plain", "@torch+gradients"),
}
