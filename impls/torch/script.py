"""Scripts in PyTorch: tensors, the library's attention and its modules called as the adapters here call them.

Only text: torch is not imported.  For a module, a script has what ``modules.py`` does for one call, whose shapes are
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.impls.contract import Call
from attention_conformance.impls.memory_layouts import GUARD
from attention_conformance.impls.numpy.script import first_entries
from attention_conformance.impls.operators import MERGE_GRAD, OPERATORS
from attention_conformance.impls.script import (
    CARRIED,
    INDENT,
    WIDTH,
    Given,
    Snippet,
    Terms,
    Writer,
    applied,
    assign_each,
    assigned,
    by_contract,
    by_source,
    enclosed,
    leaves,
)

IMPORTS = ("from torch.nn import MultiheadAttention",)

_BIASES = ("b_q", "b_k", "b_v", "b_o")

#: On these paths the weights are inputs of the module; on the others they are parameters.
_COMPOSED = "composed"
_FUNCTIONAL = ("functional", _COMPOSED)

#: Array keywords of a step of decoding.
_PAST = ["past_key", "past_value"]

#: Where the name of a kernel comes from.
_KERNELS = "from torch.nn.attention import SDPBackend, sdpa_kernel"


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
    masks, given = _masks(call, _sizes(call), hinting=path == "hinted")
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
    """Refuse the calls that the adapter refuses by shapes only."""
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


def _masks(call: Call, sizes: _Sizes, hinting: bool = False) -> tuple[list[str], dict[str, str]]:
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
    if call.static.get("is_causal") and (hinting or not attending):
        given["is_causal"] = "True"  # the hint, where attn_mask is only the triangle
    if call.static.get("is_causal") and not (hinting and attending):
        triangle = f"torch.ones({sizes.queries}, {sizes.keys}, dtype=torch.bool{device}).triu(diagonal=1)"
        attending = [f"bias.masked_fill({triangle}, -torch.inf)"] if additive else [*attending, triangle]
        shape = (*shape[:-2], *(max(pair) for pair in zip(_aligned(shape)[2:], sizes.scores[2:], strict=True)))
    if attending:
        lines.append(f"attn_mask = {_either(attending)}")
        lines += [f"attn_mask = attn_mask{_reshaped(shape, sizes)}"] if _reshaped(shape, sizes) else []
        given["attn_mask"] = "attn_mask"
    return lines, given


def _reshaped(shape: tuple[int, ...], sizes: _Sizes) -> str:
    """Expression that makes a mask of a shape one of (Sq, Sk) or of (B · H, Sq, Sk)."""
    if _aligned(shape)[:2] == (1, 1):
        rows = _aligned(shape)[2:]
        reshape = "" if len(shape) == len(rows) else f".reshape{rows}"
        return reshape if rows == sizes.scores[2:] else f"{reshape}.expand{sizes.scores[2:]}"
    return f"{'' if shape == sizes.scores else f'.expand{sizes.scores}'}.flatten(0, 1)"


def _either(parts: Sequence[str]) -> str:
    """Expression for where any of some masks is true."""
    return " | ".join(f"({part})" if " >= " in part else part for part in parts) if len(parts) > 1 else parts[0]


def _aligned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape with axes of length 1 in front, as broadcasting to (B, H, Sq, Sk) puts them."""
    return (1,) * (4 - len(shape)) + shape


def put(arrays: Sequence[Given], memory: str, device: str) -> list[str]:
    """Tensors on the device, and then their layout in memory (impls.memory_layouts) in torch's terms."""
    moved = "" if device == "cpu" else f'.to("{device}")'
    cast = {dtype: f".to(torch.{dtype})" for dtype in CARRIED}
    lines = assigned(arrays, lambda each: f"torch.from_numpy(a){cast.get(each.dtype, '')}{moved}")
    return lines + assigned(arrays, lambda each: _layout(each, memory))


def _layout(array: Given, memory: str) -> str:
    """Expression that lays the tensor ``a`` out as ``impls.memory_layouts`` does; "" where nothing changes."""
    garbage = "torch.nan" if array.floating else "1"
    if memory == "transposed" and len(array.shape) == 4:
        return "a.transpose(1, 2).contiguous().transpose(1, 2)"
    if memory == "inner" and len(array.shape) >= 2:
        return "a.mT.contiguous().mT"
    if memory == "sliced":
        return f"torch.stack([a, torch.full_like(a, {garbage})], dim=-1)[..., 0]"
    if memory == "expanded" and array.repeated:
        return f"a{first_entries(array)}.clone().expand(a.shape)"
    if memory == "guarded":
        return (
            f"torch.nn.functional.pad(a.flatten(), ({GUARD}, {GUARD}), value={garbage})[{GUARD}:-{GUARD}].view(a.shape)"
        )
    return ""


