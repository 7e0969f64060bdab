"""Sides of a paired comparison: revisions, environments, and what is neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.bench.paired.revisions import RevisionError, ready

pytestmark = pytest.mark.slow


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, with a neutral identity."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits of kernels/one.txt."""
    top = tmp_path / "kernels-repo"
    (top / "kernels").mkdir(parents=True)
    git(top, "init", "--quiet", "--initial-branch", "main")
    for text in ("first", "second"):
        (top / "kernels" / "one.txt").write_text(text)
        git(top, "add", ".")
        git(top, "commit", "--quiet", "-m", text)
    return top


def suite(repository: Path, *names: str) -> None:
    """Commit empty files that identify a checkout of this project."""
    for name in names:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "suite")


def test_a_revision_is_checked_out_beside_the_repository(repository: Path) -> None:
    """The side has that revision's files, in the folder that corresponds to the current one."""
    with ready("HEAD~1", repository / "kernels") as side:
        assert (side.folder / "one.txt").read_text() == "first"
        assert side.commit == git(repository, "rev-parse", "HEAD~1")
        assert side.python == sys.executable
    assert (repository / "kernels" / "one.txt").read_text() == "second"


def test_a_checkout_is_removed(repository: Path) -> None:
    """Neither the files nor git's record of them remain, also if the work failed."""
    with pytest.raises(KeyError), ready("main", repository) as side:
        raise KeyError
    assert not side.folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_the_working_tree_is_taken_as_it_is(repository: Path) -> None:
    """A full stop is the current folder with uncommitted changes."""
    (repository / "kernels" / "one.txt").write_text("third")
    with ready(".", repository) as side:
        assert side.folder == repository
        assert side.commit == ""


def test_somebody_s_repository_uses_the_installed_suite(repository: Path) -> None:
    """A repository without a suite of its own is timed by this one."""
    with ready("main", repository) as side:
        assert side.suite is None


def test_a_checkout_of_the_suite_uses_its_own(repository: Path) -> None:
    """A revision of this project runs the suite of that revision."""
    suite(repository, "conformance/SPEC.md", "api/__init__.py")
    with ready("main", repository) as side:
        assert side.suite == side.folder


def test_a_suite_from_before_its_one_package_is_refused_in_a_sentence(repository: Path) -> None:
    """A revision of this project without such a package is refused, and so is the working tree."""
    suite(repository, "conformance/SPEC.md", "impls/__init__.py")
    for text in ("main", "."):
        said = f"^{text}: its suite is older than the package attention_conformance, and cannot be compared$"
        with pytest.raises(RevisionError, match=said), ready(text, repository):
            pass


def test_an_environment_is_found_by_its_folder_or_interpreter(tmp_path: Path) -> None:
    """A virtual environment and its Python give the same side."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    for text in ("venv", "venv/bin/python"):
        with ready(text, tmp_path) as side:
            assert Path(side.python) == python
            assert side.folder == tmp_path


def test_a_revision_in_an_environment(repository: Path) -> None:
    """REVISION@PATH names both."""
    with ready(f"HEAD~1@{sys.executable}", repository) as side:
        assert (side.folder / "kernels" / "one.txt").read_text() == "first"
        assert side.python == sys.executable


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("nosuch", "nosuch: neither a revision of kernels-repo nor the path of an environment"),
        ("main@/no/such/env", "no Python at /no/such/env"),
        ("--upload-pack=x", "neither a revision"),
        ("HEAD~9", "neither a revision"),
    ],
)
def test_what_is_neither_is_refused(repository: Path, text: str, reason: str) -> None:
    """A misspelt revision, a missing environment and an option in disguise are refused in a sentence."""
    with pytest.raises(RevisionError, match=reason), ready(text, repository):
        pass


def test_a_folder_without_revisions_is_refused(tmp_path: Path) -> None:
    """Outside a repository there is no revision."""
    with pytest.raises(RevisionError, match="not in a git repository"), ready("main", tmp_path):
        pass


def test_a_folder_that_a_revision_lacks_is_refused(repository: Path) -> None:
    """A folder that is newer than the revision does not exist in it."""
    (repository / "new").mkdir()
    with pytest.raises(RevisionError, match="has no folder new"), ready("main", repository / "new"):
        pass
