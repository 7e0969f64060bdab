"""Schemas of what the suite writes: JSON Schema, generated from the types that describe each document.

``attention-conformance schema NAME`` prints one; with ``--write`` the files of ``reports/schemas`` are regenerated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from attention_conformance.bench.analysis.fits import Growth
from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.records import Amount, BenchFile, Count, Finite, Number, Positive, RunInfo
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.results import Diagnosis
from attention_conformance.reports.compare.changes import Change
from attention_conformance.reports.input.kill_matrix import Fault

#: The published schemas.
FOLDER = Path(__file__).with_name("schemas")

#: Error ÷ bound; "inf" for a NaN, null where nothing was compared.
Share = Amount | Literal["inf"] | None


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """An implementation on a device."""

    implementation: str
    device: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A result file; read = used + the sum of ``refused``, the numbers of records by why they were not used."""

    name: str
    kind: Literal["conformance", "benchmark", "kill matrix"]
    environment: dict[str, Any]
    read: Count
    used: Count
    refused: dict[str, Number]
    #: False: the run was cut off.
    complete: bool
    not_installed: list[str]
    #: What explains the failures of a conformance run.
    diagnoses: list[Diagnosis] = []


class ResultRow(Who, frozen=True, kw_only=True):
    """A result of conformance, with the other fields that a result file has."""

    dtype: str
    case: str
    clauses: list[str]
    outcome: Outcome
    failure: str | None
    broken: str | None
    reason: str
    share: Share


class Outcomes(Who, frozen=True, kw_only=True):
    """Numbers of results by outcome."""

    passed: Count
    failed: Count
    known_deviation: Count = msgspec.field(name="known-deviation")
    advisory: Count
    unsupported: Count
    not_applicable: Count = msgspec.field(name="not-applicable")


class ImplementationRow(Outcomes, frozen=True, kw_only=True):
    """An implementation: its worst share, and the strictest profile that it meets by dtype."""

    worst_share: Share
    profiles_met: str | None


class ClauseRow(Outcomes, frozen=True, kw_only=True):
    """A cell of the matrix."""

    clause: str
    title: str
    level: Literal["MUST", "SHOULD", "FREE", ""]
    cell: str


class DivergenceRow(Who, frozen=True, kw_only=True):
    """An answer: between ** if the spec says something else, empty if the question was not put."""

    question: str
    answer: str


class DifferenceRow(Who, frozen=True, kw_only=True):
    """A way not to follow a clause."""

    clause: str
    outcome: Literal["failed", "known-deviation", "advisory"]
    kind: str
    what_it_does: str
    dtypes: str
    cases: Count


class MemoryRow(Who, frozen=True, kw_only=True):
    """Whose memory is quadratic in the length; the rule is in bench/MEASURES.md."""

    dtype: str
    family: str
    growth: Growth
    exponent: Finite | None
    exponent_low: Finite | None
    exponent_high: Finite | None
    bytes: Amount
    scores: Amount
    longest: Count


