"""Model in a file as an implementation: its inputs and outputs are arguments, keywords and results by their names.

An array of a call fits an input unchanged, is converted, or does not fit.  A keyword that a call does not give and the
model always takes gets the value that changes nothing, where there is one: every key allowed, a bias of zero, every key
valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError

from attention_conformance.impls.contract import Call, FixedOptionError, Function, ImplementationError
from attention_conformance.impls.foreign import text as naming
from attention_conformance.impls.foreign.declared import Declared, Foreign
from attention_conformance.impls.foreign.text import ModelSpec
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.onnx import arrays as ort
from attention_conformance.impls.onnx.sessions import bound, session
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.validate import check_inputs

#: The dtypes that a model may have, by ONNX Runtime's names.
DTYPES = {
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
}
_INTEGERS: dict[str, np.dtype] = {"tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32)}
_BOOLEAN: dict[str, np.dtype] = {"tensor(bool)": np.dtype(np.bool_)}

#: Array keywords that do not have the dtype of q, and the types that hold them.
_TYPES = {"mask": {**_BOOLEAN, **_INTEGERS}, "kv_lengths": _INTEGERS, "causal_offset": _INTEGERS}

#: Axes of q, of k, and of the scores, (B, Hq, Sq, Sk), to which mask and bias are broadcast.
_AXES = 4

Fit = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Declaration:
    """An input as a model declares it."""

    name: str
    type: str
    #: Lengths that are fixed; any other entry is free.
    shape: tuple[Any, ...]

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Reason why an array of this shape does not fit the lengths that are fixed, "" if it does."""
        same = len(shape) == len(self.shape)
        wrong = same and any(isinstance(n, int) and n != got for n, got in zip(self.shape, shape, strict=True))
        listed = ", ".join(str(n) if isinstance(n, int) else "any" for n in self.shape)
        return f"the model's input {self.name} has the fixed shape ({listed}), the case's is {shape}" if wrong else ""


