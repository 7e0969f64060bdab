"""Exported models on disk, so that a second run of the suite does not export them again.

A model depends on the packages that made it and on the sources that it was made from; both are part of its
key, so a stale one is never found.  The folder is ``attention-conformance/onnx`` under the user's cache
directory; the environment variable ATTENTION_CONFORMANCE_CACHE names another place, and "" turns it off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import tempfile
from pathlib import Path

#: Packages whose versions decide what an export contains.
_PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir")

#: The sources that decide it, under impls/: what is exported, and how.
_SOURCES = (
    "layers.py",
    "validate.py",
    "torch/eager.py",
    "torch/layer.py",
    "torch/modules.py",
    "torch/sdpa.py",
    "onnx/exported.py",
    "onnx/exporting.py",
)


def folder() -> Path | None:
    """Where models are kept, or None if they are not."""
    named = os.environ.get("ATTENTION_CONFORMANCE_CACHE")
    if named == "":
        return None
    base = named or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attention-conformance" / "onnx"


def key(*parts: object) -> str:
    """The name of a model that is made from these parts, each of which must have a faithful ``repr``."""
    return hashlib.sha256(repr((_surroundings(), parts)).encode()).hexdigest()[:32]


def load(name: str) -> bytes | None:
    """The model of this name, or None."""
    place = folder()
    if place is None:
        return None
    try:
        return (place / f"{name}.onnx").read_bytes()
    except OSError:
        return None


def store(name: str, model: bytes) -> None:
    """Keep a model, in one step so that no reader sees half of it.  A folder that cannot be written is no error."""
    place = folder()
    if place is None:
        return
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=place)
        with os.fdopen(descriptor, "wb") as file:
            file.write(model)
        os.replace(path, place / f"{name}.onnx")


@functools.cache
def _surroundings() -> str:
    """Digest of the packages' versions and of the sources."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{package}={importlib.metadata.version(package)};".encode())
    here = Path(__file__).resolve().parent.parent
    for pattern in _SOURCES:
        for path in sorted(here.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
