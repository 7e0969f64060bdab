"""One record of the bench: whether it is a cell, what of it is kept, and its samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.statistics import Visits

#: What identifies a cell.
CELL = ("implementation", "device", "dtype", "workload")
Key = tuple[str, str, str, str]

#: Statistics of a timed cell that are kept: seconds that are positive, and two that may be 0.
SECONDS = ("min", "median", "mean", "max")
STATISTICS = (*SECONDS, "stddev", "rounds")

#: Numbers of a timed cell, and those of them that may be null.
NUMBERS = ("B", "H", "D", "flops", "gflops", "prepare_seconds", "first_call_seconds", "peak_bytes", "share")
MAY_BE_NULL = ("peak_bytes", "share")
PROPERTIES = (*NUMBERS, "profile")

#: Properties that format 1 does not have, and that format 2 does not.  All are optional.
OF_2 = ("Hkv", "Sk", "Dv", "tokens_per_second")
OF_3 = (
    *("stopped", "memory_bytes", "memory_method", "bytes_least", "intensity", "bound_by", "peak_share", "roof_share"),
    *("clock", "host_seconds", "emptied_bytes"),
)

#: What of them is text; the others are numbers or null.
TEXTS = ("stopped", "memory_method", "bound_by", "clock")

#: What a time is by where nothing is said of it: the host's clock, and caches that are as the calls before left them.
CLOCK, CACHE = "wall", "warm"

#: Fields of every entry of ``cells``, with what they are.
ENTRY = {**dict.fromkeys((*CELL, "family", "outcome", "clause", "reason"), str), "S": int}
OUTCOMES = ("timed", "struck out", "not timed")

#: Refusals of a record.
NO_CELL = "not a cell of the bench"
NO_TIME = "a time that is not a positive number"
NO_NUMBER = "a field of the wrong type"
NO_CHUNKS = "visits that do not add up to the samples"
NO_INTERVAL = "an interval that does not hold the median"


@dataclass(frozen=True)
class Samples:
    """The seconds of every timed call of a cell, in order, and the sizes of its chunks by visit where known."""

    seconds: np.ndarray
    sizes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float], sizes: Sequence[Sequence[int]]) -> Samples:
        """The samples of a record whose sizes are known to add up."""
        return cls(np.array(seconds, dtype=float), tuple(tuple(visit) for visit in sizes))

    @property
    def visits(self) -> Visits:
        """The seconds by visit and chunk; all in one chunk where that is not known."""
        ends = iter(np.cumsum([size for visit in self.sizes for size in visit])[:-1] if self.sizes else ())
        chunks = iter(np.split(self.seconds, list(ends)))
        return [[next(chunks).tolist() for _ in visit] for visit in self.sizes or ((len(self.seconds),),)]


def key_of(cell: Mapping[str, Any]) -> Key:
    """What identifies a cell."""
    return cell["implementation"], cell["device"], cell["dtype"], cell["workload"]


def named(record: Mapping[str, Any]) -> bool:
    """Whether a record has an identity."""
    return all(isinstance(record.get(name), str) for name in CELL)


def is_entry(entry: Any) -> bool:
    """Whether something is an entry of the list of cells."""
    kinds = isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in ENTRY.items())
    return kinds and entry["outcome"] in OUTCOMES and isinstance(entry.get("operator", ""), str)


def fault(info: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """Why a record cannot be used, "" if it can."""
    if not all(name in info for name in PROPERTIES) or not all(name in stats for name in STATISTICS):
        return NO_CELL
    data = stats.get("data", [])
    if not all(_positive(stats[name]) for name in SECONDS) or not isinstance(data, list):
        return NO_TIME
    if not all(map(_positive, data)):
        return NO_TIME
    numbers = [stats["stddev"], stats["rounds"], *(info[name] for name in NUMBERS if name not in MAY_BE_NULL)]
    later = [name for name in (*OF_2, *OF_3) if name not in TEXTS]
    numbers += [one for name in (*MAY_BE_NULL, *later) if (one := info.get(name)) is not None]
    texts = [one for name in ("profile", *TEXTS) if (one := info.get(name)) is not None]
    if not all(map(_measured, numbers)) or not all(isinstance(one, str) for one in texts):
        return NO_NUMBER
    if "visits" in info and not _adds_up(info["visits"], len(data)):
        return NO_CHUNKS
    return "" if _holds(info.get("interval"), stats["median"]) else NO_INTERVAL


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _measured(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _adds_up(visits: Any, count: int) -> bool:
    if not isinstance(visits, list) or not all(isinstance(visit, list) and visit for visit in visits):
        return False
    sizes = [size for visit in visits for size in visit]
    return all(type(size) is int and size > 0 for size in sizes) and sum(sizes) == count > 0


def _holds(interval: Any, median: float) -> bool:
    if interval is None:
        return True
    pair = isinstance(interval, list) and len(interval) == 2 and all(map(_positive, interval))
    return pair and interval[0] <= median <= interval[1]


def kept(info: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """What of a timed cell the tables are made of; the interval becomes two columns, the visits their number."""
    found = {name: info[name] for name in (*PROPERTIES, *OF_2) if name in info} | {
        name: stats[name] for name in STATISTICS
    }
    if info.get("interval"):
        found["interval_low"], found["interval_high"] = info["interval"]
    if info.get("visits"):
        found["visits"] = len(info["visits"])
    return found | {name: info[name] for name in OF_3 if name in info}


def samples_of(info: Mapping[str, Any], stats: Mapping[str, Any]) -> Samples | None:
    """The samples of a timed cell, None if the file was written without them."""
    if not stats.get("data"):
        return None
    return Samples.of(stats["data"], info.get("visits", ()))