class RunRow(RunInfo, frozen=True, kw_only=True):
    """A run of the bench: the name of its file, and the machine by pytest-benchmark."""

    name: str
    machine: dict[str, Any]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Every timed call, in order, and the sizes of the batches by process run; empty where the file does not say."""

    seconds: list[Positive]
    process_runs: list[list[Number]]


class Cell(Who, frozen=True, kw_only=True, tag_field="outcome"):
    """A cell of the bench."""

    dtype: str
    workload: str
    family: str
    S: int
    operator: str
    clause: str
    reason: str


class InvalidCell(Cell, frozen=True, kw_only=True, tag="invalid"):
    """A cell whose result breaks ``clause``, and so has no time."""


class UnstableCell(Cell, frozen=True, kw_only=True, tag="unstable"):
    """A cell of which a result broke ``clause`` once; its time is that of ``calls``, and ranked with no other."""

    seconds: Positive
    interval: tuple[Positive, Positive]
    calls: Number


class KnownDeviationCell(Cell, frozen=True, kw_only=True, tag="known-deviation"):
    """A cell that breaks ``clause`` as a record of the deviation ledger says, and so has no time."""


class SkippedCell(Cell, frozen=True, kw_only=True, tag="skipped"):
    """A cell without a time, for ``reason``."""


class TimedCell(Cell, frozen=True, kw_only=True, tag="timed"):
    """A cell with a time: seconds, rates by their median, bytes, shares."""

    min: Positive
    median: Positive
    max: Positive
    rounds: Amount
    gflops: Amount
    interval_low: Positive | UnsetType = UNSET
    interval_high: Positive | UnsetType = UNSET
    process_runs: Count | UnsetType = UNSET
    memory_bytes: Amount | None = None
    peak_rss_bytes: Amount | None = None
    #: Clock of the seconds: wall, or device events.
    clock: str | None = None
    host_seconds: Amount | None = None
    evicted_bytes: Amount | None = None
    share: Share = None
    samples: Samples | UnsetType = UNSET


class ModelDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention-conformance report"):
    """``model.json``: everything that the page, its tables and its pictures are made from."""

    version: Literal[2]
    files: list[File]
    results: list[ResultRow]
    implementations: list[ImplementationRow]
    matrix: list[ClauseRow]
    divergence: list[DivergenceRow]
    differences: list[DifferenceRow]
    memory: list[MemoryRow] = []
    runs: list[RunRow]
    cells: list[TimedCell | UnstableCell | KnownDeviationCell | InvalidCell | SkippedCell]
    #: Number of cases that the faults were run on.
    cases: Count
    faults: list[Fault]


#: Low, value, high.
Interval = tuple[Positive, Positive, Positive]


class Speed(Who, frozen=True, kw_only=True):
    """A cell that both runs timed: seconds, the 10 % quantile of its calls, or multiples of a yardstick's.

    ``ratio`` is new ÷ base, the machine taken off, with its 95 % interval; ``among_all`` has the interval by which
    changes are judged, which is right for all cells of the device together.
    """

    dtype: str
    workload: str
    base: Positive
    new: Positive
    ratio: Interval
    among_all: Interval
    verdict: Verdict
    why: str
    #: Slower, and a rule says that it does not count.
    ignored: bool


class Finding(Who, frozen=True, kw_only=True):
    """Change as a whole: of an implementation in a dtype; of everything on a device, which has no name and no dtype."""

    dtype: str
    ratio: Interval
    verdict: Verdict
    #: Number of its cells, and of the cells that have the same verdict.
    cells: Count
    changed: Count
    ignored: bool
    #: The ratio of the cell that changed most among them.
    most: Positive


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine between two runs, on one device."""

    device: str
    #: Factor of time, new ÷ base, that is attributed to the machine.
    factor: Interval
    #: Factors of code that is the same in both runs, by name.
    yardsticks: list[tuple[str, Positive]]
    #: Standard deviations of logs: of process runs, and of a cell and an implementation from one run to the next.
    scatter: Amount
    luck: tuple[Amount, Amount]
    cells: Count
    #: Slowdowns, as factors, of the median implementation and cell that nine of ten comparisons would have found.
    seen_implementation: Positive | None
    seen_cell: Positive | None
    #: Factors that were also taken off all implementations of a workload as the machine's, by its dtype and name.
    workloads: list[tuple[str, Positive]]


class ComparedFile(msgspec.Struct, frozen=True, kw_only=True, rename={"why_refused": "why refused"}):
    """A file of one of the runs."""

    run: Literal["base", "new"]
    file: str
    kind: str
    complete: str
    read: int
    used: int
    refused: int
    why_refused: str


