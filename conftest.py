"""Pytest in the checkout: it runs the checkout's own code, whatever copy is installed, and it has a fast half."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent
_API = _ROOT / "api"

if "attention_conformance" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "attention_conformance", _API / "__init__.py", submodule_search_locations=[str(_API)]
    )
    sys.modules["attention_conformance"] = _package = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_package)
# An installed copy has loaded only its entry point so far, so everything else is imported from here.
sys.modules["attention_conformance"].__path__[:] = [str(_API), str(_ROOT)]

# Tests use JAX in several processes, as workers do: on a GPU the first would take three quarters of the memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

pytest_plugins = ["attention_conformance.conformance.plugin", "attention_conformance.bench.plugin"]

#: The file that judges the built-ins.  It has no mark: users run it too, and their runs register none.
JUDGES = Path(__file__).parent / "conformance" / "test_conformance.py"

#: Matches a file in which every test is slow.
SLOW = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files in which ``-m "not slow"`` selects no test: most of them import a framework."""
    plain = config.args_source is not pytest.Config.ArgsSource.ARGS
    if not plain or config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    return True if collection_path == JUDGES or SLOW.search(collection_path.read_text(encoding="utf-8")) else None
