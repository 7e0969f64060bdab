"""A user's repository: its own bench, conformance, reports and impls, and a conftest with our options."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_conformance.cli import UNUSABLE
from attention_conformance.tests import installed

pytestmark = pytest.mark.slow(50)

CONFTEST = """
def pytest_addoption(parser):
    for name in ("device", "dtype", "case", "impl", "shard", "require", "scripts", "parallel"):
        parser.addoption(f"--{name}", default="theirs")
"""

#: A file of theirs that raises, as in a repository that needs a compiler or a GPU to be imported.
RAISES = "raise RuntimeError('theirs')\n"

#: Their packages: with and without ``__init__.py``, one of each that is imported cleanly and one that raises.
PACKAGES = {
    "bench/__init__.py": "",
    "bench/kernels.py": "",
    "conformance/kernels.py": "",
    "reports/__init__.py": RAISES,
    "reports/kernels.py": "",
    "impls/kernels.py": RAISES,
}

#: Their own tests: their packages are theirs, and so are the options.
TEST = """
import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["bench", "conformance", "impls"])
def test_packages(name):
    assert Path(list(importlib.import_module(name).__path__)[0]) == HERE / name


@pytest.mark.parametrize("name", ["bench.kernels", "conformance.kernels"])
def test_modules(name):
    assert Path(importlib.import_module(name).__file__).parent == HERE / name.split(".")[0]


@pytest.mark.parametrize("name", ["reports", "reports.kernels", "impls.kernels"])
def test_what_raises(name):
    with pytest.raises(RuntimeError, match="theirs"):
        importlib.import_module(name)


def test_options(request):
    assert request.config.getoption("device") == "theirs"
    assert request.config.getoption("--scripts") == "theirs"
"""

#: Their tests in a process that prints what it imported.
MODULES = """
import sys, pytest
status = pytest.main(["-q"])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""

KERNELS = """
import numpy as np


def attention(q, k, v, *, is_causal=False, scale=None):
    k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    s = np.matmul(q, k.swapaxes(-1, -2), dtype=np.float32) * np.float32(q.shape[-1]**-0.5 if scale is None else scale)
    if is_causal:
        rows, keys = s.shape[-2:]
        s = np.where(np.arange(keys) <= np.arange(rows)[:, None] + AHEAD, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return (p @ v.astype(np.float32) / p.sum(-1, keepdims=True)).astype(q.dtype)


attention.dtypes = ("float32",)
"""

#: A workload that takes milliseconds.
SMALL = ("--workload", "prefill-b1h1d8s16")


class Repository:
    """A user's repository, with the commands that are run in it."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python = folder, python

    def write(self, name: str, text: str) -> None:
        """Write a file of the repository."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command ``attention-conformance`` in it."""
        return installed.run(self.folder, str(self.python.with_name("attention-conformance")), *arguments)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A repository of two commits, and an environment with our wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    python = installed.environment(folder / "environment")
    built = installed.wheel(folder)
    installed.install(python, "install", "--quiet", "--no-deps", "--no-index", str(built))
    repository = Repository(tmp_path_factory.mktemp("theirs"), python)
    repository.write("conftest.py", CONFTEST)
    repository.write("tests/test_theirs.py", TEST)
    for name, text in PACKAGES.items():
        repository.write(name, text)
    repository.write("kernels.py", KERNELS.replace("AHEAD", "1"))
    (repository.folder / "out").mkdir()
    _git(repository.folder, "init", "--quiet")
    _commit(repository.folder, "wrong")
    repository.write("wrong.py", KERNELS.replace("AHEAD", "1"))
    repository.write("kernels.py", KERNELS.replace("AHEAD", "0"))
    _commit(repository.folder, "right")
    return repository


def _git(folder: Path, *arguments: str) -> None:
    person = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path, message: str) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "--quiet", "-m", message)


