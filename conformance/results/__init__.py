"""The result file of a run: written line by line (file.py), and read as untrusted data (parse.py)."""

from attention_conformance.conformance.results.file import Writer, by_column, fingerprint, one_by_one, rewrite
from attention_conformance.conformance.results.parse import (
    FORMAT,
    Diagnosis,
    Header,
    ResultFileError,
    Run,
    as_record,
    from_record,
    read,
)

__all__ = [
    "FORMAT",
    "Diagnosis",
    "Header",
    "ResultFileError",
    "Run",
    "Writer",
    "as_record",
    "by_column",
    "fingerprint",
    "from_record",
    "one_by_one",
    "read",
    "rewrite",
]