class Fitting:
    """Fitting of a model's inputs to our names."""

    def __init__(self, spec: ModelSpec, inputs: dict[str, Declaration]) -> None:
        self._spec = spec
        self._inputs = inputs
        first = inputs[spec.operator.arguments[0]]
        self._floats = {first.type: None} if first.type in DTYPES else {}
        self._first = first

    def unfit(self) -> str:
        """Half a sentence on the first input whose type does not match ours, "" if there is none."""
        if not self._floats:
            return f"its input {self._first.name} is {self._first.type}, expected one of {', '.join(DTYPES)}"
        arrays = (*self._spec.operator.arguments, *self._spec.operator.arrays)
        for name, declared in self._inputs.items():
            types = _TYPES.get(name, self._floats) if name in arrays else {**DTYPES, **_INTEGERS, **_BOOLEAN}
            if declared.type not in types:
                hint = "; map values added to the scores to bias" if name == "mask" else ""
                known = " or ".join(types)
                return f"its input {declared.name} is {declared.type}, expected {known} for {name}{hint}"
        return ""

    def of(self, call: Call) -> Fit:
        """Fitting of a call's arrays to the model's inputs.  Raises NotImplementedError for arrays that do not fit."""
        self._check_options(call)
        filled = self._filled(call)
        shapes = {**dict(call.shapes), **{name: array.shape for name, array in filled.items()}}
        wider = {}
        for name, declared in self._inputs.items():
            shape = shapes[name]
            axes = len(declared.shape)
            if name in ("mask", "bias") and len(shape) != axes and axes:
                if len(shape) > axes:
                    raise NotImplementedError(f"the model's {declared.name} has {axes} axes, the case's {name} more")
                shape = wider[name] = (1,) * (axes - len(shape)) + shape
            if declared.misfit(shape) and not self._contradicts(shapes):
                raise NotImplementedError(declared.misfit(shape))
        constants = {name: ort.put(array, call.device) for name, array in filled.items()}

        def fit(arrays: dict[str, Any]) -> dict[str, Any]:
            given = {**arrays, **constants}
            return {
                declared.name: _converted(given[name], declared, wider.get(name), call.device)
                for name, declared in self._inputs.items()
            }

        return fit

    def _contradicts(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether q, k and v do not fit together at any size, so that the model must refuse them."""
        if self._spec.operator is not SDPA:
            return False
        arrays = [np.broadcast_to(np.float32(0), shapes[name]) for name in SDPA.arguments]
        if self._spec.layout == "BSHD":
            arrays = [x.swapaxes(1, 2) if x.ndim == _AXES else x for x in arrays]
        try:
            check_inputs(*arrays)
        except ValueError:
            return True
        return False

    def _check_options(self, call: Call) -> None:
        """Refuse a call whose options the graph does not hold."""
        for name, value in self._spec.fixed.items():
            if not _same(value, _option_value(name, call), call.dtype):
                raise FixedOptionError(name, value)

    def _filled(self, call: Call) -> dict[str, np.ndarray]:
        """The inputs that the call does not give as arrays: options as scalars, and values that change nothing."""
        made = {}
        for name, declared in self._inputs.items():
            if name in dict(call.shapes):
                continue
            value = _option_value(name, call)
            if name in ("mask", "bias", "kv_lengths", "causal_offset") and {"q", "k"} <= dict(call.shapes).keys():
                made[name] = self._neutral(name, declared, call, value)
            elif value is None or name in self._spec.operator.arrays:
                raise NotImplementedError(f"the model takes {name} in every call")
            else:
                made[name] = np.full((1,) * len(declared.shape), value, _numpy(declared.type))
        return made

    def _neutral(self, name: str, declared: Declaration, call: Call, value: Any) -> np.ndarray:
        """Value that changes nothing; for an offset the one number that is given or is the default."""
        sequence, heads = (1, 2) if self._spec.layout == "BSHD" else (2, 1)
        q, k = call.shape("q"), call.shape("k")
        past = call.shape("past_key") if "past_key" in call.arrays else (0,) * _AXES
        if not len(q) == len(k) == len(past) == _AXES:  # what is wrong here is the model's to say
            raise NotImplementedError(f"the model takes {name} in every call, which follows the shapes of q and k")
        if name in ("kv_lengths", "causal_offset"):
            offset = past[sequence] if value is None else value
            number = offset if name == "causal_offset" else k[sequence] + past[sequence]
            return np.full(q[:1] if declared.shape else (), number, _numpy(declared.type))
        axes = len(declared.shape) or _AXES
        scores = (q[0], q[heads], q[sequence], k[sequence] + past[sequence])[_AXES - min(axes, _AXES) :]
        full = (1,) * (axes - len(scores)) + scores
        declarations = declared.shape or (None,) * axes
        shape = [1 if fixed == 1 else n for fixed, n in zip(declarations, full, strict=True)]
        return np.full(shape, name == "mask", _numpy(declared.type))


def _option_value(name: str, call: Call) -> Any:
    """The value of an option in a call, its default where it has one."""
    value = call.static.get(name)
    if value is None and name == "scale" and "q" in dict(call.shapes) and call.shape("q")[-1:] > (0,):
        return call.shape("q")[-1] ** -0.5
    if value is None and name.startswith(("is_", "pre_", "sequence_")):
        return False
    return value


def _same(fixed: Any, given: Any, dtype: str) -> bool:
    """Whether a constant is the requested one; a graph of float32 holds numbers of float32."""
    numbers = isinstance(fixed, float) and isinstance(given, (int, float))
    if numbers and dtype != "float64":
        return bool(np.float32(fixed) == np.float32(given))
    return bool(fixed == given)


def _numpy(type_: str) -> np.dtype:
    others = {**_INTEGERS, **_BOOLEAN}
    return others[type_] if type_ in others else np.dtype(getattr(ml_dtypes, DTYPES[type_], DTYPES[type_]))


def _converted(value: Any, declared: Declaration, shape: tuple[int, ...] | None, device: str) -> Any:
    """An array in the type and with the axes that a model declares, unchanged where it has them."""
    exact = declared.type in DTYPES or value.data_type() == declared.type
    if exact and shape is None:
        return value
    array = ort.get(value)
    array = array if exact else array.astype(_numpy(declared.type))
    return ort.put(array.reshape(shape or array.shape), device)


def static_sizes(inputs: Mapping[str, Declaration], layout: str) -> dict[str, tuple[int, ...]]:
    """The axes of a model of sdpa that are fixed, as an envelope declares them."""
    names = {
        "q": ("batch_sizes", "head_counts", "query_lengths", "head_widths"),
        "k": ("batch_sizes", "key_head_counts", "key_lengths", "head_widths"),
        "v": ("batch_sizes", "key_head_counts", "key_lengths", "value_widths"),
    }
    found: dict[str, tuple[int, ...]] = {}
    for argument, attributes in names.items():
        shape = inputs[argument].shape
        if len(shape) == _AXES:
            axes = (shape[0], shape[2], shape[1], shape[3]) if layout == "BSHD" else shape
            found |= {name: (n,) for name, n in zip(attributes, axes, strict=True) if isinstance(n, int)}
    past = inputs.get("past_key")
    if past is not None and "key_lengths" in found:  # Sk counts the keys of the past, which may be free
        (new,) = found.pop("key_lengths")
        before = past.shape[1 if layout == "BSHD" else 2] if len(past.shape) == _AXES else None
        found |= {"key_lengths": (new + before,)} if isinstance(before, int) else {}
    return found


class Model(Foreign):
    """A model's file, with its inputs and outputs by our names."""

    def __init__(self, path: Path, spec: ModelSpec, inputs: dict[str, Declaration], outputs: dict[str, str]) -> None:
        dtype = DTYPES[inputs[spec.operator.arguments[0]].type]
        given = {name for name in inputs if name not in spec.operator.arguments}
        requested = {
            keyword for name, keyword in spec.operator.results if keyword.startswith("return_") and name in outputs
        }
        profiles = {dtype: spec.profile} if spec.profile else {}
        keywords = frozenset(given | requested | spec.fixed.keys())
        super().__init__(Declared(spec.operator.name, keywords, (dtype,), profiles, spec.layout))
        self.path = path
        self.outputs = outputs
        if spec.operator is SDPA:
            for attribute, sizes in static_sizes(inputs, spec.layout).items():
                setattr(self, attribute, sizes)
        self.fitting = Fitting(spec, inputs)

    def prepared(self, call: Call) -> Function:
        """Opens the session.  Raises NotImplementedError for a call that the model does not fit."""
        lacking = [name for name in call.results() if name not in self.outputs]
        if lacking:
            raise NotImplementedError(f"the model has no output for {', '.join(lacking)}")
        fit = self.fitting.of(call)
        run = bound(session(str(self.path), call.device), [self.outputs[name] for name in call.results()], call.device)
        return lambda **arrays: run(**fit(arrays))


def model(source: str) -> Model:
    """The model of ``path.onnx:specification``.  Raises ImplementationError in one sentence."""
    place, _, text = source.partition(".onnx:")
    path = Path(f"{place}.onnx")
    who = path.name
    spec = naming.read(who, text)
    _check_file(path)
    try:
        opened = session(str(path), "cpu")
    except Exception as error:  # ONNX Runtime has a class for each status
        raise ImplementationError(f"ONNX Runtime does not open {who}: {str(error).splitlines()[0][:300]}") from None
    inputs = {each.name: Declaration(each.name, each.type, tuple(each.shape)) for each in opened.get_inputs()}
    named = _Names(who, spec, tuple(inputs), tuple(each.name for each in opened.get_outputs()))
    ours = {name: inputs[theirs] for name, theirs in named.inputs().items()}
    found = Fitting(spec, ours).unfit()
    if found:
        raise ImplementationError(f"{who}: {found}")
    return Model(path, spec, ours, named.outputs())


@dataclass(frozen=True)
class _Names:
    """The names of a model, and the user's specification of them."""

    who: str
    spec: ModelSpec
    ins: tuple[str, ...]
    outs: tuple[str, ...]

    def inputs(self) -> dict[str, str]:
        """The model's inputs by our names.  Raises ImplementationError if one is missing or is not one of ours."""
        operator = self.spec.operator
        results = [name for name, _ in operator.results]
        expected = [name for name in naming.ours(operator) if name not in results]
        for mine, theirs in self.spec.names.items():
            there, kind = (self.outs, "output") if mine in results else (self.ins, "input")
            if theirs not in there:
                raise ImplementationError(f"{self.who} has no {kind} {theirs!r}{nearest(theirs, there)}")
        found = self._recognised(self.ins, expected)
        stray = [name for name in self.ins if name not in found.values()]
        required = [*operator.arguments, *(name for name in operator.always if name in operator.arrays)]
        missing = [name for name in required if name not in found]
        missing += [n for n in operator.always if n not in found and n not in self.spec.fixed and n not in required]
        if missing or stray:
            what = f"no input for {', '.join(missing)}" if missing else f"an unknown input {stray[0]!r}"
            fixed = [f"{name}=…" for name in missing if name not in required]
            raise ImplementationError(f"{self.who} has {what}; {self._real()}{self._hint(fixed)}")
        for name in found.keys() & self.spec.fixed.keys():
            raise ImplementationError(f"{self.who}: {name} is an input, so it has no fixed value")
        return found

    def outputs(self) -> dict[str, str]:
        """The model's outputs by our names; the only output of a model is the first result."""
        results = [name for name, _ in self.spec.operator.results]
        found = self._recognised(self.outs, results)
        if len(self.outs) == 1 and not found:
            return {results[0]: self.outs[0]}
        if results[0] not in found:
            raise ImplementationError(f"{self.who} has no output for {results[0]}; {self._real()}{self._hint()}")
        return found

    def _recognised(self, theirs: tuple[str, ...], ours: list[str]) -> dict[str, str]:
        """The model's names by ours: those that it shares with us, and those that the specification maps."""
        spec = {mine: name for mine, name in self.spec.names.items() if mine in ours}
        same = {name: name for name in ours if name in theirs and name not in spec.values()}
        for name in same.keys() & spec.keys():
            raise ImplementationError(f"{self.who}: {spec[name]} is mapped to {name}, but the model has another {name}")
        return {**same, **spec}

    def _real(self) -> str:
        return f"its inputs are {', '.join(self.ins)}, its outputs {', '.join(self.outs)}"

    def _hint(self, fixed: Sequence[str] = ()) -> str:
        """Hint on what to type, for usual names, and for options that the graph must hold."""
        taken = {*self.spec.names.values(), *naming.ours(self.spec.operator)}
        pairs = list(fixed)
        for name in (*self.ins, *self.outs):
            guess = naming.ALIASES.get(
                name.lower(), name.lower() if name.lower() in naming.ours(self.spec.operator) else ""
            )
            if name not in taken and guess and guess not in self.spec.names:
                pairs.append(f"{name}={guess}")
        return f"; say which is which, as in {self.who}:{','.join(pairs) or 'name=q'}"


def _check_file(path: Path) -> None:
    """Refuse a file that is not a model, and data outside the model's folder."""
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
