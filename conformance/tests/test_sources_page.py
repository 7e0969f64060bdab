"""SOURCES.md: every example, typed in unchanged, gives the numbers printed below it, in every framework."""

from __future__ import annotations

import contextlib
import io
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[1] / "SOURCES.md").read_text(encoding="utf-8")

#: The first block of the page, and the examples with their outputs.
SETUP, *CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(r"```python\n([^`]*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)


def printed(code: str) -> dict[str, list[str]]:
    """The output of an example, by implementation, without its name."""
    names: dict[str, Any] = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(SETUP + code, names)  # noqa: S102  (the page is what is tested)
    lines = defaultdict(list)
    for line in out.getvalue().splitlines():
        name, _, rest = line.partition(" ")
        lines[name].append(rest)
    return lines


def test_every_example_shows_what_it_prints() -> None:
    """Each block of code but the first is followed by its output, and each article has an example."""
    assert len(EXAMPLES) == len(CODE) == 6
    assert re.findall(r"^## Source (\d+)", PAGE, re.MULTILINE) == ["000", "001", "002", "003", "004"]


@pytest.mark.slow(8)
@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=["000", "001", "001-sublayer", "002", "003", "004"])
def test_every_framework_gives_the_numbers(code: str, shown: str) -> None:
    """NumPy, PyTorch, JAX and the exported model print the lines that the page shows once."""
    wanted = [line.partition(" ")[2] for line in shown.splitlines()]
    lines = printed(code)
    assert len(lines) == 4
    for name, found in lines.items():
        assert found == wanted, name
