"""Foreign targets of ``--impl``: ``model.onnx:query=q,attn_out=output,is_causal=True``, and ``./program --flag``.

The items after a model's name say which of its names are ours: the model's name of an input or output is on the left,
our name for it on the right.  Any other item has an option of ours on the left, with the value that the graph holds; or
layout, operator or profile.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.impls.contract import Framework, Implementation, ImplementationError
from attention_conformance.impls.foreign.declared import known_operator
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.operators import OPERATORS, SDPA, Operator

#: Items about the model as a whole.
_WHOLE = ("layout", "operator", "profile")

#: Commas that are not inside parentheses: ``window=(3,0)`` is one item.
_COMMAS = re.compile(r",(?![^(]*\))")

#: A model, and its specification after the colon.  Letters, colons, commas and equals mean nothing to a shell.
_MODEL = re.compile(r"(?P<path>.*?\.onnx)(?::(?P<spec>.*))?")
#: A function in a file, as ``impls.select`` reads it; the path may have spaces.
_FUNCTION = re.compile(r".*\.py:[A-Za-z_][\w.]*(@\w*)?(\+gradients)?")

#: Common names of inputs and outputs, only for hints.
ALIASES = {
    "query": "q",
    "key": "k",
    "value": "v",
    "attention_mask": "mask",
    "attn_mask": "mask",
    "attn_bias": "bias",
    "attn_out": "output",
    "attn_output": "output",
    "out": "output",
    "attn_weights": "weights",
    "seqlens": "kv_lengths",
    "nonpad_kv_seqlen": "kv_lengths",
}


@dataclass(frozen=True)
class ModelSpec:
    """A user's specification of a model: which of its names are ours, and the options that it holds."""

    operator: Operator
    #: The model's names by ours.
    names: Mapping[str, str]
    #: Options that the graph holds as constants.
    fixed: Mapping[str, Any]
    layout: str = "BHSD"
    profile: str = ""


def ours(operator: Operator) -> tuple[str, ...]:
    """The names that inputs and outputs may have: arguments, keywords that are a number or an array, results."""
    keywords = (name for name in operator.keywords if not asks(operator, name) and name != "window")
    return (*operator.arguments, *keywords, *(name for name, _ in operator.results))


def asks(operator: Operator, keyword: str) -> bool:
    """Whether a keyword requests a result, or says how to return it: attention is not computed from its value."""
    return keyword.startswith("return_") or (keyword == "average_weights" and keyword in operator.keywords)


def read(who: str, text: str) -> ModelSpec:
    """The specification in a text.  Raises ImplementationError for an item that specifies nothing."""
    items = [item.strip() for item in _COMMAS.split(text) if item.strip()]
    whole = dict.fromkeys(_WHOLE, "")
    pairs = [(item, *_sides(who, item)) for item in items]
    operator = OPERATORS[known_operator(who, next((b for _, a, b in pairs if a == "operator"), SDPA.name))]
    names: dict[str, str] = {}
    fixed: dict[str, Any] = {}
    for item, left, right in pairs:
        if right in ours(operator):
            if right in names:
                raise ImplementationError(f"{who}: both {names[right]} and {left} are mapped to {right}")
            names[right] = left
        elif left in _WHOLE:
            whole[left] = right
        elif left in operator.keywords and left not in operator.arrays:
            fixed[left] = _value(who, item, right)
        else:
            hint = nearest(right, ours(operator))
            raise ImplementationError(f"{who}: {item}: {right!r} is not a name that the suite knows{hint}")
    return ModelSpec(operator, names, fixed, whole["layout"] or ModelSpec.layout, whole["profile"])


def _sides(who: str, item: str) -> tuple[str, str]:
    left, equals, right = item.rpartition("=")
    if not equals or not left or not right:
        raise ImplementationError(f"{who}: {item!r} is not name=ours or option=value")
    return left.strip(), right.strip()


def _value(who: str, item: str, text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        raise ImplementationError(
            f"{who}: {item}: {text!r} is neither a value nor a name that the suite knows"
        ) from None


def foreign(text: str) -> Implementation | None:
    """The implementation that a text names, None if it names nothing foreign.  Raises ImplementationError."""
    if _FUNCTION.fullmatch(text):
        return None
    model = _MODEL.fullmatch(text)
    return _model(text, model["path"], model["spec"] or "") if model else _program(text)


def _model(text: str, place: str, spec: str) -> Implementation:
    path = Path(place).resolve()
    if not path.is_file():
        raise ImplementationError(f"--impl {text}: no file {place}, looked for at {path}{_near(path)}")
    return Implementation(
        name=text,
        target="attention_conformance.impls.onnx.file:model",
        framework=Framework.ONNXRUNTIME,
        prepare="attention_conformance.impls.foreign.declared:prepare",
        requires=("onnxruntime", "onnx"),
        source=f"{path}:{spec}",
        folder=os.getcwd(),
        summary="a model, plugged in",
    )


def _program(text: str) -> Implementation | None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ImplementationError(f"--impl {text}: {str(error).lower()}") from None
    if not words or not (os.sep in words[0] or (len(words) > 1 and ":" not in words[0])):
        return None
    found = _executable(text, words[0])
    if found is None:
        return None
    return Implementation(
        name=text,
        target="attention_conformance.impls.foreign.program:program",
        prepare="attention_conformance.impls.foreign.declared:prepare",
        devices=("cpu",),
        requires=("safetensors",),
        source=shlex.join([found, *words[1:]]),
        folder=os.getcwd(),
        summary="a program, plugged in",
    )


def _executable(text: str, word: str) -> str | None:
    """The path of a program, None for a text that means Python.  Raises ImplementationError."""
    if os.sep not in word:
        found = shutil.which(word)
        if found is None:
            raise ImplementationError(f"--impl {text}: no program {word} on the path")
        return found
    path = Path(word).resolve()
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    if path.suffix == ".py" or ":" in word:
        return None
    if path.is_file():
        raise ImplementationError(f"--impl {text}: {word} is not executable: chmod +x {shlex.quote(word)}")
    if path.is_dir():
        raise ImplementationError(f"--impl {text}: {word} is a folder")
    raise ImplementationError(f"--impl {text}: no program {word}, looked for at {path}{_near(path)}")


def _near(path: Path) -> str:
    """Half a sentence with the files of the folder that may be meant."""
    if not path.parent.is_dir():
        return ""
    hint = nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    return hint if "did you mean" in hint else ""
