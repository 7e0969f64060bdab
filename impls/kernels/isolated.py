"""Isolated kernel files: single files of an installed distribution, imported without the package that they are in.

A server's kernel file imports its platform layer, its configuration and its logger, and these import most of the
server.  Here the packages above a file are empty modules whose ``__init__`` is not run; files that it needs are loaded
one by one, and other modules that it imports from are stand-ins with the attributes that an adapter gives.  Any other
module is not found, so that nothing of the package is imported that an adapter does not name.

A file is taken only from the version of a distribution that its adapter was tried with, and only while it is the file
that the distribution installed: its hash is compared with the one in the distribution's record.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from attention_conformance.impls.contract import ImplementationError

#: The attribute of a module that was made here: its distribution and version.
MARK = "__isolated__"


def require(distribution: str, version: str) -> metadata.Distribution:
    """The installed distribution, if it is of this version.

    Parameters
    ----------
    distribution
        Name of the distribution on the registry.
    version
        Version that its adapter was tried with.

    Returns
    -------
    metadata.Distribution
        The distribution.

    Raises
    ------
    ImplementationError
        If it is not installed, or in another version; one sentence.
    """
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise ImplementationError(
            f"{distribution} is not installed: pip install --no-deps {distribution}=={version}"
        ) from None
    if found.version.partition("+")[0] != version:
        raise ImplementationError(
            f"{distribution} {found.version} is installed, and its adapter is of {version}, which it was tried with"
        )
    return found


def file_of(distribution: metadata.Distribution, path: str) -> Path:
    """A file of a distribution, as that distribution installed it.

    Parameters
    ----------
    distribution
        Distribution that ``require`` gave.
    path
        Below site-packages, with slashes.

    Returns
    -------
    Path
        Path of the file.

    Raises
    ------
    ImplementationError
        If the distribution has no such file, or the file has other bytes than it installed; one sentence.
    """
    name = f"{distribution.metadata['Name']} {distribution.version}"
    entry = next((each for each in distribution.files or () if str(each) == path), None)
    if entry is None or entry.hash is None:
        raise ImplementationError(f"{name} has no file {path} in its record")
    found = Path(str(distribution.locate_file(entry)))
    if not found.is_file():
        raise ImplementationError(f"{path} of {name} is not at {found}")
    digest = hashlib.new(entry.hash.mode, found.read_bytes()).digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != entry.hash.value:
        raise ImplementationError(f"{found} is not the file that {name} installs: another package has written over it")
    return found


def module(
    distribution: str, version: str, *names: str, stand_ins: Mapping[str, Mapping[str, Any]] | None = None
) -> ModuleType:
    """The last of some modules of a distribution, each loaded only from its file.

    Parameters
    ----------
    distribution
        Name of the distribution on the registry.
    version
        Version that is taken.
    *names
        Modules in the order in which they need each other, dotted; a file, or a package's ``__init__`` where there is
        no file of that name.
    stand_ins
        The attributes of modules that are not loaded, by name.

    Returns
    -------
    ModuleType
        The last module.  All stay in ``sys.modules``, where the files' own imports find them.

    Raises
    ------
    ImplementationError
        As ``require`` and ``file_of`` do; or if the package was imported in another way before.
    """
    found, mark = require(distribution, version), (distribution, version)
    for name, attributes in (stand_ins or {}).items():
        made = _empty(name, mark)
        vars(made).update(attributes)
    for name in names:
        if getattr(sys.modules.get(name), "__file__", None) is None:
            _load(found, name, mark)
    return sys.modules[names[-1]]


def _load(distribution: metadata.Distribution, name: str, mark: tuple[str, str]) -> None:
    stem = name.replace(".", "/")
    listed = {str(each) for each in distribution.files or ()}
    path = file_of(distribution, f"{stem}/__init__.py" if f"{stem}/__init__.py" in listed else f"{stem}.py")
    parent = _empty(name.rpartition(".")[0], mark)
    within: list[str] | None = [] if path.name == "__init__.py" else None  # a package finds nothing by itself either
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=within)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    setattr(made, MARK, mark)
    sys.modules[name] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    setattr(parent, name.rpartition(".")[2], made)


def _empty(name: str, mark: tuple[str, str]) -> ModuleType:
    """An empty package, in ``sys.modules`` with the packages above it; the same one in later calls."""
    there = sys.modules.get(name)
    if there is not None:
        if getattr(there, MARK, None) != mark:
            raise ImplementationError(f"{name} was imported before, and not from single files of {' '.join(mark)}")
        return there
    made = ModuleType(name)
    made.__path__ = []
    setattr(made, MARK, mark)
    above, _, last = name.rpartition(".")
    sys.modules[name] = made
    if above:
        setattr(_empty(above, mark), last, made)
    return made
