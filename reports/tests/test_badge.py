"""Badges: what they say, and that no name breaks them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from attention_conformance.conformance.judging.features import Claim
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports import badge
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests.files import conformance_file, failed, result

CORE = Claim("core", cases=2, kept=2, unsupported=0, failed=0)
LACKS = Claim("masks", cases=2, kept=1, unsupported=1, failed=0)


def made(folder: Path, *results: Result) -> dict[str, str]:
    """The badges of some results."""
    return badge.badges(Model(read([conformance_file(folder / "c.jsonl", *results)]), clauses()))


def test_a_failure_is_all_that_a_badge_says() -> None:
    """A failed case is named first, in red, whatever else is kept."""
    assert badge.badge_text([CORE], failed=3, deviating=1) == ("3 failed", badge.RED)


def test_only_whole_features_are_named() -> None:
    """A partly unsupported feature is not conformant, and deviations are reported."""
    assert badge.badge_text([CORE, LACKS], 0, 0) == ("conformant: core", badge.GREEN)
    assert badge.badge_text([CORE, LACKS], 0, 2) == ("conformant: core · 2 deviate", badge.AMBER)
    assert badge.badge_text([LACKS], 0, 0) == ("conformant to no whole feature", badge.GREY)


def test_a_part_of_the_cases_earns_nothing(tmp_path: Path) -> None:
    """One passed case is not conformance to its feature."""
    (text,) = made(tmp_path, result("x", "plain")).values()
    assert "conformant to no whole feature" in text


def test_names_are_files_and_devices_apart(tmp_path: Path) -> None:
    """No name leads out of the folder, and two names that become equal are distinguished."""
    names = list(
        made(tmp_path, result("../x", "c"), failed("x", "c"), result("y", "c"), failed("y", "c", device="gpu"))
    )
    assert names == ["x", "x-2", "y-cpu", "y-gpu"]


def test_hostile_text_is_escaped() -> None:
    """A badge is well-formed XML with the text as text."""
    root = ElementTree.fromstring(badge.svg("<script>&\"'", badge.GREEN))  # noqa: S314
    assert "attention: <script>&\"'" in "".join(root.itertext())
    assert not [one for one in root.iter() if one.tag.endswith("script")]


def test_a_deviation_is_not_green(tmp_path: Path) -> None:
    """A recorded deviation fails no run, but is not conformance."""
    (text,) = made(tmp_path, result("x", "plain", Outcome.KNOWN_DEVIATION)).values()
    assert badge.AMBER in text
