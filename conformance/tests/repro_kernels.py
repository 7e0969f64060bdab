"""Functions as users plug them in, each with a mistake that ``WRONG = False`` in its file mends."""

from __future__ import annotations

#: One NumPy function for each way to fail.
KERNELS = """
import os, time
import numpy as np

WRONG = True
CALLS = 0


def right(q, k, v, scale=None):
    if k.shape[2] != v.shape[2]:
        raise ValueError("k and v differ in length")
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    top = s.max(3, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(3, keepdims=True)
    return (p / total @ v.astype(np.float64)).astype(q.dtype), (top + np.log(total))[..., 0]


def by_value(q, k, v, *, scale=None):
    return right(q, k, v, 1 / q.shape[3] if WRONG else scale)[0]


def by_nan(q, k, v):
    output = right(q, k, v)[0]
    output[0, 0, 0, 0] = np.nan if WRONG else output[0, 0, 0, 0]
    return output


def by_lse(q, k, v, *, return_lse=False):
    output, lse = right(q, k, v)
    return (output, (lse / np.log(2) if WRONG else lse).astype(np.float32)) if return_lse else output


def by_shape(q, k, v):
    output = right(q, k, v)[0]
    return output.transpose(0, 2, 1, 3) if WRONG else output


def by_dtype(q, k, v):
    output = right(q, k, v)[0]
    return output.astype(np.float64) if WRONG else output


def by_error(q, k, v):
    if WRONG:
        raise RuntimeError("no kernel")
    return right(q, k, v)[0]


def by_list(q, k, v):
    output = right(q, k, v)[0]
    return output.tolist() if WRONG else output


def by_count(q, k, v, *, return_lse=False):
    output, lse = right(q, k, v)
    return (output, lse.astype(np.float32)) if return_lse and not WRONG else output


def by_accepting(q, k, v):
    return np.zeros_like(q) if WRONG else right(q, k, v)[0]


def by_modifying(q, k, v):
    output = right(q, k, v)[0]
    q *= 0.5 if WRONG else 1
    return output


def by_chance(q, k, v):
    global CALLS
    CALLS += WRONG
    output = right(q, k, v)[0]
    return np.nextafter(output, np.float32(9)) if CALLS % 2 else output


def by_memory(q, k, v, *, scale=None, before=[None]):
    used = before[0] if WRONG and scale is None else scale
    before[0] = scale
    return right(q, k, v, used)[0]


def by_strides(q, k, v):
    flat = np.lib.stride_tricks.as_strided(k, strides=np.zeros_like(k, order="C").strides) if WRONG else k
    return right(q, flat, v)[0]


def by_dying(q, k, v):
    if WRONG:
        os.abort()
    return right(q, k, v)[0]


def by_hanging(q, k, v):
    while WRONG:
        time.sleep(0.1)
    return right(q, k, v)[0]
"""

#: One mistake each in the other frameworks.
TORCH = """
import torch

WRONG = True


def attention(q, k, v, *, is_causal=False):  # (B, S, H, D)
    q, k, v = (a.transpose(1, 2).float() for a in (q, k, v))
    s = q @ k.mT * q.shape[3] ** -0.5
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[2:], dtype=torch.bool).tril(1 if WRONG else 0), -torch.inf)
    return (s.softmax(3) @ v).transpose(1, 2).bfloat16()
"""
JAX = """
import jax.numpy as jnp

WRONG = True


def attention(q, k, v, *, kv_lengths=None):
    s = jnp.einsum("bhid,bhjd->bhij", q, k) * q.shape[3] ** -0.5
    if kv_lengths is not None:
        last = kv_lengths[:, None, None, None] - (0 if WRONG else 1)
        s = jnp.where(jnp.arange(k.shape[2]) <= last, s, -jnp.inf)
    p = jnp.exp(s - s.max(3, keepdims=True))
    return p / p.sum(3, keepdims=True) @ v
"""
ORT = """
import numpy as np
import onnxruntime

WRONG = True


def attention(q, k, v):
    q, k, v = (a.numpy().astype(np.float64) for a in (q, k, v))
    s = q @ k.swapaxes(2, 3) * (1 / q.shape[3] if WRONG else q.shape[3] ** -0.5)
    p = np.exp(s - s.max(3, keepdims=True))
    output = (p / p.sum(3, keepdims=True) @ v).astype(np.float32)
    return onnxruntime.OrtValue.ortvalue_from_numpy(output, "cpu")
"""

