"""The deviation ledger: where a named implementation is known not to follow a clause, as strict expected failures.

A record says in which way its cases fail.  A case that fails otherwise is a failure, and one that passes, too:
the record is then out of date and has to be removed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.outcomes import Failure

LEDGER = Path(__file__).with_name("deviations.toml")


class LedgerError(ValueError):
    """A ledger that cannot be used; the text is one sentence with the file and the record."""


@dataclass(frozen=True)
class Deviation:
    """One record.  Patterns are globs; empty dtypes or devices mean all of them."""

    id: str
    implementations: tuple[str, ...]
    #: The package whose version decides, and its versions, as in a requirement (">=2.5,<2.14").
    package: str
    versions: str
    clause: str
    cases: tuple[str, ...]
    failure: Failure
    #: What the implementation does instead of what the clause says.
    instead: str
    #: Link to the upstream issue, or "unreported".
    upstream: str
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def covers(self, implementation: str, device: str, dtype: str, case: str) -> bool:
        """Whether the record speaks of this implementation, device, dtype and case, in any version."""
        return (
            any(fnmatch(implementation, pattern) for pattern in self.implementations)
            and any(fnmatch(case, pattern) for pattern in self.cases)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.devices or device in self.devices)
        )

    def in_force(self, versions: Mapping[str, str]) -> bool:
        """Whether the installed version of the package is one the record speaks of."""
        if self.package not in versions:
            return False
        # "2.13.0+cpu" and pre-releases count as the release they name.
        return SpecifierSet(self.versions, prereleases=True).contains(versions[self.package].partition("+")[0])


@dataclass(frozen=True)
class Ledger:
    """All records, and the versions that decide which are in force."""

    deviations: tuple[Deviation, ...] = ()

    def find(
        self, implementation: str, device: str, dtype: str, case: str, versions: Mapping[str, str]
    ) -> Deviation | None:
        """The record in force for one case, or None.  Raises LedgerError if there are two."""
        found = [d for d in self.deviations if d.covers(implementation, device, dtype, case) and d.in_force(versions)]
        if len(found) > 1:
            names = " and ".join(d.id for d in found)
            raise LedgerError(f"records {names} both speak of {implementation}, {dtype}, case {case}")
        return found[0] if found else None


def read(paths: Sequence[Path] = (LEDGER,)) -> Ledger:
    """The records of some ledger files.  Raises LedgerError for the first thing wrong in them."""
    deviations: list[Deviation] = []
    for path in paths:
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise LedgerError(f"deviation ledger {path} cannot be read: {error}") from None
        unknown = set(data) - {"deviation"}
        if unknown:
            raise LedgerError(f"{path}: unknown table {sorted(unknown)[0]!r}, expected [[deviation]]")
        deviations += [_record(path, number, record) for number, record in enumerate(data.get("deviation", ()), 1)]
    for each in deviations:
        if sum(other.id == each.id for other in deviations) > 1:
            raise LedgerError(f"two records have the id {each.id}")
    return Ledger(tuple(deviations))


def _record(path: Path, number: int, record: Mapping[str, object]) -> Deviation:
    place = f"{path}, record {record.get('id', number)}"
    known = {field.name for field in fields(Deviation)}
    missing = known - {"dtypes", "devices"} - set(record)
    if missing or set(record) - known:
        wrong = f"lacks {sorted(missing)[0]!r}" if missing else f"has an unknown key {sorted(set(record) - known)[0]!r}"
        raise LedgerError(f"{place}: {wrong}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    try:
        SpecifierSet(str(values["versions"]))
        return Deviation(**{**values, "failure": Failure(values["failure"])})  # type: ignore[arg-type]
    except InvalidSpecifier:
        raise LedgerError(f"{place}: versions {values['versions']!r} is not a version range") from None
    except ValueError:
        names = ", ".join(f.value for f in Failure)
        raise LedgerError(f"{place}: failure {values['failure']!r} is none of {names}") from None
