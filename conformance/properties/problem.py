"""A random problem: one input with any options, drawn by a property test or by the evidence for the bounds.

It becomes an ordinary case, and its source text is a line that can be pasted into a file of cases: the name seeds
the data, so the same name and the same fields always give the same input.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from attention_conformance.conformance.cases.base import ALL_DTYPES, Case
from attention_conformance.conformance.cases.data import SMALL, Shape, drawn, lengths, random_bias, random_mask

#: Axes of a mask or bias: full (None), or of length 1.
Axes = tuple[int | None, ...]
FULL: Axes = (None, None, None, None)


@dataclass(frozen=True)
class RandomMask:
    """Each key allowed with probability ``keep``, the first key always (conformance.cases.data.random_mask)."""

    keep: float = 0.5
    axes: Axes = FULL


@dataclass(frozen=True)
class RandomBias:
    """Normal numbers (attention_conformance.conformance.cases.data.random_bias)."""

    spread: float = 1.0
    axes: Axes = FULL


@dataclass(frozen=True)
class Problem:
    """Shape, data and options of one input; options that are None or have their default are not given.

    ``kv_lengths`` has one entry per batch; ``causal_offset`` is one number, or a tuple with one per batch.
    """

    name: str
    shape: Shape = SMALL
    spread: float = 1.0
    offset: float = 0.0
    outlier: float = 1.0
    values: float = 1.0
    mask: RandomMask | None = None
    bias: RandomBias | None = None
    is_causal: bool = False
    causal_offset: int | tuple[int, ...] | None = None
    window: tuple[int | None, int | None] | None = None
    kv_lengths: tuple[int, ...] | None = None
    scale: float | None = None
    softcap: float | None = None
    return_weights: bool = False
    return_lse: bool = False

    def case(self, clauses: str = "SDPA-25", why: str = "A random problem.") -> Case:
        """The problem as a case, for every dtype."""
        data = drawn(self.spread, self.offset, self.outlier, self.values)
        return Case(self.name, tuple(clauses.split()), why, self.shape, data, self._options(), dtypes=ALL_DTYPES)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("is_causal", "window", "scale", "softcap", "return_weights", "return_lse")
            if getattr(self, name) is not None and getattr(self, name) is not False  # a scale of 0 is given
        }
        if self.mask is not None:
            options["mask"] = random_mask(self.mask.keep, self.mask.axes)
        if self.bias is not None:
            options["bias"] = random_bias(self.bias.spread, self.bias.axes)
        if self.kv_lengths is not None:
            options["kv_lengths"] = lengths(*self.kv_lengths)
        if self.causal_offset is not None:
            offset = self.causal_offset
            options["causal_offset"] = offset if isinstance(offset, int) else lengths(*offset)
        return options

    def source(self, clauses: str = "SDPA-25", why: str = "Found by a property test.") -> str:
        """The line that makes the same case in a file of conformance/cases."""
        data = _call("drawn", self, ("spread", "offset", "outlier", "values"))
        parts = [repr(self.name), repr(clauses), repr(why), _call("Shape", self.shape), f"data={data}"]
        if self.mask is not None:
            parts.append(f"mask=random_mask({self.mask.keep!r}, {self.mask.axes!r})")
        if self.bias is not None:
            parts.append(f"bias=random_bias({self.bias.spread!r}, {self.bias.axes!r})")
        for name, value in self._options().items():
            if name in ("mask", "bias"):
                continue
            given = getattr(self, name)
            text = f"lengths{given!r}".replace(",)", ")") if callable(value) else repr(value)
            parts.append(f"{name}={text}")
        return f"yield case({', '.join(parts)})"


def _call(name: str, record: Any, names: tuple[str, ...] = ()) -> str:
    """``name(field=value, …)`` with the fields of a record that are not the default."""
    chosen = [f for f in fields(record) if (not names or f.name in names) and getattr(record, f.name) != f.default]
    return f"{name}({', '.join(f'{f.name}={getattr(record, f.name)!r}' for f in chosen)})"
