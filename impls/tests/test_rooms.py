"""Imports go one way, and a framework is imported only where its arrays are handled."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: The beginning of every module name of the project.
PACKAGE = "attention_conformance."

#: The rooms that the modules of a room may import.
MAY_USE = {
    "impls": {"impls"},
    "conformance": {"conformance", "impls"},
    "bench": {"bench", "conformance", "impls"},
    "reports": {"reports", "bench", "conformance", "impls"},
    "studies": {"studies", "reports", "bench", "conformance", "impls"},
}
STUDIES = {"studies/by_hand.py", "studies/library_functions.py", "studies/memory.py", "studies/ranks.py"}
#: Where each framework may be imported.
FRAMEWORKS = {
    "torch": {"impls/torch", "impls/onnx", "impls/kernels", "impls/gallery", "studies/device_clock.py"} | STUDIES,
    "jax": {"impls/jax", "impls/kernels", "impls/gallery"} | STUDIES,
    "onnx": {"impls/onnx", "impls/gallery", "studies/by_hand.py"},
    "onnxruntime": {"impls/onnx", "studies/by_hand.py"},
}
MODULES = [
    path
    for room in MAY_USE
    for path in sorted((ROOT / room).rglob("*.py"))
    if "tests" not in path.relative_to(ROOT).parts
]


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """The modules that a module imports, anywhere in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # A module of a package, or a name of a module.
            inside = ROOT.joinpath(*node.module.split(".")[1:])
            is_package = node.module.startswith(PACKAGE) and inside.is_dir()
            yield from (f"{node.module}.{alias.name}" for alias in node.names) if is_package else (node.module,)


def test_a_room_uses_only_the_rooms_below_it() -> None:
    """Reports use bench, bench uses conformance, conformance uses impls, and impls uses no other room."""
    for path in MODULES:
        room = path.relative_to(ROOT).parts[0]
        used = {name.split(".")[1] for name in imported(path) if name.startswith(PACKAGE)} & set(MAY_USE)
        assert used <= MAY_USE[room], path


def test_frameworks_stay_in_their_folders() -> None:
    """The suite runs with any subset of the frameworks installed."""
    for path in MODULES:
        folder = "/".join(path.relative_to(ROOT).parts[:2])
        for name in imported(path):
            allowed = FRAMEWORKS.get(name.split(".")[0])
            assert allowed is None or folder in allowed, f"{name} in {path}"


def test_the_tables_import_no_framework() -> None:
    """The names of all built-ins are known without importing their packages."""
    for folder in ("numpy", "torch", "jax", "onnx"):
        names = {name.split(".")[0] for name in imported(ROOT / "impls" / folder / "__init__.py")}
        assert not names & set(FRAMEWORKS)


def test_reports_never_run_an_implementation() -> None:
    """Reports are made only from files: they use impls' words and manifest, and bench's records, clocks, sums …"""
    for path in MODULES:
        if path.relative_to(ROOT).parts[0] == "reports":
            used = {name for name in imported(path) if name.startswith((PACKAGE + "impls", PACKAGE + "bench"))}
            manifest = {name for name in used if name.startswith(f"{PACKAGE}impls.gallery.")}
            assert {name.rpartition(".")[2] for name in manifest} <= {"MANIFEST", "Cause", "Entry", "Finding", "Says"}
            assert used - manifest <= {
                "attention_conformance.impls.cache",
                "attention_conformance.impls.checkout",
                "attention_conformance.impls.compressed",
                "attention_conformance.impls.contract",
                "attention_conformance.impls.process.allocator",
                "attention_conformance.impls.strict",
                "attention_conformance.bench.analysis.statistics",
                "attention_conformance.bench.analysis.fits",
                "attention_conformance.bench.clocks",
                "attention_conformance.bench.records",
                "attention_conformance.bench.workloads.titles",
            }


def test_a_module_says_what_it_is() -> None:
    """Every module has a docstring."""
    assert [path for path in MODULES if not ast.get_docstring(parsed(path))] == []
