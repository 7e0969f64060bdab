"""``torch.nn.MultiheadAttention`` in a script: the module with its parameters set, and the masks as it wants them.

Writes what impls.torch.modules does for one call, with its shapes known.  Only text: torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from impls.contract import Call
from impls.operators import OPERATORS
from impls.script import INDENT, applied, enclosed

IMPORTS = ("from torch.nn import MultiheadAttention",)

_BIASES = ("b_q", "b_k", "b_v", "b_o")

#: On these paths the weights are inputs of the module; on the others they are parameters.
_COMPOSED = "composed"
_FUNCTIONAL = ("functional", _COMPOSED)


@dataclass(frozen=True)
class _Sizes:
    """Axes of the scores, and whether there is a batch axis."""

    batch: int
    heads: int
    queries: int
    keys: int
    batched: bool

    @property
    def scores(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.queries, self.keys


def definition(path: str, call: Call) -> list[str]:
    """The function ``mha`` of the call's arrays.  Raises NotImplementedError for what the module cannot express."""
    _check(path, call)
    names = (*OPERATORS[call.operator].arguments, *call.arrays)
    masks, given = _masks(call, _sizes(call))
    weights = bool(call.static.get("return_weights"))
    if not weights and path != _COMPOSED:
        given["need_weights"] = "False"
    elif weights and not call.static.get("average_weights"):
        given["average_attn_weights"] = "False"
    source = "x_kv" if "x_kv" in names else "x_q"
    lines = [
        *(["torch.backends.mha.set_fastpath_enabled(False)", "", ""] if path != "fast" else ["@torch.no_grad()"]),
        f"def mha({', '.join(names)}):",
        applied("MultiheadAttention", _module(path, call), 1, "module = "),
        f"{INDENT}module.eval().requires_grad_(False)",
        *_state(call),
        *(f"{INDENT}{line}" for line in masks),
    ]
    before = "output, weights = " if weights else "output, _ = "
    if path in _FUNCTIONAL:
        keywords = [f'"{name}": {value}' for name, value in given.items()]
        arguments = ["module", "state", f"(x_q, {source}, {source})", f"{{{', '.join(keywords)}}}"]
        lines.append(applied("torch.func.functional_call", arguments, 1, before))
    else:
        keywords = [f"{name}={value}" for name, value in given.items()]
        lines.append(f"{INDENT}module.load_state_dict(state)")
        lines.append(applied("module", ["x_q", source, source, *keywords], 1, before))
    return [*lines, f"{INDENT}return output, weights" if weights else f"{INDENT}return output"]


def _check(path: str, call: Call) -> None:
    """What the adapter refuses by the shapes alone."""
    arrays = ("x_q", "w_q", "w_k", "w_v", *call.arrays)
    if "w_o" not in arrays:
        raise NotImplementedError("the module always has an output projection")
    width = call.shape("w_q")[0]
    if not width == call.shape("w_q")[1] == call.shape("w_v")[1] == call.shape("w_o")[1]:
        raise NotImplementedError("the module's heads, values and output are as wide as the query input")
    if path == "fast" and ("bias" in arrays or "x_kv" in arrays or not set(_BIASES) & set(arrays)):
        raise NotImplementedError("the fast path is for self-attention with in_proj_bias and without additive masks")


def _sizes(call: Call) -> _Sizes:
    x_q, x_kv = call.shape("x_q"), call.shape("x_kv" if "x_kv" in call.arrays else "x_q")
    heads = call.static["heads"]
    if len(x_q) == 2:
        return _Sizes(1, heads, x_q[0], x_kv[0], batched=False)
    axis = 0 if call.static.get("sequence_first") else 1
    return _Sizes(x_q[1 - axis], heads, x_q[axis], x_kv[axis], batched=True)


def _module(path: str, call: Call) -> list[str]:
    """The arguments of the module."""
    width = call.shape("w_q")[0]
    inputs = {"kdim": call.shape("w_k")[0], "vdim": call.shape("w_v")[0]}
    found = [str(width), str(call.static["heads"])]
    found += [] if set(_BIASES) & set(call.arrays) else ["bias=False"]
    found += [f"{name}={size}" for name, size in inputs.items() if size != width]
    found += [] if call.static.get("sequence_first") else ["batch_first=True"]
    device = "meta" if path in _FUNCTIONAL else call.device  # a module that is given its parameters needs none itself
    found += [f'device="{device}"'] if device != "cpu" else []
    return [*found, *([f"dtype=torch.{call.dtype}"] if call.dtype != "float32" else [])]


