"""The deviation ledger: where a named implementation is known not to follow a clause, as strict expected failures.

A record says in which way its cases fail.  A case that fails otherwise is a failure, and one that passes, too:
the record is then out of date and has to be removed.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path

from conformance.ledger.check import record, together
from conformance.ledger.record import LEDGER, OURS, Deviation, Ledger, LedgerError, Source

__all__ = ["LEDGER", "Deviation", "Ledger", "LedgerError", "read"]


def read(paths: Sequence[Path] = (LEDGER,)) -> Ledger:
    """The records of some ledger files.  Raises LedgerError for the first thing wrong in them."""
    deviations: list[Deviation] = []
    sources: list[Source] = []
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
        deviations += [record(_place(file, number, each), each, file) for number, each in enumerate(records, 1)]
        sources.append(Source(file, len(records), f"{zlib.crc32(content):08x}"))
    together(deviations)
    return Ledger(tuple(deviations), tuple(sources))


def _place(file: str, number: int, data: object) -> str:
    return f"{file}, record {data.get('id', number) if isinstance(data, dict) else number}"
