"""FAILURES.md: its functions give the messages that it shows, and its numbers are those of the suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.tests.test_plugin import rounded, run

pytestmark = pytest.mark.slow(40)

PAGE = (Path(__file__).parents[1] / "FAILURES.md").read_text(encoding="utf-8")

#: Each function, the command that judges it, and its message, which follow each other on the page.
EXAMPLES = re.findall(
    r"```python\n# (?P<file>\w+\.py)\n(?P<source>.*?)```\n+```console\n\$ pytest conformance (?P<options>.*?)\n```\n+"
    r"```text\n(?P<shown>.*?)```",
    PAGE,
    re.DOTALL,
)


def test_there_are_six_in_three_frameworks() -> None:
    """The page has six functions, from NumPy, PyTorch and JAX."""
    imports = [re.findall(r"^import (\w+)", source, re.MULTILINE)[0] for _, source, _, _ in EXAMPLES]
    assert len(imports) == 6
    assert set(imports) == {"numpy", "torch", "jax"}


@pytest.mark.parametrize(("file", "source", "options", "shown"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_the_page_shows_what_happens(file: str, source: str, options: str, shown: str, tmp_path: Path) -> None:
    """Each function gives the message printed below it, except for the parts left out."""
    (tmp_path / file).write_text(source, encoding="utf-8")
    done = run(tmp_path, *options.split())
    assert done.returncode == 1
    printed = rounded(done.stdout)
    for part in shown.split("…\n"):
        assert rounded(part) in printed


def test_the_number_of_faults_is_right() -> None:
    """The page and the README state the current number of faults."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"holds {len(FAULTS)} faults," in PAGE
    assert f"{len(FAULTS)} [known faults]" in readme
