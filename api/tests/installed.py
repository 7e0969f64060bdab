"""A wheel of this project, and a new environment that has it, for tests of what a user installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The parts of a checkout that the wheel is built from.
SOURCES = ("api", "impls", "conformance", "bench", "reports", "pyproject.toml", "README.md", "LICENSE")

#: Beginnings of this project's names among an environment's packages, editable installs included.
OURS = ("attention_conformance", "__editable__")


def wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the checkout; nothing is downloaded."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else _copied(source, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def _copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def environment(folder: Path) -> Path:
    """A new environment with everything in this one except the project; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(OURS) and entry.name not in ("_distutils_hack", "distutils-precedence.pth"):
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    """Run pip for another environment, without the network."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without this process's variables for pytest, Python and coverage."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "COVERAGE"))}
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
