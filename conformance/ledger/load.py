"""The deviation ledger: where a named implementation is known not to follow a clause, as strict expected failures.

A ledger file is read whole or not at all: each kind of broken record is reported in one sentence with the file and the
record.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import filter as meeting
from fnmatch import fnmatch
from importlib import metadata
from itertools import combinations, product
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from attention_conformance.conformance.cases import asked_cases, case_named, every_case
from attention_conformance.conformance.cases.fit import dtypes_for
from attention_conformance.conformance.judging.outcomes import STREAM_ORDER, Failure, Result
from attention_conformance.conformance.ledger.versions import (
    PROCESSOR,
    PROCESSORS,
    common_version,
    in_range,
    processor,
)
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.conformance.targets import DEVICES
from attention_conformance.impls.contract import DTYPES, InputError
from attention_conformance.impls.loading import nearest
from attention_conformance.impls.select import ENTRY_POINTS, builtin
from attention_conformance.impls.strict import WrongType, convert

#: The ledger of the suite itself, and how a result file names it.
LEDGER = Path(__file__).parents[1] / "deviations.toml"
OURS = "conformance/deviations.toml"

#: Failures that a record may have: not a stale record, which the ledger reports and does not excuse.
FAILURES = tuple(failure.value for failure in Failure if failure is not Failure.STALE)

#: Mark that distinguishes a plug-in's name from a built-in's: ``mykernels.py:attention``.
PLUGGED = ":"

#: Texts; a file that has the key gives at least one.
Some = Annotated[tuple[str, ...], Meta(min_length=1)]


class LedgerError(InputError, ValueError):
    """A ledger that cannot be used; the text is one sentence with the file and the record."""


@dataclass(frozen=True)
class Deviation:
    """One record.  Patterns are globs; empty dtypes or devices mean all of them."""

    id: str
    implementations: Some
    #: The package whose version decides, and its versions, as in a requirement (">=2.5,<2.14").
    package: str
    versions: str
    clause: str
    cases: Some
    failure: Failure
    #: What the implementation does instead of what the clause says.
    instead: str
    #: Link to the upstream issue, or "unreported".
    upstream: str
    dtypes: Some = ()
    devices: Some = ()
    #: The processors on which it shows, by their vector instructions (``versions.PROCESSORS``); none for all.
    processors: Some = ()
    #: Words of the exception, for the failure "error", that distinguish it from others of the same call.
    says: str = ""
    #: For an intermittent deviation: in how many results of its cases it showed, "11 of 40"; "" if it always does.
    seen: str = ""
    #: The file of the ledger, as it was named.
    file: str = OURS

    @property
    def name(self) -> str:
        """Name of the record: its id, with the file of a user's record."""
        return self.id if self.file == OURS else f"{self.id} ({self.file})"

    def speaks_of(self, implementation: str) -> bool:
        """Whether the record is about this implementation at all.

        Parameters
        ----------
        implementation
            Name of an implementation.

        Returns
        -------
        bool
            Whether one of the record's names or globs matches it.
        """
        return any(fnmatch(implementation, pattern) for pattern in self.implementations)

    def concerns(self, implementation: str, device: str, dtype: str) -> bool:
        """Whether the record speaks of this implementation, device and dtype, in any version.

        Parameters
        ----------
        implementation
            Name of an implementation.
        device
            Device, such as "cpu".
        dtype
            Dtype, such as "float32".

        Returns
        -------
        bool
            Whether it does, by names only.
        """
        return (
            self.speaks_of(implementation)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.devices or device in self.devices)
        )

    def covers(self, implementation: str, device: str, dtype: str, case: str) -> bool:
        """Whether the record speaks of this implementation, device, dtype and case, in any version.

        Parameters
        ----------
        implementation
            Name of an implementation.
        device
            Device, such as "cpu".
        dtype
            Dtype, such as "float32".
        case
            Name of a case.

        Returns
        -------
        bool
            Whether it does, by names only.
        """
        named = any(fnmatch(case, pattern) for pattern in self.cases)
        return named and self.concerns(implementation, device, dtype)

    def shown_by(self, result: Result) -> bool:
        """Whether a failure is the recorded one: of its kind, and with its words, if the record has any.

        Parameters
        ----------
        result
            Result of a case that the record covers, without a ledger applied to it.

        Returns
        -------
        bool
            Whether it is.
        """
        return result.failure is self.failure and self.says in result.reason

    @property
    def enough(self) -> int:
        """Passes that show that it is gone: one, or enough that an intermittent one passes all once in 100 times."""
        if not self.seen:
            return 1
        shown, of = map(int, self.seen.split(" of "))
        return math.ceil(math.log(0.01) / math.log1p(-shown / of))

    def in_force(self, versions: Mapping[str, str]) -> bool:
        """Whether the installed version of the package, and the processor, are among those the record names.

        ``versions`` has the processor if ``Ledger.installed`` has put it there; a run that does not name its processor
        counts as run on one that the record names.

        Parameters
        ----------
        versions
            Installed versions, by package.

        Returns
        -------
        bool
            Whether they are.
        """
        known = self.package in versions and in_range(self.versions, versions[self.package])
        return known and self.of_processor(versions)

    def of_processor(self, versions: Mapping[str, str]) -> bool:
        """Whether the processor of a run is one of those that the record names."""
        return not self.processors or versions.get(PROCESSOR, self.processors[0]) in self.processors


