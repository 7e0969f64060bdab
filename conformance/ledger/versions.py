"""Versions, version ranges (PEP 440) and the processor, which decide whether a record of the ledger is in force."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

#: Name of the processor among the versions of a run.
PROCESSOR = "processor"

#: The vector instructions that compilers generate different code for, widest first, with NumPy's name of each.
VECTORS = {"avx512": "AVX512F", "avx2": "AVX2", "neon": "NEON"}
PROCESSORS = (*VECTORS, "other")


@functools.cache
def processor() -> str:
    """The widest vector instructions that this machine's processor has: one of ``PROCESSORS``."""
    # What numpy.show_runtime prints; NumPy has no function that returns it.
    found = getattr(importlib.import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    return next((name for name, feature in VECTORS.items() if found.get(feature)), "other")


#: A number that no part of a version reaches.
BEYOND = 999_999


def counted_version(version: str) -> Version | None:
    """The version that an installed version counts as; None for a text that is no version.

    A local part such as +cpu does not count, and a pre-release or nightly build counts as the release that it leads
    to: what is known of 2.14 holds for 2.14.0.dev20261101+cu130.  A post-release stays one.
    """
    try:
        found = Version(version)
    except InvalidVersion:
        return None
    post = f".post{found.post}" if found.post is not None else ""
    return Version(f"{found.base_version}{post}")


def in_range(versions: str, version: str) -> bool:
    """Whether a range contains an installed version; an empty range contains every version."""
    found = counted_version(version)
    return found is not None and SpecifierSet(versions).contains(found, prereleases=True)


def common_version(*ranges: str) -> str | None:
    """A version that all ranges contain, None if there is none.

    The ends of the ranges cut the versions into intervals; one version of each interval, and each end, is tried.
    """
    sets = [SpecifierSet(each) for each in ranges]
    ends = [end for each in sets for one in each for end in _ends(one.version)]
    tried = sorted({Version("0"), Version(str(BEYOND)), *(v for end in ends for v in _around(end))})
    return next((str(v) for v in tried if all(each.contains(v, prereleases=True) for each in sets)), None)


def series(version: str) -> str:
    """The range of the releases that share the first two numbers of a version: 2.13.0+cpu is one of >=2.13,<2.14.

    Raises ValueError for a text that is no version.
    """
    found = counted_version(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version")
    epoch = f"{found.epoch}!" if found.epoch else ""
    first = found.release[:2]
    return f">={epoch}{_text(first)},<{epoch}{_text((*first[:-1], first[-1] + 1))}"


def _ends(text: str) -> Iterator[Version]:
    """The version of a specifier, and where its prefixes end: ``==2.13.*`` ends at 2.14, ``~=2.13`` at 3."""
    try:
        version = Version(text.removesuffix(".*"))
    except InvalidVersion:  # ===, which compares texts
        return
    yield version
    for length in range(1, len(version.release) + 1):
        *head, last = version.release[:length]
        yield Version(f"{version.epoch}!{_text((*head, last + 1))}")


def _around(end: Version) -> Iterator[Version]:
    """The version itself, one just behind it, and one just before it, as releases."""
    yield Version(str(counted_version(str(end))))
    yield Version(f"{end.epoch}!{_text((*end.release, 0, 0, 1))}")
    release = list(end.release)
    while release and release[-1] == 0:
        release.pop()
    if release:
        yield Version(f"{end.epoch}!{_text((*release[:-1], release[-1] - 1, BEYOND))}")


def _text(release: Iterable[int]) -> str:
    return ".".join(map(str, release))
