"""Records of result files: what a report is made from, and how many of each file were read, used and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.bench.analysis.statistics import ProcessRuns
from attention_conformance.bench.records import RunInfo
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.results import Diagnosis
from attention_conformance.impls import compressed
from attention_conformance.impls.contract import InputError

#: Bytes of the largest file that is read: a run of 50,000 results and 2,000 cells has about 60 MB, and JSON takes
#: several times its size in memory.
LARGEST = 1 << 29

#: Reason why a record is not used although it is as good as the one that is.
AGAIN = "of a case or cell that an earlier file has"


class ReportError(InputError, ValueError):
    """A file that cannot be reported on; the text is one sentence that names it."""


@dataclass(frozen=True)
class Source:
    """One file: what it is, where it was made, and how many of its records were read, used and refused."""

    path: Path
    kind: str
    environment: dict[str, Any]
    read: int
    used: int
    #: Reasons why the others were not used, with their numbers.
    refused: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    #: Packages that were not installed, by implementation.
    not_installed: tuple[str, ...] = ()
    #: What explains the failures of a conformance run.
    diagnoses: tuple[Diagnosis, ...] = ()


def text_of(path: Path) -> str:
    """The text of a file, compressed or not.

    Parameters
    ----------
    path
        Path of a file, compressed or not.

    Returns
    -------
    str
        Content of the file.

    Raises
    ------
    ReportError
        For a file that is missing, empty, too large or no text.
    """
    try:
        text = compressed.read(path, LARGEST).decode("utf-8")
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist") from None
    except compressed.TooLarge as error:
        raise ReportError(f"{path} {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    if not text.strip():
        raise ReportError(f"{path} is empty")
    return text


@dataclass(frozen=True)
class Samples:
    """The seconds of every timed call of a cell, in order, and the sizes of its batches by process run where known."""

    seconds: np.ndarray
    sizes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float], sizes: Sequence[Sequence[int]]) -> Samples:
        """The samples of a record whose sizes are known to add up.

        Parameters
        ----------
        seconds
            Seconds of every call, in order.
        sizes
            Calls of each batch, by process run.

        Returns
        -------
        Samples
            The samples.
        """
        return cls(np.array(seconds, dtype=float), tuple(map(tuple, sizes)))

    @property
    def process_runs(self) -> ProcessRuns:
        """The seconds by process run and batch; all in one batch where that is not known."""
        ends = iter(np.cumsum([size for run in self.sizes for size in run])[:-1] if self.sizes else ())
        batches = iter(np.split(self.seconds, list(ends)))
        return [[next(batches).tolist() for _ in run] for run in self.sizes or ((len(self.seconds),),)]


class BenchRun(RunInfo, frozen=True, kw_only=True):
    """Run of the bench from its file: the file's name, the machine by pytest-benchmark, and RunInfo."""

    name: str
    machine: dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Everything that a report is made from.  A cell is a timed or untimed workload, as a flat dictionary."""

    sources: tuple[Source, ...]
    results: tuple[Result, ...]
    cells: tuple[dict[str, Any], ...]
    #: The kill matrix, and the number of cases that it covers.
    faults: tuple[dict[str, Any], ...] = ()
    cases: int = 0
    #: The run in each file of the bench, and the samples of each timed cell.
    runs: tuple[BenchRun, ...] = ()
    samples: Mapping[tuple, Samples] = field(default_factory=dict)


def labels(sources: Iterable[Source]) -> list[str]:
    """Labels of some files: the name of each, or its path where others have the same name.

    Parameters
    ----------
    sources
        Files that were read.

    Returns
    -------
    list[str]
        A label for each file, in their order.
    """
    paths = [source.path for source in sources]
    count = Counter(path.name for path in paths)
    return [path.name if count[path.name] == 1 else str(path) for path in paths]


def by_file(sources: Sequence[Source]) -> pd.DataFrame:
    """One row per file, with the counts of its records.

    Parameters
    ----------
    sources
        Files that were read.

    Returns
    -------
    pd.DataFrame
        Labels, kinds and counts; without columns where there is no file.
    """
    rows = [
        {
            "file": label,
            "kind": source.kind,
            "complete": "yes" if source.complete else "no: cut off",
            "read": source.read,
            "used": source.used,
            "refused": sum(source.refused.values()),
            "why refused": "; ".join(f"{count} {why}" for why, count in source.refused.items()),
        }
        for source, label in zip(sources, labels(sources), strict=True)
    ]
    return pd.DataFrame(rows)