def _state(call: Call) -> list[str]:
    """The module's state: weights transposed, as a Linear holds them, and packed where the inputs are equally wide."""
    if call.shape("w_k")[0] == call.shape("w_q")[1]:
        state = {"in_proj_weight": "torch.cat((w_q, w_k, w_v), dim=1).mT"}
    else:
        state = {f"{name[2:]}_proj_weight": f"{name}.mT" for name in ("w_q", "w_k", "w_v")}
    state["out_proj.weight"] = "w_o.mT"
    lines = []
    if set(_BIASES) & set(call.arrays):
        zeros = [name for name in _BIASES if name not in call.arrays]  # what the module starts with
        if zeros:
            lines.append(f"{INDENT}{' = '.join(zeros)} = x_q.new_zeros({call.shape('w_q')[0]})")
        state |= {"in_proj_bias": "torch.cat((b_q, b_k, b_v))", "out_proj.bias": "b_o"}
    items = [f'"{name}": {value}' for name, value in state.items()]
    return [*lines, enclosed("state = {", items, "}", depth=1)]


def _masks(call: Call, sizes: _Sizes) -> tuple[list[str], dict[str, str]]:
    """The statements that make key_padding_mask and attn_mask, and these and the hint as the module's keywords.

    As in impls.torch.modules: a mask (B, 1, 1, Sk) and the lengths are the first, any other mask, the bias and the
    triangle the second.
    """
    device = "" if call.device == "cpu" else f', device="{call.device}"'
    mask = call.shape("mask") if "mask" in call.arrays else None
    rows = mask is not None and _aligned(mask) == (sizes.batch, 1, 1, sizes.keys)
    additive = "bias" in call.arrays
    if additive and mask is not None and not rows:
        raise NotImplementedError("attn_mask is boolean or additive")
    padding = [f"torch.arange({sizes.keys}{device}) >= kv_lengths[:, None]"] if "kv_lengths" in call.arrays else []
    padding += [f"~mask.reshape({sizes.batch}, {sizes.keys})"] if rows else []
    lines: list[str] = []
    given: dict[str, str] = {}
    if padding:
        lines.append(f"key_padding_mask = {_either(padding)}")
        lines += [] if sizes.batched else ["key_padding_mask = key_padding_mask[0]"]
        given["key_padding_mask"] = "key_padding_mask"
    if padding and additive:  # the module wants both of one kind
        lines.append("zeros = torch.zeros_like(key_padding_mask, dtype=bias.dtype)")
        lines.append("key_padding_mask = zeros.masked_fill(key_padding_mask, -torch.inf)")
    attending: list[str] = []
    shape: tuple[int, ...] = sizes.scores[2:]
    if additive or (mask is not None and not rows):
        attending, shape = (["bias"], call.shape("bias")) if additive else (["~mask"], mask or ())
    if call.static.get("is_causal"):
        given |= {} if attending else {"is_causal": "True"}  # the hint, where attn_mask is the triangle alone
        triangle = f"torch.ones({sizes.queries}, {sizes.keys}, dtype=torch.bool{device}).triu(diagonal=1)"
        attending = [f"bias.masked_fill({triangle}, -torch.inf)"] if additive else [*attending, triangle]
        shape = (*shape[:-2], *(max(pair) for pair in zip(_aligned(shape)[2:], sizes.scores[2:], strict=True)))
    if attending:
        lines.append(f"attn_mask = {_either(attending)}")
        lines += [f"attn_mask = attn_mask{_reshaped(shape, sizes)}"] if _reshaped(shape, sizes) else []
        given["attn_mask"] = "attn_mask"
    return lines, given


def _reshaped(shape: tuple[int, ...], sizes: _Sizes) -> str:
    """What makes a mask of a shape one of (Sq, Sk) or of (B · H, Sq, Sk)."""
    if _aligned(shape)[:2] == (1, 1):
        rows = _aligned(shape)[2:]
        reshape = "" if len(shape) == len(rows) else f".reshape{rows}"
        return reshape if rows == sizes.scores[2:] else f"{reshape}.expand{sizes.scores[2:]}"
    return f"{'' if shape == sizes.scores else f'.expand{sizes.scores}'}.flatten(0, 1)"


def _either(parts: Sequence[str]) -> str:
    """Where any of some masks is true."""
    return " | ".join(f"({part})" if " >= " in part else part for part in parts) if len(parts) > 1 else parts[0]


def _aligned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With axes of length 1 in front, as broadcasting to (B, H, Sq, Sk) puts them."""
    return (1,) * (4 - len(shape)) + shape
