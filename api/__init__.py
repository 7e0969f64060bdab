"""attention-conformance: says whether an implementation of attention is right, accurate and fast, and what changed.

The command line is :mod:`attention_conformance.cli`.  This module imports nothing, so that the pytest plugin costs
nothing in runs that are not of the suite.
"""

from __future__ import annotations

from pathlib import Path

#: In a checkout this folder is api/, and the rooms impls, conformance, bench and reports are beside it.
_HERE = Path(__file__).resolve().parent
if _HERE.name == "api" and str(_HERE.parent) not in __path__:
    __path__.append(str(_HERE.parent))
