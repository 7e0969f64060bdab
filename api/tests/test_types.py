"""Types: strict mypy on every module, as a test among the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(60)  # without its cache


def test_mypy_has_no_complaint() -> None:
    """Mypy has no complaint with the settings of pyproject.toml."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
