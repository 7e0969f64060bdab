"""Known wrong ways to compute attention, each a few lines over a correct one, each from a real bug.

They prove the suite (every one fails at least two cases, kills.py) and name mistakes (diagnosis.py).  Each can be
plugged in like a user's function: ``pytest conformance --impl attention_conformance.conformance.faults:causal_bottom_right``.
"""

from __future__ import annotations

import importlib

from attention_conformance.conformance.faults import registry
from attention_conformance.conformance.faults.models.sdpa import Anatomy
from attention_conformance.conformance.faults.registry import FAULTS, Fault

__all__ = ["FAULTS", "GROUPS", "Fault"]

#: The modules that hold faults, one class of mistakes each, in the order of tables.
GROUPS = (
    "empty_rows",
    "fills",
    "masks",
    "broadcasting",
    "causal",
    "windows",
    "lengths",
    "scaling",
    "softcaps",
    "sinks",
    "decoding",
    "present",
    "grouping",
    "online",
    "indexing",
    "precision",
    "special",
    "form",
    "memory",
    "state",
    "validation",
    "projections",
    "splitting",
    "attending",
    "sublayers",
    "norms",
    "gradients",
    "gradient_masks",
    "layer_gradients",
    "layer_gradient_rows",
)
for _group in GROUPS:
    importlib.import_module(f"{__name__}.{_group}")

_INSTANCES: dict[str, Anatomy] = {}


def __getattr__(attribute: str) -> Anatomy:
    """The instance of a fault, made once: ``attention_conformance.conformance.faults.causal_bottom_right``."""
    name = attribute.replace("_", "-")
    if attribute.startswith("_") or name not in registry.FAULTS:
        raise AttributeError(f"module {__name__!r} has no fault {attribute!r}")
    if attribute not in _INSTANCES:
        _INSTANCES[attribute] = registry.FAULTS[name].make()
    return _INSTANCES[attribute]
