"""Scripts in PyTorch: tensors, the library's attention called as the adapters here call it, and the composition.

Only text: torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from impls.contract import Call
from impls.memory import GUARD
from impls.numpy.script import first_entries
from impls.operators import OPERATORS
from impls.script import INDENT, WIDTH, Given, Snippet, Terms, Writer, applied, by_contract, leaves, together
from impls.torch import script_modules

#: Array keywords of a step of decoding.
_PAST = ["past_key", "past_value"]

#: Where the name of a kernel comes from.
_KERNELS = "from torch.nn.attention import SDPBackend, sdpa_kernel"


def put(arrays: Sequence[Given], memory: str, device: str) -> list[str]:
    """Tensors on the device, and then their layout in memory (impls.memory) in torch's terms."""
    expressions: dict[str, list[str]] = {}
    for each in arrays:
        half = ".to(torch.bfloat16)" if each.dtype == "bfloat16" else ""
        moved = "" if device == "cpu" else f'.to("{device}")'
        expressions.setdefault(f"torch.from_numpy(a){half}{moved}", []).append(each.name)
    layouts: dict[str, list[str]] = {}
    for each in arrays:
        layout = _layout(each, memory)
        if layout:
            layouts.setdefault(layout, []).append(each.name)
    return [together(names, expression) for expression, names in (expressions | layouts).items()]


def _layout(array: Given, memory: str) -> str:
    """What lays the tensor ``a`` out as ``impls.memory`` does; "" where nothing changes."""
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


def _has_past(call: Call) -> bool:
    return "past_key" in call.arrays


def _past(call: Call) -> int:
    """How many past keys there are."""
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
    return ("impls.validate:check_past",) if _has_past(call) else ()


def _grouped(call: Call) -> bool:
    q, k = call.shape("q"), call.shape("k")
    return len(q) == len(k) >= 3 and q[-3] != k[-3]


def flex(call: Call) -> Snippet:
    """``flex_attention`` with the score and the mask as functions of the indices (impls.torch.flex)."""
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


def written_out(function: str) -> Writer:
    """A function of this room, by its source."""

    def write(call: Call) -> Snippet:
        return Snippet(function.rpartition(":")[2], by_contract(call), TERMS, sources=(function,))

    return write


def differentiated(inner: Snippet, call: Call) -> Snippet:
    """The gradients of what ``inner`` calls, by autograd (impls.torch.gradients)."""
    names, listed = tuple(name for name, _ in call.shapes), ", ".join(leaves(call))
    lines = [inner.definitions, "", ""] if inner.definitions else []
    lines += [
        f"def gradients({', '.join(names)}):",
        f"    leaves = [a.detach().requires_grad_() for a in ({listed})]",
        f"    {listed} = leaves",
        inner.call("output = ", depth=1),
        "    return torch.autograd.grad(output, leaves, grad_output)",
    ]
    return replace(inner, function="gradients", arguments=names, definitions="\n".join(lines), after="")


def module(path: str) -> Writer:
    """``torch.nn.MultiheadAttention`` on a path of impls.torch.modules: fast, slow, functional, or composed."""

    def write(call: Call) -> Snippet:
        names = (*OPERATORS[call.operator].arguments, *call.arrays)
        return Snippet("mha", names, TERMS, script_modules.IMPORTS, "\n".join(script_modules.definition(path, call)))

    return write


def compiled(call: Call) -> Snippet:
    """The same under ``torch.compile`` (impls.torch.prepare)."""
    lines = "compiled = torch.compile(attention, dynamic=True, fullgraph=True)"
    source = ("impls.torch.eager:attention",)
    return Snippet("compiled", by_contract(call), TERMS, definitions=lines, sources=source)


#: Functions that only gradients are made of, by what they are as the target of an implementation.
FUNCTIONS: dict[str, Writer] = {f"impls.torch.modules:{path}": module(path) for path in ("functional", "composed")}

CALLS: dict[str, Writer] = {
    "torch-eager": written_out("impls.torch.eager:attention"),
    "torch-sdpa": sdpa(),
    "torch-sdpa-math": sdpa("MATH"),
    "torch-sdpa-flash": sdpa("FLASH_ATTENTION"),
    "torch-sdpa-efficient": sdpa("EFFICIENT_ATTENTION"),
    "torch-sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "torch-flex": flex,
    "torch-compile": compiled,
    "torch-layer": written_out("impls.torch.layer:mha"),
    "torch-mha-fast": module("fast"),
    "torch-mha-slow": module("slow"),
    "torch-sublayer": written_out("impls.torch.layer:sublayer"),
}
