"""Known deviations of cells: a record excuses its own failure of its own call, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.output.document import record as entry
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.tests.measured import QUICK
from attention_conformance.bench.tests.measured import cell as cell_of
from attention_conformance.bench.timing.progress import Progress
from attention_conformance.bench.timing.protocol import Protocol
from attention_conformance.bench.timing.session import Session
from attention_conformance.bench.validity import known
from attention_conformance.bench.validity.checks import FIRST, Call, Invalid, References, check
from attention_conformance.bench.validity.known import KnownDeviations
from attention_conformance.bench.validity.outcomes import INVALID, KNOWN_DEVIATION, Cell
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation

DECODE, PREFILL = "decode-b1h2d8s1k16", "prefill-b1h2d8s16-causal"

#: The text of an exception that the records quote.
WORDS = "cannot trace CausalBias"

TARGET = Target(Implementation("it", "nowhere:it"), "cpu", "float32")

#: A record whose trigger is is_causal with an offset, such as a past.
ERROR = Deviation(
    "export-causal-lower-right",
    ("it",),
    "torch",
    ">=2",
    "SDPA-10",
    ("offset-tiles",),
    Failure.ERROR,
    "raises",
    "unreported",
    says=WORDS,
)

#: A record whose trigger is replaced: the last row of each head.
LAST_ROW = replace(ERROR, id="last-row", failure=Failure.VALUE, says="", clause="SDPA-9")

RAISED = Invalid("error", f"RuntimeError: {WORDS} of it", Failure.ERROR)


@pytest.fixture(autouse=True)
def _last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoils(x: Any, expected: Any) -> Any:
        rows = expected.allowed.shape[2]
        return np.arange(rows) == rows - 1

    monkeypatch.setitem(triggers.SPOILS, "last-row", spoils)


def call(workload: str) -> Call:
    """A call of a workload."""
    return References().call(TARGET, parse(workload), FIRST)


def found(
    record: Deviation, error: Invalid, workload: str = DECODE, target: Target = TARGET, torch: str = "2.13"
) -> bool:
    """Whether a record excuses a failure."""
    deviations = KnownDeviations(Ledger((record,)), {"torch": torch})
    return deviations.find(target, call(workload), error) is record


def wrong(workload: str, *rows: int) -> Invalid:
    """The failure of the check for a result that is wrong in these query rows."""
    asked = call(workload)
    output = reference.sdpa(*asked.arrays.values(), **asked.keywords).output.astype(np.float32)
    output[0, 1, [*rows], 3] += 1
    with pytest.raises(Invalid) as caught:
        check(asked, {"output": output}, 0)
    return caught.value


def test_the_exception_that_a_record_quotes_is_known() -> None:
    """The cell is a known deviation where the workload triggers the record."""
    assert found(ERROR, RAISED)


@pytest.mark.parametrize(
    "error",
    [
        Invalid("error", "RuntimeError: out of luck", Failure.ERROR),
        Invalid("crashed", WORDS),
        Invalid("SDPA-25", WORDS, Failure.VALUE, {"output": np.ones((1, 2, 1, 8), bool)}),
    ],
)
def test_another_failure_of_the_same_call_is_not(error: Invalid) -> None:
    """Another exception, a dead process and a wrong result are not the record's failure."""
    assert not found(ERROR, error)


def test_an_error_without_words_excuses_nothing() -> None:
    """A record that quotes nothing cannot distinguish exceptions."""
    assert not found(replace(ERROR, says=""), RAISED)


def test_a_workload_that_does_not_trigger_the_record_is_invalid() -> None:
    """A call without an offset raises the same exception."""
    assert not found(ERROR, RAISED, PREFILL)


