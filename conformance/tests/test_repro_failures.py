"""For each way to fail, the script of a user's function fails as long as the function does, and passes once mended."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.tests.repro_kernels import FRAMEWORKS, KERNELS
from attention_conformance.conformance.tests.repro_scripts import (
    Job,
    Ran,
    Written,
    alone,
    run,
    shown,
    written,
    written_and_run,
)
from attention_conformance.impls.process.pool import Pool
from attention_conformance.impls.select import plug_in, with_attributes

pytestmark = pytest.mark.slow(20)

#: Function, case, and kind of failure.
WAYS = (
    ("by_value", "scale-default", Failure.VALUE),
    ("by_nan", "plain", Failure.VALUE),
    ("by_lse", "lse", Failure.VALUE),
    ("by_shape", "plain", Failure.SHAPE),
    ("by_dtype", "plain", Failure.DTYPE),
    ("by_error", "plain", Failure.ERROR),
    ("by_list", "plain", Failure.ERROR),
    ("by_count", "lse", Failure.ERROR),
    ("by_accepting", "invalid-lengths", Failure.NO_ERROR),
    ("by_modifying", "plain", Failure.MODIFIED),
    ("by_chance", "repeat", Failure.UNREPEATABLE),
    ("by_memory", "repeat-after-scale", Failure.VALUE),
    ("by_strides", "memory-inner", Failure.VALUE),
)

INSTALLED = [name for name, (framework, *_) in FRAMEWORKS.items() if importlib.util.find_spec(framework)]


@dataclass(frozen=True)
class Run:
    """Scripts by name, and their outcomes while the functions were wrong and after they were mended."""

    scripts: dict[str, Written]
    wrong: dict[str, Ran]
    mended: dict[str, Ran]


def kernels(folder: Path) -> Path:
    """A user's file with a function for each way to be wrong."""
    file = folder / "kernels.py"
    file.write_text(KERNELS, encoding="utf-8")
    return file


def mend(file: Path) -> None:
    """Make every function of a file right."""
    file.write_text(file.read_text(encoding="utf-8").replace("WRONG = True", "WRONG = False"), encoding="utf-8")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every kind of failure and every installed framework; the files are mended after the scripts have run."""
    folder = tmp_path_factory.mktemp("kernels")
    file = kernels(folder)
    jobs: dict[str, Job] = {name: (plug_in(f"{file}:{name}"), case, "float32") for name, case, _ in WAYS}
    for name in INSTALLED:
        framework, source, attributes, case, dtype = FRAMEWORKS[name]
        own = folder / f"{name.replace('-', '_')}_kernel.py"
        own.write_text(source, encoding="utf-8")
        function = "layer" if "operator" in attributes else "attention"
        found = with_attributes(plug_in(f"{own}:{function}@{framework}"), attributes)
        jobs[name] = (replace(found, worker=framework), case, dtype)  # one process imports it for all functions
    scripts, wrong = written_and_run(jobs.values(), folder / "scripts")
    for each in folder.glob("*.py"):
        mend(each)
    mended = run([scripts[job].path for job in jobs.values()])
    return Run(
        {name: scripts[job] for name, job in jobs.items()},
        {name: wrong[job] for name, job in jobs.items()},
        {name: mended[scripts[job].path] for name, job in jobs.items()},
    )


each_script = pytest.mark.parametrize("name", [name for name, _, _ in WAYS] + INSTALLED)


@pytest.mark.parametrize(("name", "failure"), [(name, failure) for name, _, failure in WAYS])
def test_the_way_to_fail_is_the_one_meant(everything: Run, name: str, failure: Failure) -> None:
    """Each function fails in its own way, as the other tests assume."""
    assert everything.scripts[name].result.failure is failure


@each_script
def test_a_script_fails_as_long_as_the_function_does(everything: Run, name: str) -> None:
    """The exit code is 1, and OK is not printed."""
    assert everything.wrong[name].code == 1, everything.wrong[name].printed
    assert "OK" not in everything.wrong[name].printed


@each_script
def test_a_script_passes_once_the_function_is_mended(everything: Run, name: str) -> None:
    """The exit code is 0, and OK is printed."""
    assert everything.mended[name].code == 0, everything.mended[name].printed
    assert "OK" in everything.mended[name].printed


@each_script
def test_a_script_finds_the_values_that_were_judged(everything: Run, name: str) -> None:
    """A script finds the same wrong numbers."""
    assert everything.wrong[name].values == [shown(each) for each in everything.scripts[name].elements]


def test_a_script_dies_with_the_function(tmp_path: Path) -> None:
    """A script dies by the same signal, and passes once the function is mended."""
    file, pool = kernels(tmp_path), Pool(in_process=False)
    script = written(pool, plug_in(f"{file}:by_dying"), "plain", "float32", tmp_path / "scripts")
    pool.close()
    assert script is not None
    assert script.result.failure is Failure.CRASHED
    assert alone(script.path) == -signal.SIGABRT
    mend(file)
    assert alone(script.path) == 0


def test_a_script_hangs_with_the_function(tmp_path: Path) -> None:
    """A script hangs, and ends once the function is mended."""
    file, pool = kernels(tmp_path), Pool(in_process=False)
    script = written(pool, plug_in(f"{file}:by_hanging"), "plain", "float32", tmp_path / "scripts", timeout=1)
    pool.close()
    assert script is not None
    assert script.result.failure is Failure.TIMEOUT
    with pytest.raises(subprocess.TimeoutExpired):
        alone(script.path, timeout=2)
    mend(file)
    assert alone(script.path) == 0


def test_a_function_of_a_module_is_imported_by_its_name(tmp_path: Path) -> None:
    """A fault of this suite is plugged in like a user's module, which a script may import."""
    pool = Pool(in_process=False)
    script = written(
        pool,
        plug_in("attention_conformance.conformance.faults:causal_bottom_right"),
        "causal-more-keys",
        "float32",
        tmp_path,
    )
    pool.close()
    assert script is not None
    assert alone(script.path) == 1
