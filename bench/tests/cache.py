"""The operator sdpa with keywords for past keys and values, whether or not the suite has them yet."""

from __future__ import annotations

import dataclasses

from attention_conformance.impls.operators import SDPA, Operator

_PAST = ("past_key", "past_value")
_PRESENT = (("present_key", "past_key"), ("present_value", "past_value"))


def with_cache() -> Operator:
    """The operator as it is, or with what it lacks of past keys and present ones."""
    if "past_key" in SDPA.keywords:
        return SDPA
    return dataclasses.replace(
        SDPA,
        keywords=(*SDPA.keywords, *_PAST),
        arrays=(*SDPA.arrays, *_PAST),
        results=(*SDPA.results, *_PRESENT),
    )
