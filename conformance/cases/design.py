"""Covering designs: few rows in which every pair of sizes and options meets, and every requested triple.

Greedy, as AETG (Cohen et al. 1997): each row begins with a combination that is still missing, and is completed by the
one of some random completions that adds most missing combinations.  Libraries for covering arrays were tried; with a
limit on a row's cost they take minutes, too long for a run, which makes a design within each envelope.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

#: Completions that are tried for each row.
TRIED = 48

#: Number of combinations by which a row at the cost limit must exceed one of no cost.
PRICE = 3.0


class Row(NamedTuple):
    """One case of a design: its sizes, its options by the name of their set, its dtype, and whether lse is returned."""

    sq: int
    sk: int
    #: (D, Dv).
    width: tuple[int, int]
    #: Query heads per key head, and key heads.
    group: int
    hkv: int
    b: int
    option: str
    dtype: str
    lse: bool

    @property
    def cost(self) -> int:
        """Multiplications of one product of all scores, with the width halfway between D and Dv."""
        return self.b * self.hkv * self.group * self.sq * self.sk * sum(self.width) // 2


@dataclass(frozen=True)
class Factors:
    """Allowed values of each part of a row; ``limit`` bounds a row's cost, and ``allows`` is a further condition."""

    sq: tuple[int, ...]
    sk: tuple[int, ...]
    width: tuple[tuple[int, int], ...]
    group: tuple[int, ...]
    hkv: tuple[int, ...]
    b: tuple[int, ...]
    option: tuple[str, ...]
    dtype: tuple[str, ...]
    lse: tuple[bool, ...]
    #: Triples of parts whose values must meet in every way, and which values (all of a part that is not named).
    triples: tuple[tuple[str, str, str], ...] = ()
    within: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    limit: int = 1 << 21
    #: Whether a row is possible, whatever it costs: only equal lengths, for an implementation that takes no others.
    allows: Callable[[Row], bool] | None = None

    def values(self, name: str) -> tuple[Any, ...]:
        """Allowed values of a part."""
        allowed: tuple[Any, ...] = getattr(self, name)
        return allowed


#: Parts of a row, in order.
PARTS = Row._fields


@dataclass(frozen=True)
class Coverage:
    """Coverage of some parts of a row: combinations of their values, how many are reached, how many no row can have."""

    parts: tuple[str, ...]
    total: int
    reached: int
    #: Combinations that the cost limit excludes, and that ``allows`` excludes.
    too_large: int
    refused: int


@dataclass(frozen=True)
class Design:
    """Rows that reach every possible combination, and the count."""

    rows: tuple[Row, ...]
    coverage: tuple[Coverage, ...]


def design(factors: Factors, seed: int = 0) -> Design:
    """The rows of a covering design; the same for the same factors and seed.

    Parameters
    ----------
    factors
        Allowed values and the requested triples; every pair is always requested.
    seed
        Seed of the completions that are tried.

    Returns
    -------
    Design
        No row occurs twice; no rows where a part has no allowed value.
    """
    return _Maker(factors, seed).design()


