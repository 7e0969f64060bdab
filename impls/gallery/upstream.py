"""Upstream issues of the gallery's most serious findings, and which of the ledger's issues are published with them.

``issues.toml`` holds them.  An issue of an entry has a script in the library's own terms, which is run in the entry's
environment; one of the ledger has its script there (conformance/ledger/issues.toml).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from attention_conformance.impls.gallery import MANIFEST, ManifestError

ISSUES = MANIFEST.with_name("issues.toml")


class Upstream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cause, as it is reported upstream.

    Attributes
    ----------
    upstream : the address of a thread about it, or "unreported".
    searched : what was searched, and what else was found.
    entry : the gallery's entry in whose environment the script is run; none for one of the ledger.
    title, link, promise, follows, script, claim : as in conformance/ledger/issues.toml.
    """

    upstream: str
    searched: str
    entry: str = ""
    title: str = ""
    link: str = ""
    promise: str = ""
    follows: str = ""
    script: str = ""
    claim: str = ""


def upstream(path: Path = ISSUES) -> dict[str, Upstream]:
    """All reports by their names.

    Parameters
    ----------
    path
        A file of TOML, by default ``issues.toml``.

    Returns
    -------
    dict[str, Upstream]
        Reports in the order of the file.

    Raises
    ------
    ManifestError
        For a file that cannot be read.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, Upstream])
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from None
