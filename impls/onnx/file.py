"""A model in a file as an implementation: its inputs and outputs are arguments, keywords and results by their names.

ONNX Runtime runs it.  What a call asks for and the model does not have is unsupported, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from impls.contract import Call, Function, ImplementationError
from impls.foreign import naming
from impls.foreign.declared import Declared, Foreign
from impls.foreign.naming import Said
from impls.loading import nearest
from impls.onnx.fitting import DTYPES, Declaration, Fitting
from impls.onnx.sessions import bound, session


class Model(Foreign):
    """A model's file, and which of its inputs and outputs are which of ours."""

    def __init__(self, path: Path, said: Said, inputs: dict[str, Declaration], outputs: dict[str, str]) -> None:
        dtype = DTYPES[inputs[said.operator.arguments[0]].type]
        given = {name for name in inputs if name not in said.operator.arguments}
        asked = {
            keyword for name, keyword in said.operator.results if keyword.startswith("return_") and name in outputs
        }
        profiles = {dtype: said.profile} if said.profile else {}
        keywords = frozenset(given | asked | said.fixed.keys())
        super().__init__(Declared(said.operator.name, keywords, (dtype,), profiles, said.layout))
        self.path = path
        self.outputs = outputs
        self.fitting = Fitting(said, inputs)

    def prepared(self, call: Call) -> Function:
        """Opens the session.  Raises NotImplementedError for a call that the model does not fit."""
        lacking = [name for name in call.results() if name not in self.outputs]
        if lacking:
            raise NotImplementedError(f"the model has no output for {', '.join(lacking)}")
        fit = self.fitting.of(call)
        run = bound(session(str(self.path), call.device), [self.outputs[name] for name in call.results()], call.device)
        return lambda **arrays: run(**fit(arrays))


def model(source: str) -> Model:
    """The model of ``path.onnx:what is said of it``.  Raises ImplementationError in one sentence."""
    place, _, text = source.partition(".onnx:")
    path = Path(f"{place}.onnx")
    who = path.name
    said = naming.read(who, text)
    _check_file(path)
    try:
        opened = session(str(path), "cpu")
    except Exception as error:  # ONNX Runtime has a class for each status
        raise ImplementationError(f"ONNX Runtime does not open {who}: {str(error).splitlines()[0][:300]}") from None
    inputs = {each.name: Declaration(each.name, each.type, tuple(each.shape)) for each in opened.get_inputs()}
    named = _Names(who, said, tuple(inputs), tuple(each.name for each in opened.get_outputs()))
    ours = {name: inputs[theirs] for name, theirs in named.inputs().items()}
    found = Fitting(said, ours).unfit()
    if found:
        raise ImplementationError(f"{who}: {found}")
    return Model(path, said, ours, named.outputs())


@dataclass(frozen=True)
class _Names:
    """The names of a model, and what is said of them."""

    who: str
    said: Said
    ins: tuple[str, ...]
    outs: tuple[str, ...]

    def inputs(self) -> dict[str, str]:
        """The model's inputs by our names.  Raises ImplementationError if one is missing or is none of ours."""
        operator = self.said.operator
        results = [name for name, _ in operator.results]
        expected = [name for name in naming.ours(operator) if name not in results]
        for mine, theirs in self.said.names.items():
            there, kind = (self.outs, "output") if mine in results else (self.ins, "input")
            if theirs not in there:
                raise ImplementationError(f"{self.who} has no {kind} {theirs!r}{nearest(theirs, there)}")
        found = self._found(self.ins, expected)
        stray = [name for name in self.ins if name not in found.values()]
        required = [*operator.arguments, *(name for name in operator.always if name in operator.arrays)]
        missing = [name for name in required if name not in found]
        missing += [n for n in operator.always if n not in found and n not in self.said.fixed and n not in required]
        if missing or stray:
            what = f"no input for {', '.join(missing)}" if missing else f"an input {stray[0]!r} that is none of ours"
            fixed = [f"{name}=…" for name in missing if name not in required]
            raise ImplementationError(f"{self.who} has {what}; {self._real()}{self._hint(fixed)}")
        for name in found.keys() & self.said.fixed.keys():
            raise ImplementationError(f"{self.who}: {name} is an input, so it has no fixed value")
        return found

    def outputs(self) -> dict[str, str]:
        """The model's outputs by our names; the only output of a model is the first result."""
        results = [name for name, _ in self.said.operator.results]
        found = self._found(self.outs, results)
        if len(self.outs) == 1 and not found:
            return {results[0]: self.outs[0]}
        if results[0] not in found:
            raise ImplementationError(f"{self.who} has no output for {results[0]}; {self._real()}{self._hint()}")
        return found

    def _found(self, theirs: tuple[str, ...], ours: list[str]) -> dict[str, str]:
        """Those of our names that the model has or that are said of one of its names."""
        said = {mine: name for mine, name in self.said.names.items() if mine in ours}
        same = {name: name for name in ours if name in theirs and name not in said.values()}
        for name in same.keys() & said.keys():
            raise ImplementationError(f"{self.who}: {said[name]} is said to be {name}, and it has another {name}")
        return {**same, **said}

    def _real(self) -> str:
        return f"its inputs are {', '.join(self.ins)}, its outputs {', '.join(self.outs)}"

    def _hint(self, fixed: Sequence[str] = ()) -> str:
        """What to type, for names that are usual or near, and for options that the graph has to hold."""
        taken = {*self.said.names.values(), *naming.ours(self.said.operator)}
        pairs = list(fixed)
        for name in (*self.ins, *self.outs):
            guess = naming.ALIASES.get(
                name.lower(), name.lower() if name.lower() in naming.ours(self.said.operator) else ""
            )
            if name not in taken and guess and guess not in self.said.names:
                pairs.append(f"{name}={guess}")
        return f"; say which is which, as in {self.who}:{','.join(pairs) or 'name=q'}"


def _check_file(path: Path) -> None:
    """Refuse what is no model, and data that lies outside the model's folder."""
    try:
        proto = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError, UnicodeDecodeError) as error:
        raise ImplementationError(f"{path.name} is not an ONNX file: {error}") from None
    if not proto.graph.output:
        raise ImplementationError(f"{path.name} is not an ONNX file: it has no graph with outputs")
    for tensor in _tensors(proto.graph):
        places = [each.value for each in tensor.external_data if each.key == "location"]
        for place in places:
            if not (path.parent / place).resolve().is_relative_to(path.parent):
                raise ImplementationError(f"{path.name} has data outside its folder, at {place}, which is not read")


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every constant of a graph and of the graphs in it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