@dataclass(frozen=True)
class Source:
    """A ledger file that was read, as it was named, with the checksum (CRC-32) of its bytes."""

    file: str
    records: int
    crc32: str


@dataclass(frozen=True)
class Ledger:
    """All records, and the files they come from."""

    deviations: tuple[Deviation, ...] = ()
    sources: tuple[Source, ...] = ()

    def find(
        self, implementation: str, device: str, dtype: str, case: str, versions: Mapping[str, str]
    ) -> Deviation | None:
        """The record in force for one case, or None.

        Parameters
        ----------
        implementation
            Name of an implementation.
        device
            Device, such as "cpu".
        dtype
            Dtype, such as "float32".
        case
            Name of a case.
        versions
            Installed versions, by package.

        Returns
        -------
        Deviation | None
            The record.

        Raises
        ------
        LedgerError
            If there are two.
        """
        known = self._concerning.get((implementation, device, dtype))
        if known is None:
            known = tuple(d for d in self.deviations if d.concerns(implementation, device, dtype))
            self._concerning[implementation, device, dtype] = known
        found = [d for d in known if d.covers(implementation, device, dtype, case) and d.in_force(versions)]
        if len(found) > 1:
            both = " and ".join(d.name for d in found)
            raise LedgerError(f"records {both} both cover {implementation}, {dtype}, case {case}")
        return found[0] if found else None

    @functools.cached_property
    def _concerning(self) -> dict[tuple[str, str, str], tuple[Deviation, ...]]:
        """Cache of the records about an implementation, device and dtype, which every case looks up."""
        return {}

    def installed(self, implementations: Iterable[str]) -> dict[str, str]:
        """Versions of the installed packages that records about these implementations name.

        If a record names processors, the processor's vector instructions are among them.

        Parameters
        ----------
        implementations
            Names of implementations.

        Returns
        -------
        dict[str, str]
            Versions by package.
        """
        chosen = list(implementations)
        found = {}
        for record in self.deviations:
            if record.processors and any(record.speaks_of(name) for name in chosen):
                found[PROCESSOR] = processor()
            if record.package not in found and any(record.speaks_of(name) for name in chosen):
                try:
                    found[record.package] = metadata.version(record.package)
                except metadata.PackageNotFoundError:
                    continue
        return found


#: The keys of a record.
KEYS = tuple(field.name for field in fields(Deviation) if field.name != "file")


