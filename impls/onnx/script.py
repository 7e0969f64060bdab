"""A model written out as the ``onnx.helper`` calls that make it, so that a script holds the very model that was run."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from attention_conformance.impls.contract import Call
from attention_conformance.impls.loading import load
from attention_conformance.impls.numpy.script import TERMS as NUMPY
from attention_conformance.impls.script import INDENT, WIDTH, Given, Snippet, Terms, Writer, applied, together
from attention_conformance.impls.torch import script as torch_script


def statements(model: ModelProto) -> list[str]:
    """The body of a function that returns the model; it uses ``helper``, ``numpy_helper``, ``TensorProto`` and ``np``.

    For models of this package: one graph, float, int and text attributes, and small integer constants.
    """
    graph = model.graph
    constants = [_constant(each) for each in graph.initializer]
    lines = _listed("constants", constants) if constants else []
    lines += _listed("nodes", [_node(each) for each in graph.node])
    lines += _values("inputs", graph.input)
    lines += _values("outputs", graph.output)
    parts = ["nodes", f'"{graph.name}"', "inputs", "outputs", *(["constants"] if constants else [])]
    lines.append(applied("helper.make_graph", parts, before="graph = "))
    used = {each.domain for each in graph.node}
    opsets = [f'helper.make_opsetid("{o.domain}", {o.version})' for o in model.opset_import if o.domain in ("", *used)]
    arguments = ["graph", f"opset_imports=[{', '.join(opsets)}]", f"ir_version={model.ir_version}"]
    lines.append(applied("helper.make_model", arguments, before="return "))
    return lines


def uses_constants(model: ModelProto) -> bool:
    """Whether ``numpy_helper`` is needed."""
    return bool(model.graph.initializer)


def _listed(name: str, items: Sequence[str]) -> list[str]:
    line = f"{name} = [{', '.join(items)}]"
    if len(line) < 100 and "\n" not in line:
        return [line]
    return [f"{name} = [", *(f"    {line}" for item in items for line in f"{item},".splitlines()), "]"]


def _constant(tensor: TensorProto) -> str:
    array = numpy_helper.to_array(tensor)
    return f'numpy_helper.from_array(np.array({array.tolist()}, np.{array.dtype}), "{tensor.name}")'


def _node(node: NodeProto) -> str:
    arguments = [f'"{node.op_type}"', _names(node.input), _names(node.output)]
    arguments += [f'domain="{node.domain}"'] if node.domain else []
    arguments += [f"{each.name}={_attribute(each)}" for each in node.attribute]
    return textwrap.dedent(applied("helper.make_node", arguments, depth=3))  # it stands in a list in a function


def _names(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _attribute(attribute: AttributeProto) -> str:
    value: Any = helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.FLOAT:
        return str(np.float32(value))  # the shortest text of the float32 that an attribute is
    return repr(value.decode() if isinstance(value, bytes) else value)


def _values(name: str, values: Sequence[ValueInfoProto]) -> list[str]:
    """The declarations of inputs or outputs, those of one type together."""
    groups = [_declared(kind, rank, list(group)) for (kind, rank), group in itertools.groupby(values, _type)]
    lines = [f"{name} = [{groups[0]}]", *(f"{name} += [{group}]" for group in groups[1:])]
    return [line if len(INDENT + line) <= WIDTH else _broken(line) for line in lines]


def _broken(line: str) -> str:
    """A list that is too long for a line in a function: what is in it on a line of its own, or on two."""
    start, inside = line[:-1].split("[", 1)
    if len(2 * INDENT + inside) > WIDTH:
        inside = inside.replace(" for name in ", f"\n{INDENT}for name in ")
    return f"{start}[\n{INDENT}{inside}\n]"


def _type(value: ValueInfoProto) -> tuple[int, int | None]:
    tensor = value.type.tensor_type
    return tensor.elem_type, len(tensor.shape.dim) if tensor.HasField("shape") else None


def _declared(kind: int, rank: int | None, values: Sequence[ValueInfoProto]) -> str:
    shape = "None" if rank is None else f"[None] * {rank}"
    element = f"TensorProto.{TensorProto.DataType.Name(kind)}"
    if len(values) == 1:
        return f'helper.make_tensor_value_info("{values[0].name}", {element}, {shape})'
    names = ", ".join(f'"{each.name}"' for each in values)
    return f"helper.make_tensor_value_info(name, {element}, {shape}) for name in ({names})"


def indented(lines: Sequence[str]) -> Iterator[str]:
    """The lines as the body of a function."""
    for text in lines:
        yield from (f"    {line}" for line in text.splitlines())


# Scripts in ONNX: the very model that a builder here makes, and exports, and who runs them.


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
    return [together([each.name for each in arrays], f'onnxruntime.OrtValue.ortvalue_from_numpy(a, "{device}")')]


#: OrtValues.  The built-in implementations are handed NumPy arrays, which ``InferenceSession.run`` takes.
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

        pass

        model = build(load(builder), call)
        lines = ["def model():", *indented(statements(model)), "", "", *_opened(runner, call)]
        names = ["TensorProto", "helper", *(["numpy_helper"] if uses_constants(model) else [])]
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
        listed = ", ".join(names)
        lines = [inner.definitions, "", ""] if inner.definitions else []
        lines += [
            "class Attention(torch.nn.Module):",
            f"    def forward(self, {listed}):",
            inner.call("return ", depth=2),
            "",
            "",
            "def model():",
            f"    example = tuple(torch.from_numpy(a) for a in ({listed}))",
            f"    names = {_quoted(names)}",
            f'    options = {{"opset_version": {opset}, "dynamo": True, "verbose": False}}',
            "    return torch.onnx.export(Attention().eval(), example, input_names=names, **options).model_proto",
            "",
            "",
            *_opened(_SESSION, call),
        ]
        imports = ("import functools", "import onnxruntime", *inner.terms.imports, *inner.imports)
        return _run(call, _CONTIGUOUS, imports, "\n".join(lines), inner.sources, exported=True)

    return write


def _quoted(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


#: What ONNX Runtime is handed: NumPy arrays, which it copies if they are not contiguous.
_CONTIGUOUS = dataclasses.replace(NUMPY, put=lambda arrays, memory, device: [])


def _opened(runner: str, call: Call) -> list[str]:
    """Once, the session or evaluator of ``model()``."""
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
    # An offset for each batch is no input of a node, which computes its own (attention_conformance.impls.onnx.graph).
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
    "onnx-export18-torch-eager": exported(
        18, torch_script.written_out("attention_conformance.impls.torch.eager:attention")
    ),
    "onnx-export23-torch-eager": exported(
        23, torch_script.written_out("attention_conformance.impls.torch.eager:attention")
    ),
    "onnx-export18-torch-sdpa": exported(18, torch_script.sdpa()),
    "onnx-export23-torch-sdpa": exported(23, torch_script.sdpa()),
    "ort-mha-layer": node("attention_conformance.impls.onnx.layer:multi_head"),
    "ort-attention-layer": node("attention_conformance.impls.onnx.layer:packed"),
    "onnx-export23-torch-layer": exported(23, torch_script.written_out("attention_conformance.impls.torch.layer:mha")),
    "onnx-export23-torch-mha": exported(23, torch_script.module("functional")),
    "onnx-export23-torch-sublayer": exported(
        23, torch_script.written_out("attention_conformance.impls.torch.layer:sublayer")
    ),
}
