"""Scripts in ONNX: exactly the model that a builder makes, or an export, and what runs it.

Only text: onnx is imported when a model is written, torch is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from attention_conformance.impls.contract import Call
from attention_conformance.impls.loading import load
from attention_conformance.impls.numpy.script import TERMS as NUMPY
from attention_conformance.impls.script import Given, Snippet, Terms, Writer, assign_each
from attention_conformance.impls.torch import script as torch_script

_PROVIDERS = {
    "cpu": '["CPUExecutionProvider"]',
    "cuda": '["CUDAExecutionProvider", "CPUExecutionProvider"]',
}
_SESSION = "onnxruntime.InferenceSession(model().SerializeToString(), providers={providers})"
_EVALUATOR = "ReferenceEvaluator(model())"


def put(arrays: Sequence[Given], memory: str, device: str) -> list[str]:
    """OrtValues, for functions that are plugged in; they have no strides, so ``memory`` changes nothing."""
    if any(each.dtype == "bfloat16" for each in arrays):
        raise NotImplementedError("an OrtValue of bfloat16 cannot be read in Python")
    return [assign_each([each.name for each in arrays], f'onnxruntime.OrtValue.ortvalue_from_numpy(a, "{device}")')]


#: OrtValues.  The built-in implementations get NumPy arrays, which ``InferenceSession.run`` takes.
TERMS = Terms(
    imports=("import onnxruntime",),
    array="onnxruntime.OrtValue",
    put=put,
    content="a.numpy().tobytes()",
    method="numpy",
)


def node(builder: str, runner: str = _SESSION) -> Writer:
    """The model that a builder (``module:function``) makes for the call, in ONNX Runtime or the evaluator."""

    def write(call: Call) -> Snippet:
        from attention_conformance.impls.onnx.graph import build
        from attention_conformance.impls.onnx.model_source import indented, statements

        model = build(load(builder), call)
        lines = ["def model():", *indented(statements(model)), "", "", *_session_lines(runner, call)]
        names = ["TensorProto", "helper", *(["numpy_helper"] if model.graph.initializer else [])]
        run = "import onnxruntime" if runner == _SESSION else "from onnx.reference import ReferenceEvaluator"
        imports = ("import functools", run, f"from onnx import {', '.join(names)}")
        terms = NUMPY if runner == _EVALUATOR else _CONTIGUOUS
        return _run(call, terms, imports, "\n".join(lines))

    return write


def exported(opset: int, written: Writer) -> Writer:
    """A torch function exported by ``torch.onnx.export`` for the shapes of the call (impls.onnx.exported)."""

    def write(call: Call) -> Snippet:
        inner = written(call)
        names = [name for name, _ in call.shapes]
        listed, quoted = ", ".join(names), ", ".join(f'"{name}"' for name in names)
        lines = [inner.definitions, "", ""] if inner.definitions else []
        lines += [
            "class Attention(torch.nn.Module):",
            f"    def forward(self, {listed}):",
            inner.call("return ", depth=2),
            "",
            "",
            "def model():",
            f"    example = tuple(torch.from_numpy(a) for a in ({listed}))",
            f"    names = [{quoted}]",
            f'    options = {{"opset_version": {opset}, "dynamo": True, "verbose": False}}',
            "    return torch.onnx.export(Attention().eval(), example, input_names=names, **options).model_proto",
            "",
            "",
            *_session_lines(_SESSION, call),
        ]
        imports = ("import functools", "import onnxruntime", *inner.terms.imports, *inner.imports)
        return _run(call, _CONTIGUOUS, imports, "\n".join(lines), inner.sources, exported=True)

    return write


#: Inputs of ONNX Runtime: NumPy arrays, which it copies if they are not contiguous.
_CONTIGUOUS = dataclasses.replace(NUMPY, put=lambda arrays, memory, device: [])


def _session_lines(runner: str, call: Call) -> list[str]:
    """The lines that make the session or evaluator of ``model()`` once."""
    text = runner.format(providers=_PROVIDERS[call.device])
    return ["@functools.cache", "def session():", f"    return {text}"]


def _run(
    call: Call,
    terms: Terms,
    imports: tuple[str, ...],
    definitions: str,
    sources: tuple[str, ...] = (),
    exported: bool = False,
) -> Snippet:
    # An offset for each batch is not an input of a node, which computes its own (impls.onnx.graph).
    given = [name for name, _ in call.shapes if exported or name != "causal_offset"]
    arrays = ", ".join(f'"{name}": {name}' for name in given)
    after = "" if len(call.results()) > 1 else "[0]"
    return Snippet("session().run", ("None", f"{{{arrays}}}"), terms, imports, definitions, sources, after)


CALLS: dict[str, Writer] = {
    "onnx-attention23": node("attention_conformance.impls.onnx.attention:attention23"),
    "onnx-attention24": node("attention_conformance.impls.onnx.attention:attention24"),
    "ort-mha": node("attention_conformance.impls.onnx.contrib:multi_head"),
    "ort-gqa": node("attention_conformance.impls.onnx.contrib:group_query"),
    "onnx-reference": node("attention_conformance.impls.onnx.attention:attention24", _EVALUATOR),
    "onnx-reference23": node("attention_conformance.impls.onnx.attention:attention23", _EVALUATOR),
    "onnx-export18-torch-eager": exported(18, torch_script.written_out("eager:attention")),
    "onnx-export23-torch-eager": exported(23, torch_script.written_out("eager:attention")),
    "onnx-export18-torch-sdpa": exported(18, torch_script.sdpa()),
    "onnx-export23-torch-sdpa": exported(23, torch_script.sdpa()),
    "onnx-export23-static": exported(23, torch_script.sdpa()),
    "ort-mha-layer": node("attention_conformance.impls.onnx.layer:multi_head"),
    "ort-attention-layer": node("attention_conformance.impls.onnx.layer:packed"),
    "onnx-export23-torch-layer": exported(23, torch_script.written_out("layer:mha")),
    "onnx-export23-torch-mha": exported(23, torch_script.module("functional")),
    "onnx-export23-torch-sublayer": exported(23, torch_script.written_out("layer:sublayer")),
}
