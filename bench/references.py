"""Inputs and expected results, made once and shared: by all implementations of a workload, and by all visits."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import arguments, checks
from bench.checks import Call, Part
from bench.workloads import Workload
from conformance.cases.store import CaseStore
from conformance.targets import Target

#: Number of the first input set; fresh sets have theirs from 0 on.
FIRST = -1

#: Bytes of expected results that are kept; beyond, the oldest are forgotten and computed again.
KEPT = 2**28

Inputs = tuple[dict[str, np.ndarray], dict[str, Any]]


class References:
    """Calls with their inputs, and what is expected of them."""

    def __init__(self) -> None:
        self._inputs = CaseStore()  # of one workload and dtype
        self._workload: tuple[Workload, str] | None = None
        self._expected = CaseStore(KEPT)

    def call(self, target: Target, workload: Workload, number: int) -> Call:
        """The call with the first input set or with a fresh one.  Those of one workload and dtype are kept."""
        if self._workload != (workload, target.dtype):
            self._inputs, self._workload = CaseStore(), (workload, target.dtype)
        inputs = self._made(workload, target.dtype, number)
        return Call(workload, *inputs, target.dtype, target.implementation.profile(target.dtype), number)

    def expect(self, call: Call, seed: int) -> tuple[Part, ...]:
        """``checks.expect``, computed once."""
        key = (call.workload, call.dtype, call.profile, call.number, seed)
        parts: tuple[Part, ...] = self._expected.get(key, lambda: checks.expect(call, seed))
        return parts

    def _made(self, workload: Workload, dtype: str, number: int) -> Inputs:
        def make() -> Inputs:
            if number == FIRST:
                return arguments.make(workload, dtype, 0)
            return arguments.fresh(workload, *self._made(workload, dtype, FIRST), number)

        inputs: Inputs = self._inputs.get(number, make)
        return inputs
