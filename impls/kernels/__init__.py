"""Adapters of real device kernels that other packages ship, one small file each.

They are plugged in by module, ``attention_conformance.impls.kernels.pallas_gpu:mha@pallas``, and are no part of a run
of the built-in implementations.  An adapter translates names and layouts, and says what a kernel takes; no source of a
kernel is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def declared(**said: Any) -> Callable[[Any], Any]:
    """A decorator that sets what a function says of itself (impls/PLUGINS.md) as its attributes."""

    def decorate(function: Any) -> Any:
        for name, value in said.items():
            setattr(function, name, value)
        return function

    return decorate
