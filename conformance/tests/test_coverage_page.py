"""COVERAGE.md: that of today, with every path and what is not reached."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.cases.kernel_paths import kernel_paths
from attention_conformance.conformance.faults.paths import coverage


@pytest.mark.documents
def test_the_page_is_todays() -> None:
    """`attention-conformance pages` gives what is tracked."""
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.text()


def test_every_path_is_on_the_page() -> None:
    """With its source, and cases that take it."""
    lines = {line.split("]")[0][3:]: line for line in coverage.text().splitlines() if line.startswith("| [")}
    assert lines.keys() == kernel_paths().keys()
    for path in kernel_paths().values():
        assert path.link in lines[path.id]
        assert int(lines[path.id].split("|")[5]) >= 2
