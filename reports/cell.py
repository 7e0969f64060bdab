"""Cells of the bench: whether a record is one, what of it is kept, and its samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from bench.records import Benchmark, Record, Timed
from bench.statistics import Visits

#: What identifies a cell.
CELL = ("implementation", "device", "dtype", "workload")
Key = tuple[str, str, str, str]

#: Statistics of a timed cell: seconds that are positive, and two that may be 0.
SECONDS = ("min", "median", "mean", "max")
STATISTICS = (*SECONDS, "stddev", "rounds")

#: What of ``extra_info`` the tables have: all that is not of the call itself, whose identity the list of cells has.
_ELSEWHERE = (*CELL, "operator", "S", "is_causal", "formula", "threads", "process_runs", "interval")
PROPERTIES = tuple(name for name in Timed.__struct_fields__ if name not in _ELSEWHERE)

#: What a time is by where nothing is said of it: the host's clock, and caches that are as the calls before left them.
CLOCK, CACHE = "wall", "warm"

#: Refusals of a record.
NO_CELL = "not a cell of the bench"
NO_TIME = "a time that is not a positive number"
NO_NUMBER = "a field of the wrong type"
NO_BATCHES = "process runs that do not add up to the samples"
NO_INTERVAL = "an interval that does not hold the median"

#: Why a record is refused one of whose fields is not of its type, by the field; NO_NUMBER of those that are not here.
_REFUSALS = {"process_runs": NO_BATCHES, "interval": NO_INTERVAL} | dict.fromkeys((*SECONDS, "data"), NO_TIME)

#: Where msgspec says that a field of a record is wrong.
_FIELD = re.compile(r"at `\$\.(?:extra_info|stats)\.(\w+)")


@dataclass(frozen=True)
class Samples:
    """The seconds of every timed call of a cell, in order, and the sizes of its batches by process run where known."""

    seconds: np.ndarray
    sizes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float], sizes: Sequence[Sequence[int]]) -> Samples:
        """The samples of a record whose sizes are known to add up."""
        return cls(np.array(seconds, dtype=float), tuple(map(tuple, sizes)))

    @property
    def process_runs(self) -> Visits:
        """The seconds by process run and batch; all in one batch where that is not known."""
        ends = iter(np.cumsum([size for run in self.sizes for size in run])[:-1] if self.sizes else ())
        batches = iter(np.split(self.seconds, list(ends)))
        return [[next(batches).tolist() for _ in run] for run in self.sizes or ((len(self.seconds),),)]


def key_of(cell: Mapping[str, Any]) -> Key:
    """What identifies a cell."""
    return cell["implementation"], cell["device"], cell["dtype"], cell["workload"]


def named(record: Mapping[str, Any]) -> bool:
    """Whether a record has an identity."""
    return all(isinstance(record.get(name), str) for name in CELL)


def is_entry(entry: Any) -> bool:
    """Whether something is an entry of the list of cells."""
    try:
        msgspec.convert(entry, Record)
    except msgspec.ValidationError:
        return False
    return True


def fault(info: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """Why a record cannot be used, "" if it can."""
    try:
        found = msgspec.convert({"extra_info": info, "stats": stats}, Benchmark)
    except msgspec.ValidationError as error:
        where = _FIELD.search(str(error))
        return _REFUSALS.get(where[1], NO_NUMBER) if where else NO_CELL
    runs, interval = found.extra_info.process_runs, found.extra_info.interval
    if runs is not msgspec.UNSET and sum(map(sum, runs)) != len(found.stats.data):
        return NO_BATCHES
    return "" if interval is None or interval[0] <= found.stats.median <= interval[1] else NO_INTERVAL


def kept(info: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """What of a timed cell the tables are made of; the interval becomes two columns, the process runs their number."""
    found = {name: info[name] for name in PROPERTIES if name in info} | {name: stats[name] for name in STATISTICS}
    if info.get("interval"):
        found["interval_low"], found["interval_high"] = info["interval"]
    if info.get("process_runs"):
        found["process_runs"] = len(info["process_runs"])
    return found


def samples_of(info: Mapping[str, Any], stats: Mapping[str, Any]) -> Samples | None:
    """The samples of a timed cell, None if the file was written without them."""
    if not stats.get("data"):
        return None
    return Samples.of(stats["data"], info.get("process_runs", ()))
