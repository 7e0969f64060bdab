"""Known deviations of timed calls: the ledger's record of the failure that ended a cell.

The ledger names fixed cases, and a workload is none.  So a record must be in force for the implementation, device and
dtype of the cell, the inputs of the workload must trigger it (conformance.ledger.triggers), and the call must fail as
it says: by an exception with the words that it quotes, or by a wrong result only in the rows that it spoils.
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

#: Scores (B, H, Sq, Sk), or elements of merged parts, up to which all rows of a workload are examined, 128 MiB each
#: time; no record excuses a larger workload.
MOST = 2**24

#: Results with a row for each query.
OF_ROWS = ("output", "lse")


def _heads(*args: Any, **keywords: Any) -> Expected:
    """Results of a layer's reference for its heads, which the triggers of layers examine."""
    return layer_reference.mha(*args, **keywords).heads


#: Inputs of a call as the triggers take them, and the results of the reference, by operator.
_WHOLE: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sdpa": (Inputs, reference.sdpa),
    "merge": (MergeInputs, merge_reference.merge),
    "mha": (LayerInputs, _heads),
}


@dataclass(frozen=True)
class KnownDeviations:
    """The records of a ledger, and the versions by which they are in force; without records any failure is invalid."""

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
            The ledger's first record of this failure of this call; None where there is none.
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
    """Whether a record is of this way to fail; for an exception it must quote words that others do not have."""
    if error.failure is None or record.failure is not error.failure:
        return False
    return record.failure is not Failure.ERROR or (bool(record.says) and record.says in error.text)


def _size(call: Call) -> int:
    w = call.workload
    return w.batch * w.heads * w.length * w.keys * (w.width if w.kind == "merge" else 1)


def _excused(wrong: Mapping[str, np.ndarray], met: tuple[triggers.Triggered, ...], operator: str) -> bool:
    """Whether every wrong element lies in a row that the records spoil; keys and values have no such rows."""
    spoiled = np.logical_or.reduce([each.rows for each in met])
    if operator == "mha":  # a row (B, Sq) of the output covers all heads
        spoiled = spoiled.any(axis=1)
    return all(
        name in OF_ROWS and not (mask.reshape(*spoiled.shape, -1).any(axis=-1) & ~spoiled).any()
        for name, mask in wrong.items()
    )
