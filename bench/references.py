"""Inputs and expected results, made once and shared: by all implementations of a workload, and by all visits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import arguments, checks
from bench.checks import Call, Part
from bench.workloads import Workload
from conformance.targets import Target

#: Number of the first input set; fresh sets have theirs from 0 on.
FIRST = -1

#: Bytes of expected results that are kept; beyond, the oldest are forgotten and computed again.
KEPT = 2**28

Inputs = tuple[dict[str, np.ndarray], dict[str, Any]]


@dataclass
class References:
    """Calls with their inputs, and what is expected of them."""

    _inputs: dict[tuple, Inputs] = field(default_factory=dict)
    _expected: dict[tuple, tuple[Part, ...]] = field(default_factory=dict)

    def call(self, target: Target, workload: Workload, number: int) -> Call:
        """The call with the first input set or with a fresh one.  Those of one workload and dtype are kept."""
        profile = target.implementation.profile(target.dtype)
        return Call(workload, *self._made(workload, target.dtype, number), target.dtype, profile, number)

    def expect(self, call: Call, seed: int) -> tuple[Part, ...]:
        """``checks.expect``, computed once."""
        key = (call.workload, call.dtype, call.profile, call.number, seed)
        if key not in self._expected:
            self._expected[key] = checks.expect(call, seed)
            while sum(map(_bytes, self._expected.values())) > KEPT and len(self._expected) > 1:
                del self._expected[next(iter(self._expected))]
        return self._expected[key]

    def _made(self, workload: Workload, dtype: str, number: int) -> Inputs:
        if any(key[:2] != (workload, dtype) for key in self._inputs):
            self._inputs.clear()
        key = (workload, dtype, number)
        if key not in self._inputs:
            if number == FIRST:
                self._inputs[key] = arguments.make(workload, dtype, 0)
            else:
                self._inputs[key] = arguments.fresh(workload, *self._made(workload, dtype, FIRST), number)
        return self._inputs[key]


def _bytes(parts: tuple[Part, ...]) -> int:
    return sum(part.expected.nbytes + (0 if part.bound is None else part.bound.nbytes) for part in parts)
