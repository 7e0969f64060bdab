"""Whose memory grows with the square of the sequence length: the table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attention_conformance.bench.analysis.fits import Growth, Memory
from attention_conformance.reports.html.views import Cell, Table, columns, number, size
from attention_conformance.reports.model.memory import RULE


def table(found: Sequence[Memory]) -> Table:
    """One row for each."""
    rows = tuple(
        (
            Cell(one.implementation, look="name"),
            Cell(one.family, look="name"),
            Cell(one.device),
            Cell(one.dtype),
            Cell(one.growth.value, look="known-deviation" if one.growth is Growth.QUADRATIC else ""),
            number(one.line.exponent if one.line else math.nan, tip=exponent_interval(one)),
            number(one.bytes, size(one.bytes)),
            number(one.bytes / one.scores),
            Cell(str(one.longest), one.longest),
        )
        for one in found
    )
    numbers = ("exponent", "memory", "bytes a score", "at S")
    heads = columns("implementation", "family", "device", "dtype", "growth", *numbers, numbers=numbers)
    return Table("memory", "Memory against sequence length", heads, rows, RULE)


def exponent_interval(one: Memory) -> str:
    """How the exponent is known, or why there is none."""
    if one.line is None:
        return "no exponent: fewer than three lengths have a mebibyte"
    parts = f"95 % interval {one.line.low:.2f} to {one.line.high:.2f}, S {one.line.shortest} to {one.line.longest}"
    share = max(0.0, one.squared / one.bytes) if one.bytes else math.nan
    return parts if math.isnan(share) else f"{parts}; {100 * share:.0f} % of the bytes grow as S²"
