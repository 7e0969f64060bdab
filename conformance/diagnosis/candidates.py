"""Lifted faults: faults of attention, or of its backward pass, as candidates for an operator that contains it."""

from __future__ import annotations

import functools

from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.latent import Latent
from attention_conformance.conformance.faults.models.mha import Layer, Sublayer
from attention_conformance.conformance.faults.models.mha_gradients import LayerBackward
from attention_conformance.conformance.faults.models.paged import Paged
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.models.varlen import Packed
from attention_conformance.conformance.faults.models.varlen_gradients import PackedBackward
from attention_conformance.conformance.faults.registry import Fault, faults_of

#: Class attributes of a model that hold an inner model, and the correct inner model.
INNER: dict[str, type[Model]] = {"attention": Attention, "backward": Backward}

#: Operators that contain attention or its backward pass: their models, and the attribute that holds it.
_OUTER: dict[str, tuple[type[Model], str]] = {
    "mha": (Layer, "attention"),
    "sublayer": (Sublayer, "attention"),
    "varlen": (Packed, "attention"),
    "paged": (Paged, "attention"),
    "latent": (Latent, "attention"),
    "mha_grad": (LayerBackward, "backward"),
    "varlen_grad": (PackedBackward, "backward"),
}


def inner(make: type[Model]) -> type[Model]:
    """The faulty inner model of a model, or the model itself where its inner models are correct."""
    held = (getattr(make, name, right) for name, right in INNER.items())
    return next((model for model in held if model not in INNER.values()), make)


def in_operator(make: type[Model], operator: str) -> type[Model]:
    """A model of an operator that is correct except for its attention or its backward pass."""
    return _in_operator(make, operator)  # type: ignore[arg-type]  # a class is hashable


@functools.lru_cache(maxsize=4000)
def _in_operator(make: type[Model], operator: str) -> type[Model]:
    if operator not in _OUTER:
        return make
    base, name = _OUTER[operator]
    return type(f"{make.__name__}In{base.__name__}", (base,), {name: make, "__module__": __name__})


def candidates_of(operator: str) -> list[Fault]:
    """The faults that may explain failures of an operator: its own, then those of the attention within."""
    return list(_candidates_of(operator))


@functools.cache
def _candidates_of(operator: str) -> tuple[Fault, ...]:
    own = tuple(faults_of(operator))
    if operator not in _OUTER:
        return own
    layers = tuple(_sublayer(fault) for fault in faults_of("mha")) if operator == "sublayer" else ()
    _, name = _OUTER[operator]
    right = INNER[name]
    within = {getattr(fault.make, name, right) for fault in own}
    lifted = (
        Fault(fault.name, fault.clause, fault.title, fault.sources, in_operator(fault.make, operator))
        for fault in faults_of(right.operator)
        if issubclass(fault.make, right) and fault.make not in within
    )
    return (*own, *layers, *lifted)


def _sublayer(fault: Fault) -> Fault:
    """A fault of the layer within a sub-layer."""
    try:
        make = type(f"{fault.make.__name__}InSublayer", (fault.make, Sublayer), {"__module__": __name__})
    except TypeError:  # their method resolution orders conflict
        make = fault.make
    return Fault(fault.name, fault.clause, fault.title, fault.sources, make)
