"""PLUGINS.md, Three libraries: the examples of packages that the project does not depend on work as written there."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from attention_conformance.impls.tests.pages import Example, examples, lines, run, steady

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "PLUGINS.md").read_text(encoding="utf-8")
EXAMPLES = [each for each in examples(PAGE) if each.title == "Three libraries"]
#: Packages and their versions, as the headings name them.
VERSIONS = re.findall(r"^### (\w+) ([\d.]+), with (\w+) ([\d.]+)$", PAGE, re.MULTILINE)


def test_there_are_three_with_their_versions() -> None:
    """Each library has a heading with versions, and an example."""
    assert len(EXAMPLES) == len(VERSIONS) == 3


@pytest.mark.parametrize(
    ("versions", "example"), list(zip(VERSIONS, EXAMPLES, strict=True)), ids=[each[0] for each in VERSIONS]
)
def test_a_library_does_what_the_page_says(
    versions: tuple[str, str, str, str], example: Example, tmp_path: Path
) -> None:
    """Passed and failed cases and their explanations are as printed, for the versions that they were measured with."""
    for package, measured in (versions[:2], versions[2:]):
        try:
            found = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
        if found != measured:
            pytest.skip(f"the page was measured with {package} {measured}, this is {found}")
    printed = run(example, tmp_path)
    assert steady(printed).endswith(steady(example.shown)), printed


@pytest.mark.parametrize("example", EXAMPLES, ids=[each[0] for each in VERSIONS])
def test_a_library_is_plugged_in_with_few_lines(example: Example) -> None:
    """An example has fewer than 15 lines, without blank lines and comments."""
    for text in example.files.values():
        assert len(lines(text)) < 15