TERMS = Terms(
    imports=("import torch",),
    array="torch.Tensor",
    put=put,
    content="a.cpu().contiguous().view(torch.uint8).numpy().tobytes()",
    dtype="torch.{}".format,
    wait=lambda device: "" if device == "cpu" else "torch.cuda.synchronize()",
    packages=("cuda", "cudnn"),
)


def sdpa(kernel: str = "") -> Writer:
    """``scaled_dot_product_attention`` with one kernel allowed, or with all of them (impls.torch.sdpa)."""

    def write(call: Call) -> Snippet:
        imports = ["from torch.nn.functional import scaled_dot_product_attention"]
        imports += [_KERNELS] if kernel else []
        options = call.static
        arrays: list[str] = [name for name in ("mask", "bias") if name in call.arrays]
        given: str = arrays[0] if arrays else ""
        is_causal, offset, keys = options.get("is_causal"), _offset(call), call.shape("k")[-2] + _past(call)
        if len(arrays) > 1:
            raise NotImplementedError("attn_mask is boolean or additive")
        if is_causal and (offset or "causal_offset" in call.arrays):
            if given or "causal_offset" in call.arrays or offset != keys - call.shape("q")[-2]:
                raise NotImplementedError("causal offsets are 0 or Sk - Sq, without a mask")
            given, is_causal = f"causal_lower_right({call.shape('q')[-2]}, {keys})", False
            imports.append("from torch.nn.attention.bias import causal_lower_right")
        arguments = ["q", "k", "v"]
        arguments += [f"attn_mask={given}"] if given else []
        arguments += ["is_causal=True"] if is_causal else []
        arguments += [f"scale={options['scale']!r}"] if options.get("scale") is not None else []
        arguments += ["enable_gqa=True"] if _grouped(call) else []
        arrays += _PAST if _has_past(call) else []
        lines = [f"def attention({', '.join(['q', 'k', 'v', *arrays])}):", *_joined(call)]
        lines += [f"    with sdpa_kernel(SDPBackend.{kernel}):"] if kernel else []
        before = "output = " if _has_past(call) else "return "
        lines.append(applied("scaled_dot_product_attention", arguments, depth=1 + bool(kernel), before=before))
        lines += ["    return output, k, v"] if _has_past(call) else []
        return Snippet("attention", ("q", "k", "v", *arrays), TERMS, tuple(imports), "\n".join(lines), _checks(call))

    return write


def aten(call: Call) -> Snippet:
    """The flash operator of the CPU (impls.torch.sdpa.aten)."""
    options, arrays = call.static, [name for name in ("mask", "bias") if name in call.arrays]
    if len(arrays) > 1:
        raise NotImplementedError("attn_mask is additive")
    arguments = ["q", "k", "v", "0.0", str(bool(options.get("is_causal")))]
    arguments += ["attn_mask=bias"] if arrays else []
    arguments += [f"scale={options['scale']!r}"] if options.get("scale") is not None else []
    lines = [f"def attention({', '.join(['q', 'k', 'v', *arrays])}):"]
    if "mask" in arrays:
        lines.append("    bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)")
    lines.append(applied("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu", arguments, 1, "output, lse = "))
    lines.append("    return output, lse" if options.get("return_lse") else "    return output")
    return Snippet("attention", ("q", "k", "v", *arrays), TERMS, (), "\n".join(lines))


def _has_past(call: Call) -> bool:
    return "past_key" in call.arrays


def _past(call: Call) -> int:
    """Number of past keys."""
    return call.shape("past_key")[-2] if _has_past(call) else 0


def _offset(call: Call) -> Any:
    """The offset of the diagonal where it is a number (SDPA-9, DEC-2)."""
    offset = call.static.get("causal_offset")
    return _past(call) if offset is None else offset


def _joined(call: Call) -> list[str]:
    """The past in front of the new keys and values, in a function, checked as the adapter does."""
    if not _has_past(call):
        return []
    line = "    k, v = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)"
    return ["    check_past(k, v, past_key, past_value)", line]


