"""Records of bench files: what the suite adds to pytest-benchmark's JSON (format 4), as types.

A file has ``benchmarks``, a Benchmark for each timed cell, and under JSON_KEY a Run.  A reader decodes strictly with
these, and the schema is made from them.  The module imports nothing of the bench, so that files can be read where
nothing is measured.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

#: Key and version of what the suite adds.
JSON_KEY = "attention_conformance"
FORMAT = 4

#: Finite numbers: positive, not negative, from 0 to 1, and any; and whole numbers from 0 and from 1.
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Amount = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, le=1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=1)]

#: Share of their time above which calls are reported to have waited for a core.  On two otherwise idle cores it was
#: 3 %, and 6 to 7 % next to a process that kept the other core busy.
BUSY = 0.05

Kind = Literal["timed", "unstable", "known-deviation", "invalid", "skipped"]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of ``cells``: "timed", "unstable", "known-deviation" or "invalid" (``clause`` says by what), "skipped".

    A known deviation fails as a record of the deviation ledger says; ``reason`` ends with the record's id.  An unstable
    one was wrong once and right in every equal call that followed.  Its time is only here, so that nothing ranks or
    compares it: the median of ``calls`` with its 95 % interval.

    ``family`` is the workload's name with its length left open; ``S`` is the length: query rows, past keys for decode.
    """

    implementation: str
    device: str
    dtype: str
    workload: str
    family: str
    S: int
    operator: str
    outcome: Kind
    clause: str
    reason: str
    seconds: Positive | None = None
    interval: tuple[Positive, Positive] | None = None
    calls: Count = 0


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """``extra_info`` of a timed cell: its call, its speed, how it was timed, what it took, and how right it was."""

    implementation: str
    device: str
    dtype: str
    workload: str
    operator: str = "sdpa"
    B: Count
    H: Count
    Hkv: Count | None = None
    S: Count
    Sk: Count | None = None
    D: Count
    Dv: Count | None = None
    is_causal: bool = False
    #: Floating-point operations of a call, their formula, and rates by the median of all samples.
    flops: Amount
    formula: str = ""
    gflops: Amount
    tokens_per_second: Amount | None = None
    #: Sizes of the batches of each process run, whose calls ``stats.data`` has in this order.
    process_runs: Annotated[list[Annotated[list[Number], Meta(min_length=1)]], Meta(min_length=1)] | UnsetType = UNSET
    #: 95 % interval of the median.
    interval: tuple[Positive, Positive] | None = None
    stopped: str | None = None
    threads: Count | None = None
    clock: str | None = None
    host_seconds: Amount | None = None
    #: Bytes that were copied before each call to empty the caches.
    evicted_bytes: Amount | None = None
    #: From before the timing, in the first process run; ``peak_rss_bytes`` is what its first call added to the peak.
    prepare_seconds: Amount
    first_call_seconds: Amount
    peak_rss_bytes: Amount | None
    #: Worst error ÷ bound of all checks.
    share: Amount | None
    profile: str
    #: Most bytes that a call holds beyond its inputs, from a run of its own, and the method.
    memory_bytes: Amount | None = None
    memory_method: str | None = None
    bytes_least: Amount | None = None
    intensity: Amount | None = None
    bound_by: str | None = None
    #: Shares of the measured peak of matrix products, and of the lower of that and the limit by the bandwidth.
    share_of_peak: Amount | None = None
    share_of_limit: Amount | None = None


class Statistics(msgspec.Struct, frozen=True):
    """``stats``, by pytest-benchmark: seconds, and the sample of every call."""

    min: Positive
    median: Positive
    mean: Positive
    max: Positive
    stddev: Amount
    rounds: Amount
    data: list[Positive] = []


class Benchmark(msgspec.Struct, frozen=True):
    """A record of ``benchmarks``."""

    extra_info: Timed
    stats: Statistics


class PlanRecord(msgspec.Struct, frozen=True):
    """Plan of a run: how long and how often each cell was measured."""

    seconds: Amount
    noise: Amount
    process_runs: Count
    batch_seconds: Amount
    least_calls: Count
    most_calls: Count
    limit: Amount
    threads: Count
    seed: int
    cache: str


class Sample(msgspec.Struct, frozen=True):
    """Rate that one framework reached: "flops" of a product with this side, or "bytes" of a copy of this size."""

    framework: str
    quantity: str
    per_second: Positive
    size: Count


class Roofline(msgspec.Struct, frozen=True):
    """The roofline of a device and dtype: the measured peak and bandwidth, and which framework reached them."""

    device: str
    dtype: str
    flops_per_second: Positive | None = None
    flops_by: str = ""
    bytes_per_second: Positive | None = None
    bytes_by: str = ""
    samples: tuple[Sample, ...] = ()


class FitRecord(msgspec.Struct, frozen=True):
    """The exponent of time or memory over the length, with its 95 % interval, and the points that it is of."""

    implementation: str
    device: str
    dtype: str
    family: str
    quantity: Literal["seconds", "bytes"]
    exponent: Finite
    low: Finite
    high: Finite
    points: Count
    shortest: Count
    longest: Count


class Overhead(msgspec.Struct, frozen=True):
    """Time of a call by the protocol ÷ its time in a bare loop, with the 95 % interval."""

    call_seconds: Positive
    loop_seconds: Positive
    ratio: Positive
    interval: tuple[Positive, Positive]
    pairs: Count


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a whole."""

    format: Literal[4]
    spec: str
    #: Formulas of the operations, by operator.
    flops: dict[str, str] = {}
    load_average: Amount | None = None
    #: Share of timed calls' time for which other processes had their core.
    core_wait: Share | None = None
    plan: PlanRecord | None = None
    command: str = ""
    started: str = ""
    finished: str = ""
    #: The machine and its settings; its ``id`` distinguishes machines.
    fingerprint: dict[str, Any] = {}
    #: Share of a core that processes used while others worked.
    idle: dict[str, float] = {}
    gpu_state: dict[str, Any] = {}
    peaks: list[Roofline] = []
    fits: list[FitRecord] = []
    overhead: Overhead | None = None


class Run(RunInfo, frozen=True, kw_only=True):
    """Run as a file has it under JSON_KEY.  Each of ``cells`` is a Record, read alone, so that one may be refused."""

    cells: list[Any]


class BenchFile(msgspec.Struct, frozen=True):
    """The file, as its schema describes it; pytest-benchmark's own fields are beside these."""

    benchmarks: list[Benchmark]
    attention_conformance: Run
    machine_info: dict[str, Any] = {}
    datetime: str = ""
