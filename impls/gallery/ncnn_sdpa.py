"""ncnn's ``SDPA`` layer, in a net of that one layer."""

from __future__ import annotations

from typing import Any

import ncnn
import numpy as np

_nets: dict[Any, Any] = {}


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None) -> Any:
    """``5=1`` for a mask, which is added and of two or three axes; ``6`` is the scale; a sequence is a call."""
    if any(a.ndim != 4 for a in (q, k, v)) or not len(q):
        raise NotImplementedError("ncnn.Mat has up to three axes, and no batch: a sequence is a call")
    if not len(q) == len(k) == len(v):
        raise ValueError("q, k and v differ in batch, which ncnn does not see")
    if mask is not None and bias is not None:
        raise NotImplementedError("attn_mask")
    added = bias if mask is None else np.where(mask, np.float32(0), np.float32(-np.inf))  # as pnnx passes one on
    if added is not None:
        shape = (q.shape[0], *((1,) * (4 - added.ndim) + added.shape)[1:2], q.shape[2], k.shape[2])
        added = np.broadcast_to(added, shape)
    net = _net(added is not None, scale)
    found = []
    for b in range(q.shape[0]):
        extractor = net.create_extractor()
        extractor.set_light_mode(True)
        given = [q[b], k[b], v[b], *([added[b]] if added is not None else [])]
        arrays = [np.ascontiguousarray(each) for each in given]  # a Mat is a view of its array
        for name, each in zip("qkvm", arrays, strict=False):
            extractor.input(name, ncnn.Mat(each))
        status, out = extractor.extract("out")
        if status != 0:
            raise RuntimeError(f"extract returned {status}")
        found.append(np.array(out))
    return np.stack(found)


def _net(has_mask: bool, scale: float | None) -> Any:
    """The net, in single precision throughout."""
    if (has_mask, scale) not in _nets:
        names = "qkvm" if has_mask else "qkv"
        options = f" 5={int(has_mask)}" + ("" if scale is None else f" 6={scale:e}")
        lines = [f"Input {name} 0 1 {name}" for name in names]
        lines.append(f"SDPA sdpa {len(names)} 1 {' '.join(names)} out{options}")
        net = ncnn.Net()
        net.opt.num_threads = 1
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        net.opt.use_bf16_storage = False
        net.load_param_mem("\n".join(["7767517", f"{len(lines)} {len(names) + 1}", *lines, ""]))
        net.load_model(ncnn.DataReaderFromEmpty())
        _nets[has_mask, scale] = net
    return _nets[has_mask, scale]


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
