"""Gallery: libraries' attention as their users call it, with an adapter file for each way, and a manifest.

The adapters are plug-ins (impls/PLUGINS.md): they translate names and layouts, never repair a result, and refuse only
with the library's own words.  None of them is a built-in, and no module of the suite imports one: each is run in its
own environment by ``attention-conformance gallery run``.
"""

from __future__ import annotations

import tomllib
from enum import Enum
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from attention_conformance.impls.contract import InputError
from attention_conformance.impls.operators import OPERATORS

#: The suite's own manifest; an adapter is a file next to its manifest.
MANIFEST = Path(__file__).with_name("gallery.toml")


class ManifestError(InputError, ValueError):
    """A manifest that cannot be used; the text is one sentence that names it."""


class Use(Enum):
    """Use of a library."""

    TRAINING = "training"
    SERVING = "serving"
    EXPORT = "export"


class Says(Enum):
    """Documentation of the library on a difference from the spec."""

    DOCUMENTED = "documented"
    UNDOCUMENTED = "undocumented"
    CONTRADICTS = "contradicts its documentation"
    BY_DESIGN = "by design"
    INHERITED = "inherited"


class Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cause of failures, and how the diagnosis in the published results describes it, as a person judged it.

    Parameters
    ----------
    what : what the library does.
    clauses : the clauses that it is about; () for the finding's clauses.
    named : words of the diagnosis that name it, verbatim.
    misnamed : words of a diagnosis that explains its failures wrongly.
    """

    what: str
    clauses: tuple[str, ...] = ()
    named: str = ""
    misnamed: str = ""


class Aside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A diagnosis that names no cause of a finding, as a person judged it by the library's source.

    Parameters
    ----------
    says : words of the diagnosis, verbatim.
    why : what the source does.
    is_true : whether that is so; else the diagnosis is wrong.
    """

    says: str
    why: str
    is_true: bool = False


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A person's finding about a failure.

    Parameters
    ----------
    what : what the library does, in a sentence.
    says : what its documentation says about it; inherited where the function below it, a built-in here, does the same.
    clauses : the clauses that it is about.
    quote : the words of the documentation, or of the exception.
    link : the address of the words, if not the entry's documentation.
    is_grave : a result that is silently wrong for an ordinary call.
    named, misnamed : as in `Cause`, where the finding is one cause.
    parts : the causes, where there are several.
    """

    what: str
    says: Says
    clauses: tuple[str, ...] = ()
    quote: str = ""
    link: str = ""
    is_grave: bool = False
    named: str = ""
    misnamed: str = ""
    parts: tuple[Cause, ...] = ()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of the finding, each with the clauses that it is about."""
        parts = self.parts or (Cause(what=self.what, named=self.named, misnamed=self.misnamed),)
        return tuple(msgspec.structs.replace(part, clauses=part.clauses or self.clauses) for part in parts)

    def __post_init__(self) -> None:
        """Raises ValueError for parts next to words of the whole, and for a cause that is named and misnamed."""
        if self.parts and (self.named or self.misnamed):
            raise ValueError(f"{self.what}: its parts are named, or else the whole")
        if any(each.named and each.misnamed for each in self.causes):
            raise ValueError(f"{self.what}: named, or else misnamed")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A library and a way of calling it.

    Attributes
    ----------
    name : the entry's name in the tables.
    package : the distribution that is judged, one of ``requires``.
    requires : every distribution that the adapter needs, each with one version.
    adapter, function : the file next to the manifest, and the function in it that is judged, as for ``--impl``.
    documentation : where the library documents each option; ``*`` for those without an address of their own.
    python : the versions of Python that the package is for.
    variables : environment variables that choose the way of calling it.
    needs : programs that no package of the registry has, such as a compiler.
    uses : what people use it for.
    findings : what a person found about its failures.
    asides : diagnoses that name none of the causes found.
    """

    name: str
    package: str
    requires: tuple[str, ...]
    adapter: str
    function: str
    documentation: dict[str, str]
    operator: str = "sdpa"
    python: str = ">=3.11"
    variables: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ()
    findings: tuple[Finding, ...] = ()
    asides: tuple[Aside, ...] = ()

    @property
    def target(self) -> str:
        """Target as ``--impl`` takes it, in the folder of the manifest."""
        return f"{self.adapter}:{self.function}"

    def __post_init__(self) -> None:
        """Raises ValueError for a requirement without one version, or for an unknown package or operator."""
        try:
            required = {r.name: r.specifier for r in map(Requirement, self.requires)}
        except InvalidRequirement as error:
            raise ValueError(f"{self.name}: {error}") from None
        loose = [name for name, found in required.items() if [s.operator for s in found] != ["=="]]
        if loose or self.package not in required or self.operator not in OPERATORS:
            raise ValueError(f"{self.name}: {loose or self.package}: expected one version, and a known operator")


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: tuple[Entry, ...]


def entries(manifest: Path = MANIFEST) -> dict[str, Entry]:
    """The entries of a manifest by their names.

    Parameters
    ----------
    manifest
        A file of TOML, by default ``gallery.toml``.

    Returns
    -------
    dict[str, Entry]
        Entries in the order of the file.

    Raises
    ------
    ManifestError
        For a file that cannot be read, and for a duplicate name or function.
    """
    try:
        found = msgspec.convert(tomllib.loads(manifest.read_text(encoding="utf-8")), _Manifest).entry
    except (OSError, ValueError) as error:
        raise ManifestError(f"{manifest}: {error}") from None
    by_name = {each.name: each for each in found}
    if len(by_name) < len(found) or len({each.target for each in found}) < len(found):
        raise ManifestError(f"{manifest}: a name or a function is there twice")
    return by_name
