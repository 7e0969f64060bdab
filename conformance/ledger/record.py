"""A record of the deviation ledger, and the ledger that finds the one for a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from conformance.ledger.versions import names
from conformance.outcomes import Failure

#: The ledger of the suite itself, and how a result file names it.
LEDGER = Path(__file__).parents[1] / "deviations.toml"
OURS = "conformance/deviations.toml"


class LedgerError(ValueError):
    """A ledger that cannot be used; the text is one sentence with the file and the record."""


#: Texts, of which a file that names any has one at least.
Some = Annotated[tuple[str, ...], Meta(min_length=1)]


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
    #: The ledger that it stands in, as it was named.
    file: str = OURS

    @property
    def name(self) -> str:
        """Its id, with the file of a user's record."""
        return self.id if self.file == OURS else f"{self.id} ({self.file})"

    def speaks_of(self, implementation: str) -> bool:
        """Whether the record is about this implementation at all."""
        return any(fnmatch(implementation, pattern) for pattern in self.implementations)

    def covers(self, implementation: str, device: str, dtype: str, case: str) -> bool:
        """Whether the record speaks of this implementation, device, dtype and case, in any version."""
        return (
            self.speaks_of(implementation)
            and any(fnmatch(case, pattern) for pattern in self.cases)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.devices or device in self.devices)
        )

    def in_force(self, versions: Mapping[str, str]) -> bool:
        """Whether the installed version of the package is one the record speaks of."""
        return self.package in versions and names(self.versions, versions[self.package])


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
        """The record in force for one case, or None.  Raises LedgerError if there are two."""
        found = [d for d in self.deviations if d.covers(implementation, device, dtype, case) and d.in_force(versions)]
        if len(found) > 1:
            both = " and ".join(d.name for d in found)
            raise LedgerError(f"records {both} both speak of {implementation}, {dtype}, case {case}")
        return found[0] if found else None

    def installed(self, implementations: Iterable[str]) -> dict[str, str]:
        """Versions of the installed packages that records about these implementations name."""
        chosen = list(implementations)
        found = {}
        for record in self.deviations:
            if record.package not in found and any(record.speaks_of(name) for name in chosen):
                try:
                    found[record.package] = metadata.version(record.package)
                except metadata.PackageNotFoundError:
                    continue
        return found
