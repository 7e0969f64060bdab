"""Fixtures of several files: test vectors with right results, made once a module, and a pool with no names prepared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of two cases, and right results for them."""
    from attention_conformance.conformance.tests.vectors import two  # pytest loads this file in every run

    return two(tmp_path_factory.mktemp("made"))


@pytest.fixture
def vectors(made: Path, tmp_path: Path) -> Path:
    """The vectors, for a test to damage; the results lie next to them."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "vectors"


@pytest.fixture
def unprepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A pool that runs implementations in this process, with none of their names prepared yet."""
    from attention_conformance.impls import calls
    from attention_conformance.impls.process.pool import Pool

    monkeypatch.setattr(calls, "_PREPARED", {})
    pool = Pool(in_process=True)
    yield pool
    pool.close()
