"""The checkout's own pytest: its own code, whether or not another copy is installed, and a fast half."""

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
# An installed copy has loaded nothing but its entry point yet, so everything else comes from here.
sys.modules["attention_conformance"].__path__[:] = [str(_API), str(_ROOT)]

# Tests use JAX in several processes, as workers do: on a GPU the first would take three quarters of the memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

pytest_plugins = ["attention_conformance.conformance.plugin", "attention_conformance.bench.plugin"]

#: The built-ins are judged here.  It has no mark, as it is the users' file too, in whose runs none is registered.
JUDGES = Path(__file__).parent / "conformance" / "test_conformance.py"

#: A file all of whose tests are slow.
SLOW = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that ``-m "not slow"`` takes nothing of: most of them import a framework."""
    plain = config.args_source is not pytest.Config.ArgsSource.ARGS
    if not plain or config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    return True if collection_path == JUDGES or SLOW.search(collection_path.read_text(encoding="utf-8")) else None
