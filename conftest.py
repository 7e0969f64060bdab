"""The checkout's own pytest: the suite's plugin without an installation, and a fast half that imports no framework."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["attention_conformance.conformance.plugin"]

#: The built-ins are judged here.  It has no mark, as it is the users' file too, in whose runs none is registered.
JUDGES = Path(__file__).parent / "conformance" / "test_conformance.py"

#: A file all of whose tests are slow.
SLOW = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m "not slow"`` files that have nothing else are not even imported: most of them import a framework."""
    plain = config.args_source is not pytest.Config.ArgsSource.ARGS
    if not plain or config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    return True if collection_path == JUDGES or SLOW.search(collection_path.read_text(encoding="utf-8")) else None
