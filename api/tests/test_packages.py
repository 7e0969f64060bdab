"""What the wheel is made of, and what mypy reads: every package of the rooms is listed, and no test."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "attention_conformance"
ROOMS = ("impls", "conformance", "bench", "reports")
LINKS = ROOT / ".mypy" / PACKAGE


def packages() -> set[str]:
    """Every package of the rooms but those of tests, and the one at the top."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    folders = [path.parent.relative_to(ROOT).parts for path in files]
    return {PACKAGE} | {".".join((PACKAGE, *parts)) for parts in folders if "tests" not in parts}


def test_every_package_is_listed() -> None:
    """A package that is not would be missing from the wheel, though not from a checkout."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["setuptools"]
    assert set(settings["packages"]) == packages()
    assert settings["package-dir"] == {PACKAGE: "api"} | {f"{PACKAGE}.{room}": room for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_modules_is_a_package(room: str) -> None:
    """Without an ``__init__.py`` it would be found in a checkout and left out of the wheel."""
    folders = {path.parent for path in (ROOT / room).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_mypy_finds_everything() -> None:
    """Mypy knows no package of several folders, so links put them into one."""
    wanted = {path.name for path in (ROOT / "api").iterdir() if path.name != "__pycache__"} | set(ROOMS)
    assert {path.name for path in LINKS.iterdir()} == wanted
    for link in LINKS.iterdir():
        assert link.resolve() == ROOT / (link.name if link.name in ROOMS else f"api/{link.name}")