@pytest.mark.parametrize(
    ("record", "target", "torch"),
    [
        (ERROR, replace(TARGET, implementation=Implementation("other", "nowhere:it")), "2.13"),
        (replace(ERROR, dtypes=("float16",)), TARGET, "2.13"),
        (replace(ERROR, devices=("cuda",)), TARGET, "2.13"),
        (ERROR, TARGET, "1.13"),
        (replace(ERROR, id="of-no-trigger"), TARGET, "2.13"),
    ],
)
def test_a_record_about_something_else_excuses_nothing(record: Deviation, target: Target, torch: str) -> None:
    """Another implementation, dtype, device or version does not match, nor does a record of other triggers."""
    assert not found(record, RAISED, target=target, torch=torch)


def test_a_wrong_result_is_known_in_the_rows_that_are_spoiled() -> None:
    """A wrong result in any other row is not excused."""
    assert found(LAST_ROW, wrong(PREFILL, 15), PREFILL)
    assert not found(LAST_ROW, wrong(PREFILL, 0), PREFILL)
    assert not found(LAST_ROW, wrong(PREFILL, 0, 15), PREFILL)


def test_wrong_present_keys_are_not_excused_with_the_output() -> None:
    """The record covers rows of the output."""
    masks = {"output": np.ones((1, 2, 1, 8), bool), "present_key": np.ones((1, 2, 17, 8), bool)}
    assert found(LAST_ROW, Invalid("SDPA-25", "", Failure.VALUE, {"output": masks["output"]}))
    assert not found(LAST_ROW, Invalid("SDPA-25", "", Failure.VALUE, masks))


#: A record whose trigger is a layer of several rows with padded keys.
PADDED = replace(ERROR, id="export-mha-padding", clause="MHA-10", cases=("mha-lengths",))

#: A layer with padded keys, and one without.
PADDED_LAYER, LAYER = "mha-b2h2d8s16-pad", "mha-b2h2d8s16"


def test_a_record_of_layers_excuses_what_it_says_of_a_layer() -> None:
    """The exception is excused only where keys are padded."""
    assert found(PADDED, RAISED, PADDED_LAYER)
    assert not found(PADDED, RAISED, LAYER)


def test_a_row_of_a_layer_is_spoiled_by_any_of_its_heads() -> None:
    """The last row is excused in every column, and the first row is not."""
    shape = arguments.results(parse(LAYER))["output"]
    last, first = (np.arange(shape[1])[None, :, None] == row for row in (shape[1] - 1, 0))
    for mask, excused in ((last, True), (first, False), (last | first, False)):
        wrong = Invalid("MHA-19", "", Failure.VALUE, {"output": np.broadcast_to(mask, shape)})
        assert found(LAST_ROW, wrong, LAYER) is excused


def test_what_is_too_large_to_look_at_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record excuses a workload whose rows were not all examined."""
    monkeypatch.setattr(known, "MOST", 33)
    assert not found(ERROR, RAISED)


def raises(q: Any, k: Any, v: Any, *, past_key: Any, past_value: Any, is_causal: bool = False) -> Any:
    """Raises as a library without such a call."""
    raise RuntimeError(WORDS)


def raises_otherwise(q: Any, k: Any, v: Any, *, past_key: Any, past_value: Any, is_causal: bool = False) -> Any:
    """Raises another exception."""
    raise RuntimeError("no kernel")


@pytest.mark.slow
@pytest.mark.parametrize(("function", "kind"), [(raises, KNOWN_DEVIATION), (raises_otherwise, INVALID)])
def test_a_session_tells_them_apart(function: Any, kind: str) -> None:
    """The recorded exception ends the cell as a known deviation with the record's id, another one as invalid."""
    one: Cell = cell_of(function, DECODE)
    record = replace(ERROR, implementations=(function.__name__,))
    processes = Processes(1, in_process=True)
    features = frozenset({"past_key", "past_value", "is_causal"})
    deviations = KnownDeviations(Ledger((record,)), {"torch": "2.13"})
    protocol = Protocol(processes, QUICK, lambda implementation: features, known=deviations)
    session = Session([one], protocol, processes, Progress(None))
    session.run()
    said = entry(one, session.outcomes[one])
    assert said.outcome == kind
    assert (said.reason == "raises [export-causal-lower-right]", said.clause == "SDPA-10") == (
        kind == KNOWN_DEVIATION,
    ) * 2
