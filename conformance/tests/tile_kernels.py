"""Kernels of half precision, widths 64 and 128 and tiles of 128, each with a mistake; ``WRONG = False`` mends them.

``bias_zeros`` has two mistakes, of which drawn numbers show only one; ``MENDED = ("bias",)`` mends that one.
"""

from __future__ import annotations

#: A user's file: one function for each mistake, and the code that they share.
TILE_KERNELS = """
import numpy as np

WRONG = True
MENDED = ()
TILE = 128


def wrong(name, this):
    return WRONG and name in this.split("_") and name not in MENDED


def kernel(this, q, k, v, is_causal=False, scale=None, mask=None, bias=None, kv_lengths=None, softcap=None,
           window=None, return_lse=False):
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    b, hq, sq, d = q.shape
    hkv, sk = k.shape[1:3]
    heads = np.arange(hq) % hkv if wrong("heads", this) else np.arange(hq) // (hq // hkv)
    k, v = k[:, heads], v[:, heads]
    i, j = np.arange(sq)[:, None], np.arange(sk)
    seen = np.ones((b, hq, sq, sk), bool)
    if is_causal:
        seen &= j <= i + (1 if wrong("causal", this) else 0)
    if window is not None:
        left, right = window
        seen &= True if left is None else j >= i - left - (1 if wrong("window", this) else 0)
        seen &= True if right is None else j <= i + right
    if mask is not None:
        given = np.broadcast_to(mask, seen.shape).copy()
        if wrong("mask", this):
            given[..., TILE:] = given[..., :1]
        seen &= given
    if kv_lengths is not None:
        seen &= j < kv_lengths[:, None, None, None] + (1 if wrong("lengths", this) else 0)
    factor = 1 / np.sqrt(d) if scale is None else scale
    if wrong("scale", this):
        factor = 1 / np.sqrt(2 * d)
    s = q @ k.swapaxes(2, 3) * factor
    if wrong("zeros", this):
        seen &= s != 0
    if softcap is not None and not wrong("softcap", this):
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias * (factor if wrong("bias", this) else 1)
    s = np.where(seen, s, -np.inf)
    top = np.full((b, hq, sq, 1), -np.inf)
    total, output = np.zeros_like(top), np.zeros((b, hq, sq, v.shape[3]))
    with np.errstate(all="ignore"):
        for first in range(0, sk, TILE):
            part = s[..., first : first + TILE]
            new = np.maximum(top, part.max(3, keepdims=True))
            base = np.where(np.isneginf(new), 0, new)
            p = np.exp(part - base)
            keep = 1 if wrong("rescale", this) else np.exp(top - base)
            total = total * keep + p.sum(3, keepdims=True)
            output = output * keep + p @ v[:, :, first : first + TILE]
            top = new
        lse = (top + np.log(total))[..., 0]
        output = output / (total if wrong("empty", this) else np.where(total == 0, 1, total))
    lse = lse / np.log(2) if wrong("lse", this) else lse
    output = output.astype(np.float16)
    return (output, lse.astype(np.float32)) if return_lse else output


def declared(this):
    def attention(q, k, v, *, is_causal=False, scale=None, mask=None, bias=None, kv_lengths=None, softcap=None,
                  window=None, return_lse=False):
        return kernel(this, q, k, v, is_causal, scale, mask, bias, kv_lengths, softcap, window, return_lse)

    attention.dtypes = ["float16"]
    attention.lengths = "multiple of 128"
    attention.head_widths = [64, 128]
    attention.equal_widths = True
    return attention


causal, scale, softcap, bias, heads = map(declared, ("causal", "scale", "softcap", "bias", "heads"))
window, mask, lengths, rescale, empty, lse = map(declared, ("window", "mask", "lengths", "rescale", "empty", "lse"))
bias_zeros = declared("bias_zeros")
"""

#: The functions of the file, and the smallest case that each fails.
FIRST = {
    "causal": "kernel-square-causal-1x1x1-q64-k64-d32-float32",
    "scale": "kernel-square-bias-1x1x1-q64-k64-d256-float32",
    "softcap": "kernel-decode-causal-softcap-1x1x1-q8-k129-d64-float32",
    "bias": "kernel-square-bias-1x1x1-q64-k64-d256-float32",
    "heads": "heads-grouped-tiles",
    "window": "kernel-decode-causal-window-1x1x1-q8-k129-d64-bfloat16",
    "mask": "kernel-edges-mask-1x1x1-q8-k255-d32-lse-float32",
    "lengths": "kernel-square-lengths-1x2x1-q128-k128-d32-lse-float16",
    "rescale": "kernel-decode-bias-1x1x1-q8-k129-d64-float32",
    "empty": "kernel-square-causal-mask-1x1x1-q65-k65-d64-float32",
    "lse": "kernel-square-bias-1x1x1-q65-k65-d32-lse-float32",
}