def read(paths: Sequence[Path] = (LEDGER,)) -> Ledger:
    """Read ledger files, and check their records one by one and together.

    Parameters
    ----------
    paths
        TOML files of ``[[deviation]]`` tables; by default the suite's own.

    Returns
    -------
    Ledger
        All records, in the order of the files.

    Raises
    ------
    LedgerError
        For the first thing wrong in them, in one sentence with the file and the record.
    """
    deviations: list[Deviation] = []
    sources: list[Source] = []
    names = _known_names()
    for path in paths:
        file = OURS if path == LEDGER else str(path)
        try:
            content = path.read_bytes()
            data = tomllib.loads(content.decode("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise LedgerError(f"deviation ledger {path} cannot be read: {error}") from None
        unknown = set(data) - {"deviation"}
        if unknown:
            raise LedgerError(f"{file}: unknown table {sorted(unknown)[0]!r}, expected [[deviation]]")
        records = data.get("deviation", [])
        if not isinstance(records, list):
            raise LedgerError(f"{file}: deviation is one table, expected [[deviation]] in double brackets")
        deviations += [_record(_place(file, number, each), each, file, names) for number, each in enumerate(records, 1)]
        sources.append(Source(file, len(records), f"{zlib.crc32(content):08x}"))
    check_records(deviations)
    return Ledger(tuple(deviations), tuple(sources))


def _place(file: str, number: int, data: object) -> str:
    return f"{file}, record {data.get('id', number) if isinstance(data, dict) else number}"


def _record(place: str, data: object, file: str, names: Sequence[str]) -> Deviation:
    """A record, from what is in the file.  Raises LedgerError.

    ``place`` names the place in it, ``names`` are the known implementations.
    """
    if isinstance(data, dict):
        for key in data:
            if key not in KEYS:
                raise LedgerError(f"{place}: unknown key {key!r}{nearest(key, KEYS)}")
        _refuse_unknown(place, "failure", [f for f in [data.get("failure")] if isinstance(f, str)], FAILURES)
    try:
        found = replace(convert(data, Deviation), file=file)
        SpecifierSet(found.versions)
    except WrongType as error:
        raise LedgerError(f"{place}: {error}") from None
    except InvalidSpecifier:
        raise LedgerError(f"{place}: versions {found.versions!r} is not a version range (PEP 440)") from None
    if found.seen and not _some_of_more(found.seen):
        raise LedgerError(f'{place}: seen {found.seen!r} is not a number of results and a larger one, as in "11 of 40"')
    if found.says and found.failure is not Failure.ERROR:
        raise LedgerError(
            f'{place}: says is only for the failure "error", and this record fails by {found.failure.value}'
        )
    _refuse_unknown(place, "clause", [found.clause], clauses())
    _refuse_unknown(place, "dtype", found.dtypes, DTYPES)
    _refuse_unknown(place, "device", found.devices, DEVICES)
    _refuse_unknown(place, "processor", found.processors, PROCESSORS)
    for pattern in found.cases:
        if not cases_meeting(pattern):
            raise LedgerError(f"{place}: unknown case {pattern!r}{nearest(pattern, every_case())}")
    _patterns(place, "implementation", [each for each in found.implementations if PLUGGED not in each], names)
    if found.upstream != "unreported" and not found.upstream.startswith("https://"):
        raise LedgerError(f'{place}: upstream {found.upstream!r} is neither a https:// link nor "unreported"')
    return found


def _some_of_more(seen: str) -> bool:
    rate = re.fullmatch(r"([1-9]\d{0,5}) of ([1-9]\d{0,5})", seen)
    return rate is not None and int(rate[1]) < int(rate[2])


def _refuse_unknown(place: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise LedgerError(f"{place}: unknown {what} {name!r}{nearest(name, known)}")


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that a glob matches; a text without wildcards is looked up."""
    if not set("*?[") & set(pattern):
        return [pattern] if pattern in names else []
    return meeting(names, pattern)


def cases_meeting(pattern: str) -> list[str]:
    """The names of a run's cases that a glob matches; without wildcards, the name of any case."""
    if pattern == STREAM_ORDER:
        return [pattern]
    if set("*?[") & set(pattern):
        return meeting(asked_cases(), pattern)
    try:
        return [case_named(pattern).name]
    except KeyError:
        return []


def _patterns(place: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for pattern in given:
        if not matching(known, pattern):
            raise LedgerError(f"{place}: unknown {what} {pattern!r}{nearest(pattern, known)}")


def _known_names() -> tuple[str, ...]:
    """The implementations that a record may name, except plug-ins: built-in ones and those of installed packages."""
    return (*builtin(), *(entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)))


def check_records(deviations: Sequence[Deviation], others: Iterable[str] = ()) -> None:
    """Check all records together: ids are unique, each record can apply, and no case has two in the same version.

    ``others`` are names of further implementations that globs may match.  Raises LedgerError.
    """
    seen: dict[str, Deviation] = {}
    for each in deviations:
        if each.id in seen:
            first = seen[each.id].file
            where = f"twice in {first}" if first == each.file else f"in {first} and in {each.file}"
            raise LedgerError(f"two records have the id {each.id}: it is {where}")
        seen[each.id] = each
    written = {pattern for each in deviations for pattern in each.implementations if PLUGGED in pattern}
    universe = sorted({*_known_names(), *written, *others})
    spoken: dict[tuple[str, str], list[Deviation]] = {}
    for each in deviations:
        names = dict.fromkeys(n for pattern in each.implementations for n in matching(universe, pattern))
        cases = dict.fromkeys(c for pattern in each.cases for c in cases_meeting(pattern))
        if not any(_can_be_met(each, name, case) for name, case in product(names, cases)):
            raise LedgerError(f"record {each.name}: none of its implementations is judged on its cases in its dtypes")
        for place in product(names, cases):
            spoken.setdefault(place, []).append(each)
    for (name, case), records in spoken.items():
        for one, other in combinations(records, 2):
            _refuse_overlap(one, other, name, case)


def _can_be_met(record: Deviation, name: str, case: str) -> bool:
    """Whether an implementation is judged on a case in a dtype of a record; one that is not built in may be."""
    return name not in builtin() or any(not record.dtypes or d in record.dtypes for d in dtypes(name, case))


def _refuse_overlap(one: Deviation, other: Deviation, name: str, case: str) -> None:
    """Refuse two records of one case that have a dtype, device, processor and version in common."""
    possible = dtypes(name, case)
    shared = [d for d in possible if d in (one.dtypes or possible) and d in (other.dtypes or possible)]
    devices = [d for d in DEVICES if d in (one.devices or DEVICES) and d in (other.devices or DEVICES)]
    both = set(one.processors or PROCESSORS) & set(other.processors or PROCESSORS)
    version = common_version(one.versions, other.versions) if one.package == other.package else ""
    if shared and devices and both and version is not None:
        at = f", {one.package} {version}" if version else ""
        raise LedgerError(f"records {one.name} and {other.name} both cover {name}, {shared[0]}, case {case}{at}")


def dtypes(implementation: str, case: str) -> tuple[str, ...]:
    """The dtypes in which an implementation is judged on a case; none if their operators differ."""
    known = builtin().get(implementation)
    if case == STREAM_ORDER:
        return known.dtypes if known else tuple(DTYPES)
    asked = case_named(case)
    if known is None:
        return asked.dtypes
    if known.operator != asked.operator:
        return ()
    return tuple(d for d in asked.dtypes if d in known.dtypes) or dtypes_for(asked, known.dtypes)
