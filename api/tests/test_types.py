"""Types: mypy, strict, of every module; as a test it runs beside the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(60)  # without its cache


def test_mypy_has_no_complaint() -> None:
    """With the settings of pyproject.toml."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
