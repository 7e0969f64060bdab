"""Fixtures of the tests of test vectors: the vectors of two cases with their right results, made once a module."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of two cases, and right results of them."""
    from attention_conformance.conformance.tests.vectors import two  # pytest loads this file in every run

    return two(tmp_path_factory.mktemp("made"))


@pytest.fixture
def vectors(made: Path, tmp_path: Path) -> Path:
    """The vectors, to be harmed; the results lie beside them."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "vectors"