def _checks(call: Call) -> tuple[str, ...]:
    """Functions of this package that the call needs."""
    return ("attention_conformance.impls.validate:check_past",) if _has_past(call) else ()


def _grouped(call: Call) -> bool:
    q, k = call.shape("q"), call.shape("k")
    return len(q) == len(k) >= 3 and q[-3] != k[-3]


def flex(call: Call) -> Snippet:
    """``flex_attention`` with the score and the mask as functions of the indices (impls.torch.flex)."""
    if {"block_mask", "tree_parents", "alibi_slopes", "head_scale", "rotary_cos"} & set(call.arrays):
        return written_out("flex:attention")(call)
    options, arrays = call.static, list(call.arrays)
    names = ["flex_attention"]
    body = []
    scores_shape = (*call.shape("q")[:3], *(n + _past(call) for n in call.shape("k")[2:3]))
    for name in ("mask", "bias"):
        if name in arrays and call.shape(name) != scores_shape:
            body.append(f"{name} = {name}.expand(*q.shape[:3], k.shape[2])")
    cap = options.get("softcap")
    scores = [] if cap is None else [f"score = {cap!r} * torch.tanh(score / {cap!r})"]
    scores += ["score = score + bias[b, h, i, j]"] if "bias" in arrays else []
    if scores:
        body += ["", "def score_mod(score, b, h, i, j):", *(f"    {line}" for line in scores), "    return score", ""]
    tests = _tests(call)
    if tests:
        names.append("create_block_mask")
        body += ["", "def mask_mod(b, h, i, j):", *_all_of(tests), ""]
        body.append("batch, heads, queries = q.shape[:3]")
        sizes = ["mask_mod", "batch", "heads", "queries", "k.shape[2]", f'device="{call.device}"']
        body.append(applied("create_block_mask", sizes, before="block_mask = "))
    arguments = ["q", "k", "v"]
    arguments += ["score_mod=score_mod"] if scores else []
    arguments += ["block_mask=block_mask"] if tests else []
    arguments += [f"scale={options['scale']!r}"] if options.get("scale") is not None else []
    arguments += ["enable_gqa=True"] if len(call.shape("q")) == 4 and _grouped(call) else []
    if options.get("return_lse"):
        names.insert(0, "AuxRequest")
        arguments.append("return_aux=AuxRequest(lse=True)")
        body += [applied("flex_attention", arguments, before="output, aux = ")]
        body += ["return output, aux.lse, k, v" if _has_past(call) else "return output, aux.lse"]
    elif _has_past(call):
        body += [applied("flex_attention", arguments, before="output = "), "return output, k, v"]
    else:
        body.append(applied("flex_attention", arguments, before="return "))
    text = "\n".join(body).lstrip("\n").replace("\n\n\n", "\n\n")
    lines = [f"def attention({', '.join(['q', 'k', 'v', *arrays])}):", *_joined(call)]
    lines += [f"    {line}" if line else "" for line in text.splitlines()]
    imports = (f"from torch.nn.attention.flex_attention import {', '.join(names)}",)
    return Snippet("attention", ("q", "k", "v", *arrays), TERMS, imports, "\n".join(lines), _checks(call))


def _all_of(tests: Sequence[str]) -> list[str]:
    """The statement that returns whether all tests hold, in a function within a function."""
    line = f"    return {' & '.join(tests) if len(tests) > 1 else tests[0].removeprefix('(').removesuffix(')')}"
    if len(line) + len(INDENT) <= WIDTH:
        return [line]
    first, *others = tests
    return ["    return (", f"        {first}", *(f"        & {test}" for test in others), "    )"]


def _tests(call: Call) -> list[str]:
    """The conditions of flex attention's mask, in the adapter's order."""
    options = call.static
    offset = "causal_offset[b]" if "causal_offset" in call.arrays else _offset(call)
    diagonal = f"i + {offset}" if offset else "i"
    left, right = options.get("window") or (None, None)
    tests = ["mask[b, h, i, j]"] if "mask" in call.arrays else []
    tests += [f"(j <= {diagonal})"] if options.get("is_causal") else []
    tests += [f"(j >= {diagonal} - {left})"] if left is not None else []
    tests += [f"(j <= {diagonal} + {right})"] if right is not None else []
    tests += ["(j < kv_lengths[b])"] if "kv_lengths" in call.arrays else []
    return tests


