"""Lifted faults: what attention does wrongly, within a layer or a sub-layer, as an explanation of their failures."""

from __future__ import annotations

import functools

from attention_conformance.conformance.faults.models.latent import Latent
from attention_conformance.conformance.faults.models.mha import Layer, Sublayer
from attention_conformance.conformance.faults.models.paged import Paged
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.models.varlen import Packed
from attention_conformance.conformance.faults.registry import Fault, faults_of

#: The operators that have attention within.
_LAYERS: dict[str, type[Layer | Packed | Latent]] = {
    "mha": Layer,
    "sublayer": Sublayer,
    "varlen": Packed,
    "paged": Paged,
    "latent": Latent,
}


def in_operator(make: type[Attention], operator: str) -> type[Model]:
    """A model of an operator, right but for its attention."""
    return _in_operator(make, operator)  # type: ignore[arg-type]  # a class is hashable


@functools.lru_cache(maxsize=4000)
def _in_operator(make: type[Attention], operator: str) -> type[Model]:
    if operator not in _LAYERS:
        return make
    base = _LAYERS[operator]
    return type(f"{make.__name__}In{base.__name__}", (base,), {"attention": make, "__module__": __name__})


def candidates_of(operator: str) -> list[Fault]:
    """The faults that may explain failures of an operator: its own, then those of the attention within."""
    return list(_candidates_of(operator))


@functools.cache
def _candidates_of(operator: str) -> tuple[Fault, ...]:
    own = tuple(faults_of(operator))
    if operator not in _LAYERS:
        return own
    layers = tuple(_sublayer(fault) for fault in faults_of("mha")) if operator == "sublayer" else ()
    within = {fault.make.attention for fault in own if issubclass(fault.make, (Layer, Packed))}
    lifted = (
        Fault(fault.name, fault.clause, fault.title, fault.sources, in_operator(fault.make, operator))
        for fault in faults_of("sdpa")
        if issubclass(fault.make, Attention) and fault.make not in within
    )
    return (*own, *layers, *lifted)


def _sublayer(fault: Fault) -> Fault:
    """A fault of the layer within a sub-layer."""
    try:
        make = type(f"{fault.make.__name__}InSublayer", (fault.make, Sublayer), {"__module__": __name__})
    except TypeError:  # their orders of methods contradict each other
        make = fault.make
    return Fault(fault.name, fault.clause, fault.title, fault.sources, make)