#: One mistake each in multi-head layers: heads combined unswapped, a transposed weight, no bias, a wrong scale.
NUMPY_LAYER = """
import numpy as np

WRONG = True


def layer(x_q, w_q, w_k, w_v, *, heads, w_o, b_q, b_k, b_v, b_o):
    q, k, v = ((x_q @ w + b).reshape(*x_q.shape[:2], heads, -1).swapaxes(1, 2)
               for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]).astype(q.dtype)
    p = np.exp(s - s.max(3, keepdims=True))
    output = p / p.sum(3, keepdims=True) @ v
    return (output if WRONG else output.swapaxes(1, 2)).reshape(x_q.shape) @ w_o + b_o


layer.operator = "mha"
"""
TORCH_LAYER = """
import torch

WRONG = True


def layer(x_q, w_q, w_k, w_v, *, heads, w_o, b_q, b_k, b_v, b_o, mask=None, return_weights=False):
    q, k, v = (torch.nn.functional.linear(x_q, w if WRONG else w.mT, b).unflatten(-1, (heads, -1)).transpose(1, 2)
               for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    s = q @ k.mT * q.shape[3] ** -0.5
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    p = s.softmax(3).nan_to_num(0)
    output = (p @ v).transpose(1, 2).flatten(2) @ w_o + b_o
    return (output, p) if return_weights else output


layer.operator = "mha"
"""
JAX_LAYER = """
import jax.numpy as jnp

WRONG = True


def layer(x_q, w_q, w_k, w_v, *, heads, gamma, beta, epsilon, w_o, b_q, b_k, b_v, b_o, kv_lengths=None):
    q, k, v = ((x_q @ w + b).reshape(*x_q.shape[:2], heads, -1).swapaxes(1, 2)
               for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    s = jnp.einsum("bhid,bhjd->bhij", q, k) * q.shape[3] ** -0.5
    if kv_lengths is not None:
        s = jnp.where(jnp.arange(s.shape[3]) < kv_lengths[:, None, None, None], s, -jnp.inf)
    p = jnp.exp(s - jnp.maximum(s.max(3, keepdims=True), -1e30))
    p = p / jnp.maximum(p.sum(3, keepdims=True), 1e-30)
    z = x_q + (p @ v).swapaxes(1, 2).reshape(x_q.shape) @ w_o + (0 if WRONG else b_o)
    z = z - z.mean(2, keepdims=True)
    return z / jnp.sqrt((z**2).mean(2, keepdims=True) + epsilon) * gamma + beta


layer.operator = "sublayer"
"""
ORT_LAYER = """
import numpy as np
import onnxruntime

WRONG = True


def layer(x_q, w_q, w_k, w_v, *, heads, w_o, b_q, b_k, b_v, b_o):
    x_q, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = (
        a.numpy().astype(np.float64) for a in (x_q, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    )
    q, k, v = ((x_q @ w + b).reshape(*x_q.shape[:2], heads, -1).swapaxes(1, 2)
               for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    s = q @ k.swapaxes(2, 3) * (x_q.shape[2] ** -0.5 if WRONG else q.shape[3] ** -0.5)
    p = np.exp(s - s.max(3, keepdims=True))
    output = (p / p.sum(3, keepdims=True) @ v).swapaxes(1, 2).reshape(x_q.shape) @ w_o + b_o
    return onnxruntime.OrtValue.ortvalue_from_numpy(output.astype(np.float32), "cpu")


layer.operator = "mha"
"""

#: By name: the framework, the source, the function's attributes, the case and the dtype.
FRAMEWORKS: dict[str, tuple[str, str, dict[str, str], str, str]] = {
    "torch": ("torch", TORCH, {"layout": "BSHD"}, "causal-square", "bfloat16"),
    "jax": ("jax", JAX, {}, "lengths", "float64"),
    "onnxruntime": ("onnxruntime", ORT, {}, "plain", "float32"),
    "numpy-layer": ("numpy", NUMPY_LAYER, {"operator": "mha"}, "mha-plain", "float16"),
    "torch-layer": ("torch", TORCH_LAYER, {"operator": "mha", "layout": "BSHD"}, "mha-weights-mask", "float32"),
    "jax-sublayer": ("jax", JAX_LAYER, {"operator": "sublayer"}, "sublayer-lengths", "float32"),
    "onnxruntime-layer": ("onnxruntime", ORT_LAYER, {"operator": "mha"}, "mha-memory-inner", "float32"),
}
