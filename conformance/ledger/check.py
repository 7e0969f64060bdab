"""What a ledger may hold: each way in which a record can be broken is told in one sentence that names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from fnmatch import filter as matching
from importlib import metadata
from itertools import combinations

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.cases import every_case
from conformance.clauses import clauses
from conformance.ledger.record import Deviation, LedgerError
from conformance.ledger.versions import common
from conformance.outcomes import Failure
from conformance.strict import WrongType, convert
from conformance.targets import DEVICES
from impls.contract import DTYPES
from impls.loading import nearest
from impls.select import ENTRY_POINTS, builtin

#: The keys of a record.
KEYS = tuple(field.name for field in fields(Deviation) if field.name != "file")

#: How a record may fail: a stale record is what the ledger is strict about, not what it excuses.
FAILURES = tuple(failure.value for failure in Failure if failure is not Failure.STALE)

#: Where a plug-in's name is told from a built-in's: ``mykernels.py:attention``.
PLUGGED = ":"


def record(place: str, data: object, file: str) -> Deviation:
    """A record, from what stands in the file.  Raises LedgerError; ``place`` says where it stands."""
    if isinstance(data, dict):
        for key in data:
            if key not in KEYS:
                raise LedgerError(f"{place}: unknown key {key!r}{nearest(key, KEYS)}")
        _known(place, "failure", [f for f in [data.get("failure")] if isinstance(f, str)], FAILURES)
    try:
        found = replace(convert(data, Deviation), file=file)
        SpecifierSet(found.versions)
    except WrongType as error:
        raise LedgerError(f"{place}: {error}") from None
    except InvalidSpecifier:
        raise LedgerError(f"{place}: versions {found.versions!r} is not a version range (PEP 440)") from None
    _known(place, "clause", [found.clause], clauses())
    _known(place, "dtype", found.dtypes, DTYPES)
    _known(place, "device", found.devices, DEVICES)
    _patterns(place, "case", found.cases, every_case())
    _patterns(place, "implementation", [each for each in found.implementations if PLUGGED not in each], names())
    if found.upstream != "unreported" and not found.upstream.startswith("https://"):
        raise LedgerError(f'{place}: upstream {found.upstream!r} is neither a https:// link nor "unreported"')
    return found


def _known(place: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise LedgerError(f"{place}: unknown {what} {name!r}{nearest(name, known)}")


def _patterns(place: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for pattern in given:
        if not matching(known, pattern):
            raise LedgerError(f"{place}: unknown {what} {pattern!r}{nearest(pattern, known)}")


def names() -> tuple[str, ...]:
    """The implementations that a record may name, besides plug-ins: built-in ones and those of installed packages."""
    return (*builtin(), *(entry.name for entry in metadata.entry_points(group=ENTRY_POINTS)))


def together(deviations: Sequence[Deviation], others: Iterable[str] = ()) -> None:
    """What holds of all records: an id names one of them, and a case has one in any version.

    ``others`` are names of implementations that globs may meet besides the known ones.  Raises LedgerError.
    """
    seen: dict[str, Deviation] = {}
    for each in deviations:
        if each.id in seen:
            first = seen[each.id].file
            where = f"twice in {first}" if first == each.file else f"in {first} and in {each.file}"
            raise LedgerError(f"two records have the id {each.id}: it stands {where}")
        seen[each.id] = each
    written = {pattern for each in deviations for pattern in each.implementations if PLUGGED in pattern}
    universe = sorted({*names(), *written, *others})
    spoken: dict[tuple[str, str], list[Deviation]] = {}
    for each in deviations:
        for name in dict.fromkeys(n for pattern in each.implementations for n in matching(universe, pattern)):
            for case in dict.fromkeys(c for pattern in each.cases for c in matching(every_case(), pattern)):
                spoken.setdefault((name, case), []).append(each)
    for (name, case), records in spoken.items():
        for one, other in combinations(records, 2):
            _apart(one, other, name, case)


def _apart(one: Deviation, other: Deviation, name: str, case: str) -> None:
    """Two records that name one case have no dtype, device or version in common."""
    possible = dtypes(name, case)
    shared = [d for d in possible if d in (one.dtypes or possible) and d in (other.dtypes or possible)]
    devices = [d for d in DEVICES if d in (one.devices or DEVICES) and d in (other.devices or DEVICES)]
    version = common(one.versions, other.versions) if one.package == other.package else ""
    if shared and devices and version is not None:
        at = f", {one.package} {version}" if version else ""
        raise LedgerError(f"records {one.name} and {other.name} both speak of {name}, {shared[0]}, case {case}{at}")


def dtypes(implementation: str, case: str) -> tuple[str, ...]:
    """The dtypes in which an implementation is judged on a case; none if they are of two operators."""
    known, asked = builtin().get(implementation), every_case()[case]
    if known is None:
        return asked.dtypes
    return tuple(d for d in asked.dtypes if d in known.dtypes) if known.operator == asked.operator else ()
