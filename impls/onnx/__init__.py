"""Implementations in ONNX: the standard operator, ONNX Runtime's own operators, and models exported from torch.

An export for fixed lengths takes a processor 0.3 s, one with batch and lengths left open 1.3 s, as every operation is
then traced with symbols.  Most sets of options are tested at fewer than five shapes; so lengths are open in the calls
that share them, plain ones with or without a mask, and every other call has its own export.  All are kept on disk
(impls.onnx.exported).  Plain options, head counts and widths are constants of the graph; array keywords are its inputs.
Torch is imported by the first export (impls.onnx.exporting), so not at all by a process that finds its models on disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.impls.contract import Framework, Implementation, Layout, Profile
from attention_conformance.impls.envelope import Envelope

#: Dtypes that exports are judged in: every one that ONNX Runtime has kernels for, and float64 at one opset.
_FLOAT64, _FLOAT16 = ("float64", "float32", "float16"), ("float32", "float16")
#: ONNX Runtime has no bfloat16 kernels on the CPU for MatMul, Softmax and the attention operators.
#: Nor has it a float64 kernel for the attention operators.  The Attention node runs in float64 nevertheless:
#: the operator's function body takes its place.
_KERNELS = ("float32", "float16")


def _entry(name: str, target: str, summary: str, prepare: str = "sessions:prepare", **fields: Any) -> Implementation:
    """A record with the common fields of ONNX Runtime's; ``target`` and ``prepare`` are relative to impls/."""
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.{target}",
        framework=Framework.ONNXRUNTIME,
        prepare=f"attention_conformance.impls.onnx.{prepare}",
        summary=summary,
        **{"dtypes": _KERNELS, "requires": ("onnxruntime", "onnx"), **fields},
    )


def _node(opset: int) -> Implementation:
    return _entry(
        f"onnx-attention{opset}",
        f"onnx.attention:attention{opset}",
        f"One Attention node of opset {opset} in ONNX Runtime, which has kernels for float32 and float16;"
        " in float64 its function body takes their place",
        dtypes=("float32", "float64", "float16"),
    )


def _reference(opset: int, name: str) -> Implementation:
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.onnx.attention:attention{opset}",
        prepare="attention_conformance.impls.onnx.evaluator:prepare",
        devices=("cpu",),
        requires=("onnx",),
        summary=f"The Attention node of opset {opset} in the evaluator of the ONNX specification, which is NumPy",
    )


def _contrib(name: str, target: str, text: str, **fields: Any) -> Implementation:
    profiles = {"float16": Profile.WIDE}  # computed in float32 and rounded once, as measured
    return _entry(name, target, f"{text}, which has kernels for float32 and float16", profiles=profiles, **fields)


def _export(
    opset: int,
    name: str,
    target: str,
    text: str,
    dtypes: tuple[str, ...],
    operator: str = "sdpa",
    seconds: float = 0.12,
) -> Implementation:
    return _entry(
        f"onnx-export{opset}-{name}",
        target,
        f"{text}, exported at opset {opset} by torch.onnx.export and run by ONNX Runtime",
        f"exported:prepare{opset}",
        operator=operator,
        case_seconds=seconds,
        deferred="torch",  # models are kept on disk, and torch takes seconds to import
        dtypes=dtypes,
        requires=("onnxruntime", "onnx", "onnxscript", "torch"),
        worker=f"export{opset}",  # exporting takes minutes, and two processes take half the time
    )


def _static(opset: int, name: str, b: int, heads: int, sq: int, sk: int, width: int) -> Implementation:
    """A model that is exported for one shape, as most deployed models are: every case is run at that shape."""
    sizes = {"batch_sizes": b, "head_counts": heads, "key_head_counts": heads, "query_lengths": sq, "key_lengths": sk}
    envelope = Envelope.declared({**sizes, "head_widths": width, "value_widths": width}, ())
    text = f"torch's scaled_dot_product_attention for q of ({b}, {heads}, {sq}, {width}) over {sk} keys"
    exported = _export(opset, name, "torch.sdpa:masked", text, ("float32",), seconds=0.06)
    return replace(exported, envelope=replace(envelope, source="static axes"))


_EAGER = ("torch-eager", "torch.eager:attention", "Attention written out in torch operations")
_SDPA = ("torch-sdpa", "torch.sdpa:attention", "torch's scaled_dot_product_attention")

#: Layers in one dtype and opset each, as every case is an export.
_LAYERS = (
    ("torch-layer", "torch.layer:mha", "The layer written out in torch operations", "mha"),
    ("torch-mha", "torch.modules:functional", "torch's nn.MultiheadAttention", "mha"),
    ("torch-sublayer", "torch.layer:sublayer", "torch-layer with residual and LayerNorm", "sublayer"),
)

_HEADS_INSIDE = {"layout": Layout.BSHD, "past_layout": Layout.BHSD}

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _node(23),
    _node(24),
    _contrib(
        "ort-mha",
        "onnx.contrib:multi_head",
        "ONNX Runtime's own operator MultiHeadAttention",
        **_HEADS_INSIDE,
    ),
    _contrib(
        "ort-gqa",
        "onnx.contrib:group_query",
        "ONNX Runtime's own operator GroupQueryAttention",
        **_HEADS_INSIDE,
    ),
    _reference(24, "onnx-reference"),
    _reference(23, "onnx-reference23"),
    _export(18, *_EAGER, _FLOAT64),
    _export(23, *_EAGER, _FLOAT16),
    _export(18, *_SDPA, _FLOAT64, seconds=0.05),
    _export(23, *_SDPA, _FLOAT16, seconds=0.05),  # one Attention node
    _static(23, "static", 1, 8, 128, 128, 64),
    _contrib(
        "ort-mha-layer",
        "onnx.layer:multi_head",
        "ONNX Runtime's own operator MultiHeadAttention between MatMuls",
        operator="mha",
    ),
    _contrib(
        "ort-attention-layer",
        "onnx.layer:packed",
        "ONNX Runtime's own operator Attention with packed weights",
        operator="mha",
    ),
    *(_export(23, name, target, text, ("float32",), operator, 0.2) for name, target, text, operator in _LAYERS),
)
