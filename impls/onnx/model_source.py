"""Source of a model: the ``onnx.helper`` calls that make it, so that a script holds exactly the model that was run."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from attention_conformance.impls.script import INDENT, WIDTH, applied


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
    return textwrap.dedent(applied("helper.make_node", arguments, depth=3))  # it is in a list in a function


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
    """A list that is too long for a line in a function: its content on a line of its own, or on two."""
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
