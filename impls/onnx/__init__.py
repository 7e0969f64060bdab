"""Implementations in ONNX: the standard operator, ONNX Runtime's own operators, and models exported from torch."""

from __future__ import annotations

from attention_conformance.impls.contract import Framework, Implementation, Layout, Profile

#: What exports are judged in besides float32: each dtype once, as every export costs half a second.  ONNX Runtime
#: has kernels for all three.
_FLOAT64, _FLOAT16 = ("float64", "float32"), ("float32", "float16")
#: ONNX Runtime has no bfloat16 kernels on the CPU for MatMul, Softmax and the attention operators.
#: Nor has it a float64 kernel for the attention operators.  The Attention node runs in float64 nevertheless:
#: the operator's function body takes its place, whose softmax is float32, and so is its accuracy.
_KERNELS = ("float32", "float16")


def _node(opset: int) -> Implementation:
    return Implementation(
        name=f"onnx-attention{opset}",
        target=f"attention_conformance.impls.onnx.attention:attention{opset}",
        framework=Framework.ONNXRUNTIME,
        prepare="attention_conformance.impls.onnx.sessions:prepare",
        dtypes=_KERNELS,
        requires=("onnxruntime", "onnx"),
        summary=f"One Attention node of opset {opset} in ONNX Runtime, which has kernels for float32 and float16"
        " (float64 runs with float32's accuracy and is left out)",
    )


def _contrib(name: str, builder: str, operator: str) -> Implementation:
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.onnx.contrib:{builder}",
        framework=Framework.ONNXRUNTIME,
        prepare="attention_conformance.impls.onnx.sessions:prepare",
        layout=Layout.BSHD,
        past_layout=Layout.BHSD,
        dtypes=_KERNELS,
        profiles={"float16": Profile.WIDE},  # computed in float32 and rounded once, as measured
        requires=("onnxruntime", "onnx"),
        summary=f"ONNX Runtime's own operator {operator}, which has kernels for float32 and float16",
    )


def _contrib_layer(name: str, builder: str, text: str) -> Implementation:
    return Implementation(
        name=name,
        target=f"attention_conformance.impls.onnx.layer:{builder}",
        operator="mha",
        framework=Framework.ONNXRUNTIME,
        prepare="attention_conformance.impls.onnx.sessions:prepare",
        dtypes=_KERNELS,
        profiles={"float16": Profile.WIDE},  # computed in float32 and rounded once, as measured
        requires=("onnxruntime", "onnx"),
        summary=f"{text}, which has kernels for float32 and float16",
    )


def _export(
    opset: int, name: str, function: str, text: str, dtypes: tuple[str, ...], operator: str = "sdpa"
) -> Implementation:
    return Implementation(
        name=f"onnx-export{opset}-{name}",
        target=function,
        operator=operator,
        framework=Framework.ONNXRUNTIME,
        prepare=f"attention_conformance.impls.onnx.exported:prepare{opset}",
        deferred=True,  # models are kept on disk, and torch takes seconds to import
        dtypes=dtypes,
        requires=("onnxruntime", "onnx", "onnxscript", "torch"),
        worker=f"export{opset}",  # exporting takes minutes, and two processes take half of them
        summary=f"{text}, exported at opset {opset} by torch.onnx.export and run by ONNX Runtime",
    )


_EAGER = (
    "torch-eager",
    "attention_conformance.impls.torch.eager:attention",
    "Attention written out in torch operations",
)
_SDPA = ("torch-sdpa", "attention_conformance.impls.torch.sdpa:attention", "torch's scaled_dot_product_attention")

#: Layers in one dtype and opset each, as every case is an export.
_LAYERS = (
    (
        "torch-layer",
        "attention_conformance.impls.torch.layer:mha",
        "The layer written out in torch operations",
        ("float32",),
        "mha",
    ),
    (
        "torch-mha",
        "attention_conformance.impls.torch.modules:functional",
        "torch's nn.MultiheadAttention",
        ("float32",),
        "mha",
    ),
    (
        "torch-sublayer",
        "attention_conformance.impls.torch.layer:sublayer",
        "torch-layer with residual and LayerNorm",
        ("float32",),
        "sublayer",
    ),
)

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _node(23),
    _node(24),
    _contrib("ort-mha", "multi_head", "MultiHeadAttention"),
    _contrib("ort-gqa", "group_query", "GroupQueryAttention"),
    Implementation(
        name="onnx-reference",
        target="attention_conformance.impls.onnx.attention:attention24",
        prepare="attention_conformance.impls.onnx.evaluator:prepare",
        devices=("cpu",),
        requires=("onnx",),
        summary="The Attention node of opset 24 in the evaluator of the ONNX specification, which is NumPy",
    ),
    _export(18, *_EAGER, _FLOAT64),
    _export(23, *_EAGER, _FLOAT16),
    _export(18, *_SDPA, _FLOAT64),
    _export(23, *_SDPA, _FLOAT16),  # one Attention node
    _contrib_layer("ort-mha-layer", "multi_head", "ONNX Runtime's own operator MultiHeadAttention between MatMuls"),
    _contrib_layer("ort-attention-layer", "packed", "ONNX Runtime's own operator Attention with packed weights"),
    *(_export(23, *each) for each in _LAYERS),
)