class _Maker:
    """A design under construction; a row is a vector of indices into the values of its parts."""

    def __init__(self, factors: Factors, seed: int) -> None:
        self.factors, self.rng = factors, np.random.default_rng(seed)
        self.values = {name: factors.values(name) for name in PARTS}
        self.sizes = np.array([len(self.values[name]) for name in PARTS])
        pairs = itertools.combinations(range(len(PARTS)), 2)
        triples = (tuple(PARTS.index(name) for name in triple) for triple in factors.triples)
        self.parts: list[tuple[int, ...]] = [*triples, *pairs]
        self.costs = [np.array([_cost(name, value) for value in self.values[name]], float) for name in PARTS]
        self.cheapest = np.array([int(np.argmin(c)) if len(c) else 0 for c in self.costs])
        self.rows: list[Row] = []

    def design(self) -> Design:
        if not self.sizes.all():
            return Design((), ())
        missing = {parts: self.possible(parts) for parts in self.parts}
        counts = {parts: int(found.sum()) for parts, found in missing.items()}
        refused = dict.fromkeys(self.parts, 0)
        for parts in self.parts:
            for at in np.argwhere(missing[parts]):
                if not missing[parts][tuple(at)]:
                    continue
                row = self.best(parts, at, missing)
                if row is None:
                    missing[parts][tuple(at)] = False
                    refused[parts] += 1
                    continue
                self.rows.append(self.row(row))
                for other in self.parts:
                    missing[other][tuple(row[list(other)])] = False
        coverage = tuple(self.counted(parts, counts[parts], refused[parts]) for parts in self.parts)
        return Design(tuple(self.rows), coverage)

    def counted(self, parts: tuple[int, ...], possible: int, refused: int) -> Coverage:
        asked = int(np.prod([len(self.asked(part, len(parts))) for part in parts]))
        return Coverage(tuple(PARTS[part] for part in parts), asked, possible - refused, asked - possible, refused)

    def asked(self, part: int, strength: int) -> np.ndarray:
        """Indices of the values of a part that must meet others: for triples the values named in ``within``."""
        values = self.values[PARTS[part]]
        within = self.factors.within.get(PARTS[part], values) if strength > 2 else values
        return np.array([i for i, value in enumerate(values) if value in within], int)

    def possible(self, parts: tuple[int, ...]) -> np.ndarray:
        """Requested combinations whose cheapest completion costs no more than the limit."""
        least = np.prod([self.costs[i][self.cheapest[i]] for i in range(len(PARTS)) if i not in parts])
        cost = np.full([self.sizes[part] for part in parts], least)
        found = np.ones(cost.shape, bool)
        for axis, part in enumerate(parts):
            shape = [-1 if i == axis else 1 for i in range(len(parts))]
            named = np.isin(np.arange(self.sizes[part]), self.asked(part, len(parts)))
            cost, found = cost * self.costs[part].reshape(shape), found & named.reshape(shape)
        return found & (cost <= self.factors.limit)

    def best(self, parts: tuple[int, ...], at: np.ndarray, missing: dict[tuple[int, ...], np.ndarray]) -> Any:
        """The completion that adds most; None where no tried one is allowed."""
        tried = np.concatenate([self.cheapest[None], self.rng.integers(self.sizes, size=(TRIED, len(PARTS)))])
        tried[:, list(parts)] = at
        self.join(tried, parts, missing)
        self.shrink(tried, parts)
        cost = np.prod([self.costs[i][tried[:, i]] for i in range(len(PARTS))], axis=0)
        good = cost <= self.factors.limit
        if self.factors.allows is not None:
            good &= np.array([self.factors.allows(self.row(each)) for each in tried])
        if not good.any():
            return None
        brought = sum(missing[other][tuple(tried[:, list(other)].T)].astype(float) for other in self.parts)
        return tried[np.argmax(np.where(good, brought - PRICE * cost / self.factors.limit, -np.inf))]

    def join(self, tried: np.ndarray, parts: tuple[int, ...], missing: dict[tuple[int, ...], np.ndarray]) -> None:
        """Give three quarters of the rows, but not the first, a missing triple that fits."""
        for other in self.parts[: len(self.factors.triples)]:
            free = [axis for axis, part in enumerate(other) if part not in parts]
            fixed = tuple(slice(None) if part not in parts else tried[0, part] for part in other)
            found = np.argwhere(missing[other][fixed])
            if free and len(found):
                some = slice(1, 1 + 3 * TRIED // 4)
                chosen = found[self.rng.integers(len(found), size=3 * TRIED // 4)]
                for column, axis in enumerate(free):
                    tried[some, other[axis]] = chosen[:, column]

    def shrink(self, tried: np.ndarray, parts: tuple[int, ...]) -> None:
        """Bring costly rows under the limit: set one random part after another to its cheapest value, lengths last."""
        order = self.rng.permutation([i for i in range(len(PARTS)) if i not in parts])
        for part in sorted(order, key=lambda part: PARTS[part] in ("sq", "sk")):
            cost = np.prod([self.costs[i][tried[:, i]] for i in range(len(PARTS))], axis=0)
            tried[cost > self.factors.limit, part] = self.cheapest[part]

    def row(self, indices: np.ndarray) -> Row:
        return Row(*(self.values[name][i] for name, i in zip(PARTS, indices, strict=True)))


def _cost(name: str, value: Any) -> float:
    """Factor of a value in the cost of a row."""
    if name == "width":
        return sum(value) / 2
    return float(value) if name in ("sq", "sk", "group", "hkv", "b") else 1.0


def restricted(factors: Factors, **allowed: tuple[Any, ...]) -> Factors:
    """The factors with only the allowed values of some parts, in the order of the factors."""
    kept = {f.name: getattr(factors, f.name) for f in fields(factors)}
    for name, values in allowed.items():
        kept[name] = tuple(value for value in kept[name] if value in values)
    return Factors(**kept)
