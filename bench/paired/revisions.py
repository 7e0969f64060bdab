"""Revisions of a paired comparison: a git revision, an environment, or both, made ready to run and cleaned up after.

``main``, ``HEAD~3`` or ``v1.2`` is a revision of the current folder's repository, checked out in a temporary folder;
``.`` is the working tree, unchanged.  ``/path/to/venv`` or ``/path/to/bin/python`` is an environment.
``REVISION@ENVIRONMENT`` is both.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.impls.contract import InputError

#: The working tree, unchanged.
HERE = "."

#: A file that distinguishes a checkout of this project, whose own code is run, from the repository of a user's kernel.
OURS = Path("conformance", "SPEC.md")

#: A file of its package, which revisions older than the one package lack.
PACKAGE = Path("api", "__init__.py")

#: Where a virtual environment keeps its interpreter.
INTERPRETER = Path("bin", "python")


class RevisionError(InputError, ValueError):
    """A revision or environment that cannot be made ready; the text is one sentence."""


@dataclass(frozen=True)
class Revision:
    """A revision that is ready: the user's name for it, its Python, its folder, and the suite that it runs."""

    name: str
    python: str
    #: The folder that corresponds to the current one, where ``--impl file.py:function`` is looked for.
    folder: Path
    #: The checkout of the suite to run; None for the suite that is running now.
    suite: Path | None
    #: The commit, or "" for the working tree.
    commit: str = ""


@contextlib.contextmanager
def ready(text: str, folder: Path | None = None) -> Iterator[Revision]:
    """Make a revision ready, in a temporary checkout if it names a revision, and remove that afterwards.

    Raises RevisionError for a text that is neither a revision nor an environment, and for one that cannot be compared.
    """
    folder = (folder or Path.cwd()).resolve()
    revision, environment = _parts(text, folder)
    python = str(_interpreter(environment, folder)) if environment else sys.executable
    if revision in ("", HERE):
        yield Revision(text, python, folder, _suite(text, _top(folder) or folder))
        return
    top = _top(folder)
    if top is None:
        raise RevisionError(f"{text}: {folder} is not in a git repository, so there are no revisions")
    commit = _commit(revision, top)
    with tempfile.TemporaryDirectory(prefix="paired-") as temporary:
        checkout = Path(temporary, "checkout")
        _git(top, "worktree", "add", "--quiet", "--detach", str(checkout), commit)
        try:
            inside = checkout / folder.relative_to(top)
            if not inside.is_dir():
                raise RevisionError(f"{text}: that revision has no folder {folder.relative_to(top)}")
            yield Revision(text, python, inside, _suite(text, checkout), commit)
        finally:
            with contextlib.suppress(RevisionError):
                _git(top, "worktree", "remove", "--force", str(checkout))


def _parts(text: str, folder: Path) -> tuple[str, str]:
    """Revision and environment; git itself allows ``@`` in a revision, so only a path after it is an environment."""
    if not text:
        raise RevisionError("expected a git revision, an environment's path, or REVISION@PATH; got an empty text")
    if _is_environment(text, folder):
        return "", text
    revision, _, environment = text.rpartition("@")
    if revision and _is_environment(environment, folder):
        return revision, environment
    if revision and "/" in environment:
        raise RevisionError(f"{text}: no Python at {environment}, nor in its {INTERPRETER}")
    return text, ""


def _is_environment(text: str, folder: Path) -> bool:
    path = folder / Path(text).expanduser()
    return text != HERE and ((path / INTERPRETER).is_file() or (path.is_file() and "python" in path.name))


def _interpreter(text: str, folder: Path) -> Path:
    path = folder / Path(text).expanduser()
    return path / INTERPRETER if path.is_dir() else path


def _suite(text: str, checkout: Path) -> Path | None:
    """The suite to run: a checkout of this project has its own; for other repositories None, the suite running now.

    Raises RevisionError for a suite that is older than its one package.
    """
    if not (checkout / OURS).is_file():
        return None
    if not (checkout / PACKAGE).is_file():
        raise RevisionError(
            f"{text}: its suite is older than the package attention_conformance, and cannot be compared"
        )
    return checkout


def _top(folder: Path) -> Path | None:
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except RevisionError:
        return None


def _commit(revision: str, top: Path) -> str:
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except RevisionError:
        raise RevisionError(f"{revision}: neither a revision of {top.name} nor the path of an environment") from None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  (git, with arguments that are no shell's)
            ["git", *arguments],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise RevisionError("git is not installed, so there are no revisions") from None
    if done.returncode:
        raise RevisionError(f"git {arguments[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.strip()