class ComparisonDocument(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention-conformance comparison"
):
    """Document that ``attention-conformance compare --json`` writes."""

    version: Literal[3]
    status: Literal["nothing worse", "worse", "cannot tell"]
    exit_status: Literal[0, 1, 2]
    headline: str
    #: What could not be compared, and why.
    unfit: list[str]
    notes: list[str]
    #: The implementation whose times are the unit of all, empty for seconds.
    yardstick: str
    #: Conformance results that both runs have.
    results: Count
    #: The file of rules that it was judged by, with their number, empty for none.
    rules: str = ""
    #: Number of changes for the worse that a rule ignores.
    ignored: Count = 0
    machines: list[Machine]
    findings: list[Finding]
    speeds: list[Speed]
    changes: list[Change]
    files: list[ComparedFile]


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of records."""

    read: Count
    used: Count
    refused: Count


class Point(msgspec.Struct, frozen=True):
    """One run of a cell: when it began, seconds, and their 95 % interval where the file has one."""

    when: str
    file: str
    median: Positive
    low: Finite | None
    high: Finite | None


class Step(msgspec.Struct, frozen=True):
    """A change of a cell: the number of the first point of the new time, and the times before and after it.

    They are medians over the runs of a segment, without what all implementations, or all of the workload, have in
    common in a run and does not last.
    """

    at: Number
    before: Positive
    after: Positive

    @property
    def ratio(self) -> float:
        """New ÷ old."""
        return self.after / self.before


class Series(Who, frozen=True, kw_only=True):
    """A cell on one machine, in the order of the dates."""

    dtype: str
    workload: str
    machine: str
    points: Annotated[list[Point], Meta(min_length=1)]
    steps: list[Step]


class Found(Who, frozen=True, kw_only=True):
    """A change of a machine's cells, at one level; what changed as a whole has no name for what it is a whole of."""

    level: Literal["everything", "workload", "implementation", "cell"]
    dtype: str
    workload: str
    machine: str
    #: Date and file of the first run with the new times.
    when: str
    file: str
    #: New ÷ old; the median for several cells.
    ratio: Positive
    #: Seconds, only for a single cell.
    before: Positive | None
    after: Positive | None
    #: Number of cells that changed, and of all cells of what changed, such as an implementation.
    cells: Count
    of: Count
    #: Versions of libraries that changed with it, in words.
    versions: str


class Counts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results by outcome."""

    passed: Count
    failed: Count
    known_deviation: Count = msgspec.field(name="known-deviation")
    advisory: Count
    unsupported: Count
    not_applicable: Count = msgspec.field(name="not-applicable")


class Tally(Who, frozen=True, kw_only=True):
    """Tally of conformance in one run."""

    when: str
    file: str
    counts: Counts


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention-conformance history"):
    """``history.json``, what ``attention-conformance history`` writes."""

    version: Literal[2]
    #: Result files that were found, including refused ones.
    files: Count
    #: Reasons why files were not used, by their paths in the folder, or full paths where several places were read.
    refused: dict[str, str]
    records: Records
    #: Versions of libraries, by file of the bench.
    versions: dict[str, dict[str, Any]]
    #: The oldest first; a cell that changed with others is part of their change.
    changes: list[Found]
    series: list[Series]
    conformance: list[Tally]


#: Documents that have a schema.
DOCUMENTS: dict[str, type] = {
    "report": ModelDocument,
    "comparison": ComparisonDocument,
    "history": HistoryDocument,
    "bench": BenchFile,
}


def schema(name: str) -> str:
    """The schema of one of DOCUMENTS, as text."""
    (of,), parts = msgspec.json.schema_components([DOCUMENTS[name]], ref_template="#/$defs/{name}")
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **of, "$defs": parts}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def write() -> list[Path]:
    """Regenerate the files of FOLDER.

    Returns
    -------
    list[Path]
        The files.
    """
    FOLDER.mkdir(exist_ok=True)
    paths = []
    for name in DOCUMENTS:
        paths.append(FOLDER / f"{name}.schema.json")
        paths[-1].write_text(schema(name), encoding="utf-8")
    return paths
