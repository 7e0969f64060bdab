"""Known deviations of timed calls: which record of the ledger is about what ended a cell.

The ledger names fixed cases, and a workload is none.  So a record has to be in force for the implementation, device
and dtype of the cell, the inputs of the workload have to trigger it (conformance.ledger.triggers), and the call has to
fail as it says: an exception with the words that it quotes, or a wrong result in no row but those that it spoils.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_conformance.bench.validity.checks import Call, Invalid
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.spec import merge as merge_reference
from attention_conformance.conformance.spec import mha as layer_reference
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.inputs import Inputs, LayerInputs, MergeInputs
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.targets import Target

#: Scores (B, H, Sq, Sk), or elements of merged parts, up to which all rows of a workload are looked at, 128 MiB each
#: time; what is larger no record excuses.
MOST = 2**24

#: Results with a row for each query.
OF_ROWS = ("output", "lse")


def _heads(*args: Any, **keywords: Any) -> Expected:
    """Results of the reference of a layer for its heads, which the triggers of layers look at."""
    return layer_reference.mha(*args, **keywords).heads


#: Inputs of a call as the triggers take them, and the results of the reference, by operator.
_WHOLE: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sdpa": (Inputs, reference.sdpa),
    "merge": (MergeInputs, merge_reference.merge),
    "mha": (LayerInputs, _heads),
}


@dataclass(frozen=True)
class KnownDeviations:
    """The records of a ledger, and the versions by which they are in force; without any all that fails is invalid."""

    ledger: Ledger = field(default_factory=Ledger)
    versions: Mapping[str, str] = field(default_factory=dict)

    def find(self, target: Target, call: Call, error: Invalid) -> Deviation | None:
        """The record about a call that failed.

        Parameters
        ----------
        target
            The implementation, device and dtype.
        call
            The workload with its inputs.
        error
            Exception that says how it failed.

        Returns
        -------
        Deviation | None
            The first of the ledger; None where no record is about this failure of this call.
        """
        chosen = triggers.records(target.implementation.name, target.device, target.dtype, self.ledger, self.versions)
        likely = [record for record in chosen if _speaks_of(record, error)]
        if not likely or call.workload.operator not in _WHOLE or _size(call) > MOST:
            return None
        inputs, expected = _WHOLE[call.workload.operator]
        met = triggers.triggered(
            likely,
            inputs(*call.arrays.values(), keywords=dict(call.keywords)),
            expected(*call.arrays.values(), **call.keywords),
        )
        if not met or (error.failure is Failure.VALUE and not _excused(error.wrong, met, call.workload.operator)):
            return None
        return met[0].deviation


def _speaks_of(record: Deviation, error: Invalid) -> bool:
    """Whether a record is of this way to fail; of an exception it has to quote words, which no other has."""
    if error.failure is None or record.failure is not error.failure:
        return False
    return record.failure is not Failure.ERROR or (bool(record.says) and record.says in error.text)


def _size(call: Call) -> int:
    w = call.workload
    return w.batch * w.heads * w.length * w.keys * (w.width if w.kind == "merge" else 1)


def _excused(wrong: Mapping[str, np.ndarray], met: tuple[triggers.Triggered, ...], operator: str) -> bool:
    """Whether every wrong element lies in a row that the records spoil; keys and values have no such rows."""
    spoiled = np.logical_or.reduce([each.rows for each in met])
    if operator == "mha":  # a row (B, Sq) of the output is of all heads
        spoiled = spoiled.any(axis=1)
    return all(
        name in OF_ROWS and not (mask.reshape(*spoiled.shape, -1).any(axis=-1) & ~spoiled).any()
        for name, mask in wrong.items()
    )
