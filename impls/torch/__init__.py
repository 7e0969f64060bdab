"""Implementations in torch."""

from __future__ import annotations

from impls.contract import Implementation

IMPLEMENTATIONS: tuple[Implementation, ...] = ()
