"""Sharding: ``--shard I/N`` runs a part on one of several machines, and ``merge`` joins the result files of all parts.

A part has whole implementations, as a diagnosis looks at all of an implementation's failures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.results import ResultFileError, Run, Writer, read
from attention_conformance.conformance.targets import profile_key
from attention_conformance.impls.contract import InputError

#: Fields of the header that the parts of one run share; the kernels of their machines may differ.
COMMON = ("format", "spec", "machine", "python", "versions", "ledgers", "not_installed", "profiles")

_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


class MergeError(InputError, ValueError):
    """Parts that cannot be joined; the text is one sentence."""


class NotAPart(MergeError):
    """A result file of a whole run."""


class Unfinished(MergeError):
    """A part that was cut off."""


class PartsDiffer(MergeError):
    """Parts of runs that differ in what they ran, or with what."""


class PartTwice(MergeError):
    """A part that is given twice."""


class PartMissing(MergeError):
    """A part that is not given."""


class ResultTwice(MergeError):
    """A result that two parts have."""


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 1) of ``total``."""

    index: int
    total: int

    def __str__(self) -> str:
        return f"{self.index}/{self.total}"


def parse(text: str) -> Shard:
    """The shard that a text like "2/3" names.  Raises ValueError with one sentence for any other."""
    found = _SHARD.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError(f"{text}: expected I/N with I from 1 to N, such as 2/3")
    return Shard(int(found[1]), int(found[2]))


def share_out(scopes: Iterable[str], total: int) -> dict[str, int]:
    """The part, from 1, of each of the tests' scopes: the largest scope first, each to the smallest part."""
    loads = [0] * total
    parts = {}
    for name, count in sorted(Counter(scopes).items(), key=lambda item: (-item[1], item[0])):
        smallest = loads.index(min(loads))
        loads[smallest] += count
        parts[name] = smallest + 1
    return parts


def merge(paths: Sequence[Path], output: Path) -> int:
    """Write the parts of a run as one result file, as a run on one machine would have.

    Parameters
    ----------
    paths
        The result file of each part, in any order.
    output
        The file to write.

    Returns
    -------
    int
        Number of results.

    Raises
    ------
    MergeError
        Parts that do not belong together; the subclass says what is wrong.
    ResultFileError
        A file that is no result file.
    """
    runs = {path: _part(path) for path in paths}
    first = next(iter(runs), None)
    if first is None:
        raise PartMissing("no parts are given")
    _compare(runs, first)
    header = replace(
        runs[first].header,
        shard=None,
        started=min(run.header.started for run in runs.values()),
        system="; ".join(dict.fromkeys(run.header.system for run in runs.values())),
        adapters=tuple(line for run in runs.values() for line in run.header.adapters),
    )
    results = _joined(runs, list(header.profiles))
    diagnoses = [each for run in runs.values() for each in run.diagnoses]
    place = {name: at for at, name in enumerate(dict.fromkeys(result.implementation for result in results))}
    # A run writes these even if they are empty; encoding omits defaults.
    always = {name: to_builtins(getattr(header, name)) for name in ("versions", "not_installed", "profiles")}
    with Writer(output, to_builtins(header) | always) as writer:
        for result in results:
            writer.write(result)
        writer.close(diagnoses=to_builtins(sorted(diagnoses, key=lambda each: place.get(each.implementation, 0))))
    return len(results)


def _part(path: Path) -> Run:
    run = read(path)
    if run.header.shard is None:
        raise NotAPart(f"{path} is of a whole run, not of one with --shard")
    if not run.complete:
        raise Unfinished(f"{path} has no footer: its run was cut off")
    try:
        parse(run.header.shard)
    except ValueError as error:
        raise ResultFileError(f"{path}: shard {error}") from None
    return run


def _shard(run: Run) -> Shard:
    return parse(run.header.shard or "")


def _compare(runs: dict[Path, Run], first: Path) -> None:
    """Refuse parts of different runs, parts that are given twice, and runs with a missing part."""
    total = _shard(runs[first]).total
    seen: dict[int, Path] = {}
    for path, run in runs.items():
        for key in COMMON:
            if getattr(run.header, key) != getattr(runs[first].header, key):
                raise PartsDiffer(f"{path} and {first} differ in {key}: {_difference(run, runs[first], key)}")
        shard = _shard(run)
        if shard.total != total:
            raise PartsDiffer(f"{path} is part {shard}, {first} is part {_shard(runs[first])}")
        if shard.index in seen:
            raise PartTwice(f"{path} and {seen[shard.index]} are both part {shard}")
        seen[shard.index] = path
    missing = [str(Shard(index, total)) for index in range(1, total + 1) if index not in seen]
    if missing:
        raise PartMissing(f"part {', '.join(missing)} is missing")


def _difference(one: Run, other: Run, key: str) -> str:
    """Two values of a header, or of the first of its entries that differs."""
    a, b = to_builtins((getattr(one.header, key), getattr(other.header, key)))
    if isinstance(a, dict) and isinstance(b, dict):
        name = next(name for name in sorted({*a, *b}) if a.get(name) != b.get(name))
        return f"{name} {a.get(name)} and {b.get(name)}"
    return f"{a} and {b}"


def _joined(runs: dict[Path, Run], targets: list[str]) -> list[Result]:
    """All results, in the order of the targets; property tests come last, as they are run."""
    found: dict[tuple[str, ...], Path] = {}
    results: list[Result] = []
    for path, run in runs.items():
        for result in run.results:
            key = (result.implementation, result.device, result.dtype, result.case)
            if key in found:
                raise ResultTwice(f"{path} and {found[key]} both have {', '.join(key)}")
            found[key] = path
            results.append(result)
    place = {name: at for at, name in enumerate(targets)}

    def order(result: Result) -> tuple[Any, ...]:
        key = profile_key(result.implementation, result.device, result.dtype)
        return not result.of_case, place.get(key, len(place))

    return sorted(results, key=order)
