"""Faults: attention computed wrongly in one known way, each a few lines over a correct model, each from a real bug.

They prove the suite (each fails at least two cases, kill_matrix.py) and name mistakes (diagnosis/match.py).  Each can
be plugged in like a user's function: ``--impl attention_conformance.conformance.faults:causal_bottom_right``.
"""

from __future__ import annotations

import importlib

from attention_conformance.conformance.faults import registry
from attention_conformance.conformance.faults.models.sdpa import Model
from attention_conformance.conformance.faults.registry import FAULTS, Fault

__all__ = ["FAULTS", "GROUPS", "PATH_FAULTS", "Fault"]

#: The modules that hold faults, one class of mistakes each, in the order of the kill matrix.
GROUPS = (
    "sdpa/fully_masked_rows",
    "sdpa/fills",
    "sdpa/masks",
    "sdpa/broadcasting",
    "sdpa/causal",
    "sdpa/windows",
    "sdpa/lengths",
    "sdpa/scaling",
    "sdpa/softcaps",
    "sdpa/sinks",
    "sdpa/by_head",
    "sdpa/rotary",
    "sdpa/blocks",
    "sdpa/trees",
    "decoding/past",
    "decoding/present",
    "sdpa/grouping",
    "sdpa/online_softmax",
    "sdpa/ranks",
    "sdpa/indexing",
    "sdpa/precision",
    "sdpa/nan",
    "sdpa/output_form",
    "sdpa/memory",
    "sdpa/state",
    "sdpa/validation",
    "mha/projections",
    "mha/splitting",
    "mha/masks",
    "mha/sublayers",
    "mha/norms",
    "gradients/sdpa",
    "gradients/sdpa_masks",
    "gradients/mha",
    "gradients/mha_rows",
    "gradients/varlen",
    "gradients/merge",
    "serving/varlen",
    "serving/varlen_bias",
    "serving/paged",
    "serving/latent",
    "merge/weights",
    "merge/empty_parts",
    "merge/precision",
    "merge/indexing",
    "merge/memory",
)
for _group in GROUPS:
    importlib.import_module(f"{__name__}.{_group.replace('/', '.')}")

#: Faults on paths of kernels, some of them forms of the above, which are therefore registered first, in their order.
PATH_FAULTS: dict[str, Fault] = importlib.import_module(f"{__name__}.paths").PATH_FAULTS

_INSTANCES: dict[str, Model] = {}


def __getattr__(attribute: str) -> Model:
    """The instance of a fault, made once: ``faults.causal_bottom_right``."""
    name = attribute.replace("_", "-")
    found = registry.FAULTS | PATH_FAULTS
    if attribute.startswith("_") or name not in found:
        raise AttributeError(f"module {__name__!r} has no fault {attribute!r}")
    if attribute not in _INSTANCES:
        _INSTANCES[attribute] = found[name].make()
    return _INSTANCES[attribute]


def forget(attribute: str) -> None:
    """Make the instance of a fault as good as new: some keep something of every call."""
    fault = __getattr__(attribute)
    vars(fault).clear()
    vars(fault).update(vars(type(fault)()))
