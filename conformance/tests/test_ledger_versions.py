"""Version ranges: what an installed version counts as, and whether two ranges meet."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.ledger.versions import common_version, counted_version, in_range, series


@pytest.mark.parametrize(
    ("installed", "counts_as"),
    [
        ("2.13.0+cpu", "2.13.0"),
        ("2.13.0rc1", "2.13.0"),
        ("2.14.0.dev20261101+cu130", "2.14.0"),
        ("2.13.0.post1", "2.13.0.post1"),
        ("1!2.0", "1!2.0"),
        ("unknown", None),
    ],
)
def test_what_an_installed_version_counts_as(installed: str, counts_as: str | None) -> None:
    """Builds and pre-releases count as the release; a text that is not a version counts as nothing."""
    found = counted_version(installed)
    assert (None if found is None else str(found)) == counts_as


def test_an_empty_range_names_every_version_and_no_other_text() -> None:
    """An empty range contains every version, and no other text."""
    assert in_range("", "0.1")
    assert not in_range("", "unknown")


@pytest.mark.parametrize(
    "ranges",
    [
        (">=2.13,<2.14", ">=2.13.5"),
        (">=2.13,<2.14", "==2.13.*"),
        (">2.13", "<2.14"),
        (">=2.13", "!=2.13"),
        (">=2.12", "!=2.13.*"),
        ("~=2.13", "==2.99"),
        ("<2.14", "<1"),
        ("", "==3"),
        ("", ""),
        ("<=2.13", ">=2.13"),
    ],
)
def test_ranges_that_meet(ranges: tuple[str, str]) -> None:
    """A version in both ranges is found, in either order."""
    for pair in (ranges, ranges[::-1]):
        version = common_version(*pair)
        assert version is not None
        assert all(in_range(each, version) for each in pair)


@pytest.mark.parametrize(
    "ranges",
    [
        (">=2.13,<2.14", ">=2.14"),
        (">=2.13,<2.14", "<2.13"),
        (">2.13", "<=2.13"),
        ("==2.13.*", "!=2.13.*"),
        ("~=2.13", ">=3"),
        ("~=2.13.0", ">=2.14"),
        ("==2.13", "==2.13.1"),
        ("<0", ""),
    ],
)
def test_ranges_that_do_not_meet(ranges: tuple[str, str]) -> None:
    """No version is found if none is in both ranges."""
    assert common_version(*ranges) is None
    assert common_version(*ranges[::-1]) is None


@pytest.mark.parametrize(
    ("version", "named"),
    [("2.13.0+cpu", ">=2.13,<2.14"), ("0.10.2", ">=0.10,<0.11"), ("7", ">=7,<8"), ("1!2.3", ">=1!2.3,<1!2.4")],
)
def test_the_series_of_a_version(version: str, named: str) -> None:
    """A series has the releases with the same first two numbers, the version included and the next series not."""
    assert series(version) == named
    assert in_range(named, version)
    assert not in_range(named, "99")


def test_a_text_has_no_series() -> None:
    """A text that is not a version is refused."""
    with pytest.raises(ValueError, match="'unknown' is not a version"):
        series("unknown")
