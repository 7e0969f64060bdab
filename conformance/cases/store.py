"""Case store: inputs, expected results and error bounds, each computed once and shared by everything that uses them.

The suite's own cases share ``CASES``, which forgets nothing; numerous cases (random problems, timed workloads) and
large ones (at the sizes of an envelope) have stores with a limit in bytes.  A store belongs to one process, whose
threads may share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.conformance.cases import stopwatch

if TYPE_CHECKING:
    from attention_conformance.conformance.cases.base import AnyCase
    from attention_conformance.impls.contract import Profile


class CaseStore:
    """Values by key.

    Parameters
    ----------
    limit
        Bytes of arrays to keep: beyond it the oldest values are forgotten, and recomputed when they are needed; None
        keeps everything.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.RLock()
        self._made: dict[Hashable, Any] = {}
        self._bytes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made by ``make`` if the store has none.  Exceptions of ``make`` are not kept.

        Parameters
        ----------
        key
            Key of the value.
        make
            Computes it.

        Returns
        -------
        Any
            The value.
        """
        found = self._made.get(key, self)
        if found is not self:
            return found
        with stopwatch.measured(stopwatch.REFERENCES):
            value = make()
        with self._lock:
            value = self._made.setdefault(key, value)  # two threads that made it both get the first
            if self._limit is not None:
                self._bytes[key] = array_bytes(value)
                while sum(self._bytes.values()) > self._limit and len(self._made) > 1:
                    oldest = next(iter(self._made))
                    del self._made[oldest], self._bytes[oldest]
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._made.clear()
        self._bytes.clear()

    def inputs(self, case: AnyCase, dtype: str) -> Any:
        """The inputs of a case in a dtype.

        Parameters
        ----------
        case
            A case of any operator.
        dtype
            Storage dtype.

        Returns
        -------
        Any
            Inputs, of the type that the operator has.
        """
        return self.get(("inputs", case, dtype), lambda: case.make_inputs(dtype))

    def expected(self, case: AnyCase, dtype: str) -> Any:
        """Results of the reference for a case's inputs.

        Parameters
        ----------
        case
            A case of any operator.
        dtype
            Storage dtype.

        Returns
        -------
        Any
            Results as attributes, float64.

        Raises
        ------
        InvalidInput
            For invalid inputs.
        """
        return self.get(("expected", case, dtype), lambda: case.make_expected(self.inputs(case, dtype)))

    def bound(self, case: AnyCase, dtype: str, profile: Profile) -> Any:
        """The error bound for a case's inputs under a precision profile.

        Parameters
        ----------
        case
            A case of any operator.
        dtype
            Storage dtype.
        profile
            The intermediates that are rounded to the dtype.

        Returns
        -------
        Any
            |error|, absolute, in the shapes of the results.
        """
        return self.get(
            ("bound", case, dtype, profile),
            lambda: case.make_bound(self.inputs(case, dtype), self.expected(case, dtype), dtype, profile),
        )


def array_bytes(value: Any) -> int:
    """Bytes of the arrays within a value; an array that occurs twice counts twice."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(array_bytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(array_bytes, value))
    return array_bytes(vars(value)) if is_dataclass(value) or isinstance(value, SimpleNamespace) else 0


#: Stores of the suite's own cases; of random problems, which are many and seldom needed again; and of cases at the
#: sizes of envelopes, which are large and needed once in each dtype.
CASES, RANDOM, FITTED = CaseStore(), CaseStore(2**26), CaseStore(2**28)
