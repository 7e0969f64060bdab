"""What is said of a model behind its name: ``query=q,attn_out=output,is_causal=True,layout=BSHD``.

A name of ours on the right says which input or output of the model is meant, the model's name being on the left.
Otherwise an option of ours stands on the left, with the value that the graph holds; or layout, operator or profile.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from impls.contract import ImplementationError
from impls.foreign.declared import known_operator
from impls.loading import nearest
from impls.operators import OPERATORS, SDPA, Operator

#: What is said of the model as a whole.
_WHOLE = ("layout", "operator", "profile")

#: Commas that are not inside parentheses: ``window=(3,0)`` is one item.
_COMMAS = re.compile(r",(?![^(]*\))")

#: Names of inputs and outputs that other people give, for hints alone.
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
class Said:
    """What a user says of a model."""

    operator: Operator
    #: Names of the model by ours.
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
    """Whether a keyword asks for a result, or says how to give it, and is no value that attention is computed from."""
    return keyword.startswith("return_") or (keyword == "average_weights" and keyword in operator.keywords)


def read(who: str, text: str) -> Said:
    """What the text says.  Raises ImplementationError for an item that says nothing."""
    items = [item.strip() for item in _COMMAS.split(text) if item.strip()]
    whole = dict.fromkeys(_WHOLE, "")
    pairs = [(item, *_sides(who, item)) for item in items]
    operator = OPERATORS[known_operator(who, next((b for _, a, b in pairs if a == "operator"), SDPA.name))]
    names: dict[str, str] = {}
    fixed: dict[str, Any] = {}
    for item, left, right in pairs:
        if right in ours(operator):
            if right in names:
                raise ImplementationError(f"{who}: both {names[right]} and {left} are said to be {right}")
            names[right] = left
        elif left in _WHOLE:
            whole[left] = right
        elif left in operator.keywords and left not in operator.arrays:
            fixed[left] = _value(who, item, right)
        else:
            hint = nearest(right, ours(operator))
            raise ImplementationError(f"{who}: {item}: {right!r} is no name of ours{hint}")
    return Said(operator, names, fixed, whole["layout"] or Said.layout, whole["profile"])


def _sides(who: str, item: str) -> tuple[str, str]:
    left, equals, right = item.rpartition("=")
    if not equals or not left or not right:
        raise ImplementationError(f"{who}: {item!r} is not name=ours or option=value")
    return left.strip(), right.strip()


def _value(who: str, item: str, text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        raise ImplementationError(f"{who}: {item}: {text!r} is neither a value nor a name of ours") from None
