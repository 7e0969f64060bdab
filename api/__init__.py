"""attention-conformance: says whether an implementation of attention is right, accurate and fast, and what changed.

>>> from attention_conformance import check
>>> report = check(my_attention)  # doctest: +SKIP

The public names are those of ``__all__``; API.md has a page for each.  The command line is
:mod:`attention_conformance.cli`.  A name is imported when it is first used, so that the pytest plugin costs nothing in
other runs.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attention_conformance.benchmarking import BenchmarkReport, Ratio, Timing, benchmark
    from attention_conformance.checking import FailedCase, Report, check
    from attention_conformance.conformance.closeness import (
        Closeness,
        NotClose,
        assert_close,
        assert_latent_close,
        assert_layer_close,
        assert_merge_close,
        assert_paged_close,
        assert_varlen_close,
        error_share,
        layer_error_share,
    )
    from attention_conformance.parametrizing import Check, parametrize

#: The modules that the public names are in.
_PUBLIC = {
    "BenchmarkReport": "benchmarking",
    "Check": "parametrizing",
    "Closeness": "conformance.closeness",
    "FailedCase": "checking",
    "NotClose": "conformance.closeness",
    "Ratio": "benchmarking",
    "Report": "checking",
    "Timing": "benchmarking",
    "assert_close": "conformance.closeness",
    "assert_latent_close": "conformance.closeness",
    "assert_layer_close": "conformance.closeness",
    "assert_merge_close": "conformance.closeness",
    "assert_paged_close": "conformance.closeness",
    "assert_varlen_close": "conformance.closeness",
    "benchmark": "benchmarking",
    "check": "checking",
    "error_share": "conformance.closeness",
    "layer_error_share": "conformance.closeness",
    "parametrize": "parametrizing",
}

__all__ = [
    "BenchmarkReport",
    "Check",
    "Closeness",
    "FailedCase",
    "NotClose",
    "Ratio",
    "Report",
    "Timing",
    "assert_close",
    "assert_latent_close",
    "assert_layer_close",
    "assert_merge_close",
    "assert_paged_close",
    "assert_varlen_close",
    "benchmark",
    "check",
    "error_share",
    "layer_error_share",
    "parametrize",
]

#: In a checkout this folder is api/, and the rooms impls, conformance, bench and reports are next to it.
_HERE = Path(__file__).resolve().parent
if _HERE.name == "api" and str(_HERE.parent) not in __path__:
    __path__.append(str(_HERE.parent))


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
