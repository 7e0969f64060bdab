"""An example recomputed with exact numbers, step by step: each step from what the example states before it.

Nothing here shares code with the reference: scalar loops over fractions, and floats only where a number is
irrational (and then the example must state it rounded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from attention_conformance.conformance.tests.exact import MINUS_INFINITY, ZERO, Exact, NotExact
from attention_conformance.conformance.tests.hand_examples import Example, Table

Number = Exact | float
Index = tuple[int, ...]

#: Relative error of the few float operations between an irrational number and its rounded statement.
FLOAT = 1e-13


def mistakes(example: Example) -> list[str]:
    """One line for every number of the example that does not follow from those before it."""
    return [line for row in np.ndindex(*example.q.shape[:3]) for line in _Row(example, row).mistakes()]


class _Row:
    """One query row (b, h, i): every step recomputed, and compared with what is stated."""

    def __init__(self, example: Example, row: Index) -> None:
        self.example, self.row = example, row
        batch, head, _ = row
        group = example.q.shape[1] // example.k.shape[1]
        self.source = (batch, head // group)
        self.keys = range(example.k.shape[2])

    def mistakes(self) -> Iterator[str]:
        """Compare in the order of computation, so that the first line is the first mistake."""
        steps, results = self.example.steps, self.example.results
        products = [self._product(j) for j in self.keys]
        yield from self._compare("products", steps["products"], products)
        scaled = [_multiply(_multiply(product, self._scale()), self._head_scale()) for product in products]
        yield from self._compare("scaled", steps.get("scaled"), scaled)
        capped = [self._cap(score) for score in scaled]
        yield from self._compare("capped", steps.get("capped"), capped)
        scores = [
            _add(_add(capped[j], self._bias(j)), self._alibi(j)) if self._allowed(j) else MINUS_INFINITY
            for j in self.keys
        ]
        yield from self._compare("scores", steps["scores"], scores)
        shift = self._shift(scores)
        powers = [_exp(self._less(j, scores[j], shift)) for j in self.keys]
        yield from self._compare("powers", steps["powers"], powers)
        total = _sum(powers)
        yield from self._compare_one("totals", steps["totals"], total, self.row)
        weights = [_divide(power, total) for power in powers]
        yield from self._compare("weights", results.get("weights"), weights)
        columns = range(self.example.v.shape[3])
        values = self.example.inputs["v"].exact
        output = [_sum([_multiply(weights[j], values[(*self.source, j, d)]) for j in self.keys]) for d in columns]
        yield from self._compare("output", results["output"], output)
        yield from self._compare_lse(shift, total)

    def _product(self, j: int) -> Number:
        q, k = self.example.inputs["q"].exact, self.example.inputs["k"].exact
        if "rotary_cos" not in self.example.exact:
            width = range(self.example.q.shape[3])
            return _sum([_multiply(q[(*self.row, d)], k[(*self.source, j, d)]) for d in width])
        row = self._turned(q[self.row], self.row[2] + int(self.example.options.get("causal_offset", 0)))
        key = self._turned(k[(*self.source, j)], j)
        return _sum([_multiply(a, b) for a, b in zip(row, key, strict=True)])

    def _turned(self, numbers: np.ndarray, place: int) -> list[Number]:
        """A query or key, its pairs rotated by the angles of its place."""
        found: list[Number] = list(numbers)
        cos, sin = (self.example.exact[name].exact[place] for name in ("rotary_cos", "rotary_sin"))
        for d, (c, s) in enumerate(zip(cos, sin, strict=True)):
            first, second = (2 * d, 2 * d + 1) if self.example.options.get("rotary_interleaved") else (d, d + len(cos))
            a, b = numbers[first], numbers[second]
            found[first] = _add(_multiply(a, c), -_multiply(b, s))
            found[second] = _add(_multiply(a, s), _multiply(b, c))
        return found

    def _scale(self) -> Number:
        given = self.example.exact.get("scale")
        width = self.example.q.shape[3]
        if given is not None:
            scale: Exact = given.exact.item()
            return scale
        root = math.isqrt(width)
        return Exact(Fraction(1, root)) if root * root == width else 1 / math.sqrt(width)

    def _head_scale(self) -> Exact:
        given = self.example.exact.get("head_scale")
        factor: Exact = Exact(Fraction(1)) if given is None else given.exact[self.row[1]]
        return factor

    def _alibi(self, j: int) -> Number:
        """The amount that the distance of a key takes off its score."""
        given, offset = self.example.exact.get("alibi_slopes"), self.example.options.get("causal_offset", 0)
        if given is None:
            return ZERO
        return _multiply(given.exact[self.row[1]], Exact(Fraction(-abs(self.row[2] + int(offset) - j))))

    def _cap(self, score: Number) -> Number:
        given = self.example.exact.get("softcap")
        if given is None:
            return score
        cap: Exact = given.exact.item()
        assert isinstance(score, Exact), "a capped example must be exact"
        return cap * Exact((score / cap).tanh())

    def _bias(self, j: int) -> Exact:
        given = self.example.exact.get("bias")
        if given is None:
            return ZERO
        bias: Exact = given.exact[self._aligned(given.exact, j)]
        return bias

    def _allowed(self, j: int) -> bool:
        options, (batch, _, i) = self.example.options, self.row
        offset = int(np.ravel(options.get("causal_offset", 0))[batch * (np.size(options.get("causal_offset", 0)) > 1)])
        left, right = options.get("window", (None, None))
        mask = options.get("mask")
        blocks, size = options.get("block_mask"), options.get("block_size", (1, 1))
        reasons_against = (
            mask is not None and not mask[self._aligned(mask, j)],
            self._bias(j).infinite,
            options.get("is_causal", False) and j > i + offset,
            left is not None and j < i + offset - left,
            right is not None and j > i + offset + right,
            "kv_lengths" in options and j >= options["kv_lengths"][batch],
            blocks is not None
            and not blocks[..., i // size[0], j // size[1]].ravel()[self.row[1] % blocks[..., 0, 0].size],
            "tree_parents" in options and j >= offset and j - offset not in self._path(options["tree_parents"]),
        )
        return not any(reasons_against)

    def _path(self, parents: np.ndarray) -> set[int]:
        """The nodes of a tree from the row up to the root."""
        node, found = self.row[2], set()
        while node >= 0:
            found.add(node)
            node = int(parents[node])
        return found

    def _aligned(self, array: np.ndarray, j: int) -> Index:
        """The index of (b, h, i, j) in an array whose axes align at the right and may have length 1."""
        full = (*self.row, j)[4 - array.ndim :]
        return tuple(0 if length == 1 else index for length, index in zip(array.shape, full, strict=True))

    def _shift(self, scores: list[Number]) -> Number:
        """The number subtracted from the scores: the stated one, or the computed score that has the same text."""
        table = self.example.steps.get("shift")
        if table is None:
            return ZERO
        for j in self.keys:
            if table.rounding[self.row] and self._states(j, table):
                return scores[j]
        stated: Exact = table.exact[self.row]
        return stated

    def _states(self, j: int, shift: Table) -> bool:
        return bool(self.example.steps["scores"].texts[(*self.row, j)] == shift.texts[self.row])

    def _less(self, j: int, score: Number, shift: Number) -> Number:
        if "shift" in self.example.steps and self._states(j, self.example.steps["shift"]):
            return ZERO
        return _add(score, -shift)

    def _compare(self, name: str, table: Table | None, numbers: list[Number]) -> Iterator[str]:
        for column, number in enumerate(numbers if table is not None else ()):
            assert table is not None
            yield from self._compare_one(name, table, number, (*self.row, column))

    def _compare_one(self, name: str, table: Table, number: Number, index: Index) -> Iterator[str]:
        stated: Exact = table.exact[index]
        if table.rounding[index]:
            right = abs(float(stated) - float(number)) <= table.rounding[index] + FLOAT * abs(float(number))
        else:
            right = stated == number  # a float never equals an exact number: irrational numbers must be rounded
        if not right:
            yield f"{self.example.name}: {name}{list(index)} is stated as {table.texts[index]}, should be {number}"

    def _compare_lse(self, shift: Number, total: Number) -> Iterator[str]:
        """Check that exp(lse − shift) is the sum of the powers."""
        table = self.example.results.get("lse")
        if table is None:
            return
        stated: Exact = table.exact[self.row]
        if table.rounding[self.row]:
            yield from self._compare_one("lse", table, float(shift) + math.log(float(total)), self.row)
        elif _exp(_add(stated, -shift)) != total:
            yield f"{self.example.name}: lse{list(self.row)} is stated as {stated}, the sum is {total}"


def _apply(exactly: Callable[..., Exact], approximately: Callable[..., float], *numbers: Number) -> Number:
    """An exact number if all numbers and the result are exact, else a float."""
    if all(isinstance(number, Exact) for number in numbers):
        try:
            return exactly(*numbers)
        except NotExact:
            pass
    return approximately(*map(float, numbers))


def _add(a: Number, b: Number) -> Number:
    return _apply(lambda x, y: x + y, lambda x, y: x + y, a, b)


def _multiply(a: Number, b: Number) -> Number:
    if ZERO in (a, b):  # exact even next to an irrational number
        return ZERO
    return _apply(lambda x, y: x * y, lambda x, y: x * y, a, b)


def _divide(a: Number, b: Number) -> Number:
    if a == ZERO:  # also 0/0: a fully masked row has weights 0
        return ZERO
    if a == b:  # the only key: exactly 1, also where the powers are irrational
        return Exact(Fraction(1))
    return _apply(lambda x, y: x / y, lambda x, y: x / y, a, b)


def _exp(a: Number) -> Number:
    return _apply(lambda x: Exact(x.exp()), math.exp, a)


def _sum(numbers: list[Any]) -> Number:
    total: Number = ZERO
    for number in numbers:
        total = _add(total, number)
    return total