def written_out(target: str) -> Writer:
    """A function of this folder, by its source."""
    return by_source(f"attention_conformance.impls.torch.{target}", TERMS)


def differentiated(inner: Snippet, call: Call) -> Snippet:
    """The gradients of the function of ``inner`` by autograd (impls.torch.gradients), in one expression if short."""
    names, wanted = tuple(name for name, _ in call.shapes), leaves(call)
    listed, forward = ", ".join(wanted), inner.call()
    of_merge = call.operator == MERGE_GRAD.name
    forward += "[0]" if of_merge and "grad_lse" not in names else ""
    upstream = "(grad_output, grad_lse)" if "grad_lse" in names else "grad_output"
    if len(forward) <= WIDTH // 2 and "\n" not in forward:
        leaf = assign_each(wanted, "a.requires_grad_()")
        terms = replace(TERMS, content=TERMS.content.replace("a.cpu()", "a.detach().cpu()"))
        arguments = (forward, f"({listed})", upstream)
        return replace(
            inner, function="torch.autograd.grad", arguments=arguments, terms=terms, after="", prepared=(leaf,)
        )
    lines = [inner.definitions, "", ""] if inner.definitions else []
    lines += [
        f"def gradients({', '.join(names)}):",
        f"    leaves = [a.detach().requires_grad_() for a in ({listed})]",
        f"    {listed} = leaves",
        inner.call("output, lse = " if of_merge else "output = ", depth=1),
        f"    return torch.autograd.grad({'(output, lse)' if 'grad_lse' in names else 'output'}, leaves, {upstream})",
    ]
    return replace(inner, function="gradients", arguments=names, definitions="\n".join(lines), after="")


def module(path: str) -> Writer:
    """``torch.nn.MultiheadAttention`` on a path of impls.torch.modules: fast, slow, functional, or composed."""

    def write(call: Call) -> Snippet:
        names = (*OPERATORS[call.operator].arguments, *call.arrays)
        return Snippet("mha", names, TERMS, IMPORTS, "\n".join(definition(path, call)))

    return write


def compiled(call: Call) -> Snippet:
    """``torch-eager`` under ``torch.compile`` (impls.torch.compiled)."""
    lines = "compiled = torch.compile(attention, dynamic=True, fullgraph=True)"
    source = ("attention_conformance.impls.torch.eager:attention",)
    return Snippet("compiled", by_contract(call), TERMS, definitions=lines, sources=source)


def compiled_flex(call: Call) -> Snippet:
    """``flex_attention`` of a call without options under ``torch.compile``."""
    inner = flex(call)
    lines = [inner.definitions, "", "", "compiled = torch.compile(attention, dynamic=True, fullgraph=True)"]
    return replace(inner, function="compiled", definitions="\n".join(lines))


#: Functions that only gradients are made of, by their targets.
FUNCTIONS: dict[str, Writer] = {
    f"attention_conformance.impls.torch.modules:{path}": module(path) for path in ("functional", "composed")
}

CALLS: dict[str, Writer] = {
    "torch-eager": written_out("eager:attention"),
    "torch-sdpa": sdpa(),
    "torch-sdpa-math": sdpa("MATH"),
    "torch-sdpa-flash": sdpa("FLASH_ATTENTION"),
    "torch-sdpa-efficient": sdpa("EFFICIENT_ATTENTION"),
    "torch-sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "torch-flash-aten": aten,
    "torch-blocks": written_out("blocks:block_sparse"),
    "torch-flex": flex,
    "torch-flex-compile": compiled_flex,
    "torch-compile": compiled,
    "torch-layer": written_out("layer:mha"),
    "torch-mha-fast": module("fast"),
    "torch-mha-slow": module("slow"),
    "torch-mha-hint": module("hinted"),
    "torch-sublayer": written_out("layer:sublayer"),
    "torch-latent": written_out("latent:latent"),
    "torch-merge": written_out("merge:merge"),
    "torch-context-parallel": written_out("merge:context_parallel"),
    "torch-varlen-padded": written_out("varlen:padded"),
    "torch-varlen-flex": written_out("varlen:flex"),
    "torch-paged": written_out("varlen:paged"),
    "torch-paged-flex": written_out("serving:paged"),
    "torch-varlen-nested": written_out("serving:nested"),
}
