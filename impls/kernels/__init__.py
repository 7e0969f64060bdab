"""Adapters of real device kernels that other packages ship, one small file each.

They are plugged in by module, ``attention_conformance.impls.kernels.pallas_gpu:mha@pallas``, and are no part of a run
of the built-in implementations.  An adapter translates names and layouts, and says what a kernel takes; no source of a
kernel is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def declared(**attributes: Any) -> Callable[[Any], Any]:
    """A decorator that sets the attributes of a plug-in (impls/PLUGINS.md)."""

    def decorate(function: Any) -> Any:
        for name, value in attributes.items():
            setattr(function, name, value)
        return function

    return decorate
