"""Packages: all but tests are in the wheel, mypy finds them, and no two sub-rooms import each other."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "attention_conformance"
ROOMS = ("impls", "conformance", "bench", "reports")
LINKS = ROOT / ".mypy" / PACKAGE


def packages() -> set[str]:
    """Every package of the rooms except those of tests, and the top one."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    folders = [path.parent.relative_to(ROOT).parts for path in files]
    return {PACKAGE} | {".".join((PACKAGE, *parts)) for parts in folders if "tests" not in parts}


def test_every_package_is_listed() -> None:
    """Every package is listed: an unlisted one would be missing from the wheel, though not from a checkout."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["setuptools"]
    assert set(settings["packages"]) == packages()
    assert settings["package-dir"] == {PACKAGE: "api"} | {f"{PACKAGE}.{room}": room for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_modules_is_a_package(room: str) -> None:
    """Every folder with modules has an ``__init__.py``, without which the wheel, unlike a checkout, would lack it."""
    folders = {path.parent for path in (ROOT / room).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_mypy_finds_everything() -> None:
    """Mypy does not support a package of several folders, so links put all of them into one."""
    wanted = {path.name for path in (ROOT / "api").iterdir() if path.name != "__pycache__"} | set(ROOMS)
    assert {path.name for path in LINKS.iterdir()} == wanted
    for link in LINKS.iterdir():
        assert link.resolve() == ROOT / (link.name if link.name in ROOMS else f"api/{link.name}")


def imported(source: str) -> set[str]:
    """The modules of the suite that a source imports when it runs, also inside functions: dotted, from the room on."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            module = str(node.module).removeprefix(f"{PACKAGE}.")
            found |= {f"{module}.{name.name}" for name in node.names}
    return found


def circles(sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """The pairs of sub-rooms of a room that import each other, from the source of each module by its dotted name."""
    rooms = {name.rpartition(".")[0] for name in sources}
    folders = {".".join(room.split(".")[:2]) for room in rooms if "." in room}

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:2])

    edges = {
        (folder(name), folder(target))
        for name, source in sources.items()
        for target in imported(source)
        if name.split(".")[0] == target.split(".")[0] and folder(name) != folder(target)
    }
    return {(a, b) for a, b in edges if a < b and (b, a) in edges and {a, b} <= folders}


@pytest.mark.slow(1)
def test_no_two_sub_rooms_import_each_other() -> None:
    """No two sub-rooms import each other: shared code is in a third, or in the room itself."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "tests" not in path.parts]
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    assert circles({name: path.read_text(encoding="utf-8") for name, path in named.items()}) == set()


def test_sub_rooms_that_import_each_other_are_found() -> None:
    """Sub-rooms that import each other are found, even if an import is inside a function."""
    sources = {
        "room.a.one": f"from {PACKAGE}.room.b import two",
        "room.b.two": f"def late():\n    from {PACKAGE}.room.a.one import name",
        "room.c.three": f"from {PACKAGE}.room.a import one",
        "room.d": f"from {PACKAGE}.room.c import three",
        "room.e.five": f"if TYPE_CHECKING:\n    from {PACKAGE}.room.f.six import name",
        "room.f.six": f"from {PACKAGE}.room.e import five",
    }
    assert circles(sources) == {("room.a", "room.b")}