def test_their_own_tests_pass(theirs: Repository) -> None:
    """Their tests pass: our plugin adds no option and hides none of their packages."""
    done = installed.run(theirs.folder, str(theirs.python), "-m", "pytest", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


def test_their_own_tests_import_nothing_of_ours_but_the_entry(theirs: Repository) -> None:
    """Their tests take no longer: neither NumPy nor a room of the suite is imported."""
    done = installed.run(theirs.folder, str(theirs.python), "-c", MODULES)
    assert done.returncode == 0, done.stdout + done.stderr
    modules = done.stderr.split()
    assert {name for name in modules if name.startswith("attention_conformance")} == {
        "attention_conformance",
        "attention_conformance.pytest_entry",
    }
    assert "numpy" not in modules


def test_check_judges_their_function(theirs: Repository) -> None:
    """Their right function passes, and the wrong one fails with its clause."""
    right = theirs.run(
        "check", "kernels.py:attention", "--case", "causal-*-queries", "--conformance-json", "right.jsonl"
    )
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = theirs.run(
        "check", "wrong.py:attention", "--case", "causal-square", "--conformance-json", "out/wrong.jsonl"
    )
    assert wrong.returncode == 1
    assert "SDPA-9" in wrong.stdout
    assert "one key ahead" in wrong.stdout


def test_the_module_is_the_command(theirs: Repository) -> None:
    """``python -m attention_conformance`` prints what ``attention-conformance`` prints."""
    done = installed.run(theirs.folder, str(theirs.python), "-m", "attention_conformance", "cases")
    assert done.returncode == 0
    assert done.stdout == theirs.run("cases").stdout
    assert "causal-more-keys" in done.stdout


def test_pytest_with_their_folders_runs_theirs(theirs: Repository) -> None:
    """``pytest conformance`` runs their folder if they have one."""
    done = installed.run(theirs.folder, str(theirs.python), "-m", "pytest", "-q", "conformance")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_pytest_elsewhere_runs_the_suite(theirs: Repository, tmp_path: Path) -> None:
    """Without such a folder ``pytest conformance`` is ours, with its options."""
    options = ["--impl", f"{theirs.folder / 'kernels.py'}:attention", "--case", "plain"]
    done = installed.run(tmp_path, str(theirs.python), "-m", "pytest", "-q", "conformance", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_bench_report_and_compare(theirs: Repository) -> None:
    """Their function can be timed and reported, and two runs compared."""
    given = ["kernels.py:attention", *SMALL, "--bench-seconds", "0.1", "--threads", "1", "--no-memory"]
    timed = theirs.run("bench", *given, "--benchmark-json", "out/bench.json")
    assert timed.returncode == 0, timed.stdout + timed.stderr
    theirs.run("check", "kernels.py:attention", "--case", "plain", "--conformance-json", "out/plain.jsonl")
    report = theirs.run("report", "out/plain.jsonl", "out/bench.json", "-o", "out/report")
    assert report.returncode == 0, report.stderr
    assert "prefill-b1h1d8s16" in (theirs.folder / "out/report/report.md").read_text(encoding="utf-8")
    compared = theirs.run("compare", "out/plain.jsonl", "out/plain.jsonl")
    assert compared.returncode == 0, compared.stdout + compared.stderr


def test_compare_revisions_runs_their_code_at_two_commits(theirs: Repository) -> None:
    """A revision is compared with the working tree, in workers from our wheel."""
    given = ["--base", "HEAD", "--impl", "kernels.py:attention", *SMALL, "--pairs", "1", "--most-pairs", "1"]
    done = theirs.run("compare-revisions", *given, "--limit", "5", "--json", "out/paired.json")
    assert not done.stderr, done.stderr
    assert (theirs.folder / "out/paired.json").is_file()
    assert "prefill-b1h1d8s16" in done.stdout, done.stdout + done.stderr


def test_script_is_of_their_failure(theirs: Repository) -> None:
    """The script runs without the suite and shows the failure."""
    done = theirs.run("script", "--impl", "wrong.py:attention", "--case", "causal-square")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attention_conformance" not in re.sub(r"#.*", "", done.stdout)
    theirs.write("out/shown.py", done.stdout)
    shown = installed.run(theirs.folder, str(theirs.python), "out/shown.py")
    assert shown.returncode == 1, shown.stdout + shown.stderr


def test_export_writes_vectors(theirs: Repository) -> None:
    """The vectors are written into a folder."""
    done = theirs.run("export", "out/vectors", "--case", "plain", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert any((theirs.folder / "out/vectors").iterdir())


def test_the_wheel_has_one_name_and_no_tests(theirs: Repository) -> None:
    """The wheel has nothing outside ``attention_conformance``, no tests, and every document and table."""
    (built,) = theirs.python.parents[2].glob("*.whl")
    names = zipfile.ZipFile(built).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"attention_conformance"}
    assert not [name for name in names if "/tests/" in name or name.endswith("conftest.py")]
    inside = {name.removeprefix("attention_conformance/") for name in names}
    data = subprocess.run(
        ["git", "ls-files"], cwd=installed.ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {
        name
        for name in data
        if name.startswith(("impls/", "conformance/", "bench/", "reports/"))
        and "/tests/" not in name
        and not name.startswith("reports/published/")
    }
    assert {"conformance/SPEC.md", "conformance/deviations.toml"} <= wanted
    assert wanted <= inside, sorted(wanted - inside)


def test_the_package_is_not_written_to(theirs: Repository) -> None:
    """A command that regenerates the suite's own documents refuses in an installed copy."""
    done = theirs.run("pages", "examples")
    assert done.returncode == UNUSABLE
    assert done.stderr.count("\n") == 1
    assert "in a checkout only" in done.stderr


def test_uninstalling_leaves_nothing(theirs: Repository, tmp_path: Path, wheel_of: Callable[[], Path]) -> None:
    """Uninstalling leaves neither a file nor a folder of ours."""
    python = installed.environment(tmp_path / "environment")
    packages = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    before = sorted(path.name for path in packages.iterdir())
    installed.install(python, "install", "--quiet", "--no-deps", "--no-index", str(wheel_of()))
    installed.install(python, "uninstall", "--quiet", "--yes", "attention-conformance")
    assert sorted(path.name for path in packages.iterdir()) == before
    assert not list((tmp_path / "environment" / "bin").glob("attention*"))


@pytest.fixture
def wheel_of(theirs: Repository) -> Callable[[], Path]:
    """A function that returns the path of the wheel that ``theirs`` installed."""
    return lambda: next(theirs.python.parents[2].glob("*.whl"))
