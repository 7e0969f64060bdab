"""For each way to fail, the script of a user's function fails as long as the function does, and passes once mended."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.outcomes import Failure
from conformance.targets import Pool
from conformance.tests.scripts import Job, Ran, Written, alone, run, shown, written, written_and_run
from impls.select import plug_in, with_attributes

KERNELS = """
import os, time
import numpy as np

WRONG = True
CALLS = 0


def right(q, k, v, scale=None):
    if k.shape[2] != v.shape[2]:
        raise ValueError("k and v differ in length")
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    top = s.max(3, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(3, keepdims=True)
    return (p / total @ v.astype(np.float64)).astype(q.dtype), (top + np.log(total))[..., 0]


def by_value(q, k, v, *, scale=None):
    return right(q, k, v, 1 / q.shape[3] if WRONG else scale)[0]


def by_nan(q, k, v):
    output = right(q, k, v)[0]
    output[0, 0, 0, 0] = np.nan if WRONG else output[0, 0, 0, 0]
    return output


def by_lse(q, k, v, *, return_lse=False):
    output, lse = right(q, k, v)
    return (output, (lse / np.log(2) if WRONG else lse).astype(np.float32)) if return_lse else output


def by_shape(q, k, v):
    output = right(q, k, v)[0]
    return output.transpose(0, 2, 1, 3) if WRONG else output


def by_dtype(q, k, v):
    output = right(q, k, v)[0]
    return output.astype(np.float64) if WRONG else output


def by_error(q, k, v):
    if WRONG:
        raise RuntimeError("no kernel")
    return right(q, k, v)[0]


def by_list(q, k, v):
    output = right(q, k, v)[0]
    return output.tolist() if WRONG else output


def by_count(q, k, v, *, return_lse=False):
    output, lse = right(q, k, v)
    return (output, lse.astype(np.float32)) if return_lse and not WRONG else output


def by_accepting(q, k, v):
    return np.zeros_like(q) if WRONG else right(q, k, v)[0]


def by_modifying(q, k, v):
    output = right(q, k, v)[0]
    q *= 0.5 if WRONG else 1
    return output


def by_chance(q, k, v):
    global CALLS
    CALLS += WRONG
    output = right(q, k, v)[0]
    return np.nextafter(output, np.float32(9)) if CALLS % 2 else output


def by_memory(q, k, v, *, scale=None, before=[None]):
    used = before[0] if WRONG and scale is None else scale
    before[0] = scale
    return right(q, k, v, used)[0]


def by_strides(q, k, v):
    flat = np.lib.stride_tricks.as_strided(k, strides=np.zeros_like(k, order="C").strides) if WRONG else k
    return right(q, flat, v)[0]


def by_dying(q, k, v):
    if WRONG:
        os.abort()
    return right(q, k, v)[0]


def by_hanging(q, k, v):
    while WRONG:
        time.sleep(0.1)
    return right(q, k, v)[0]
"""

#: Function, case, and the way in which it fails.
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


#: One mistake each in the other frameworks.
TORCH = """
import torch

WRONG = True


def attention(q, k, v, *, is_causal=False):  # (B, S, H, D)
    q, k, v = (a.transpose(1, 2).float() for a in (q, k, v))
    s = q @ k.mT * q.shape[3] ** -0.5
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[2:], dtype=torch.bool).tril(1 if WRONG else 0), -torch.inf)
    return (s.softmax(3) @ v).transpose(1, 2).bfloat16()
"""
JAX = """
import jax.numpy as jnp

WRONG = True


def attention(q, k, v, *, kv_lengths=None):
    s = jnp.einsum("bhid,bhjd->bhij", q, k) * q.shape[3] ** -0.5
    if kv_lengths is not None:
        last = kv_lengths[:, None, None, None] - (0 if WRONG else 1)
        s = jnp.where(jnp.arange(k.shape[2]) <= last, s, -jnp.inf)
    p = jnp.exp(s - s.max(3, keepdims=True))
    return p / p.sum(3, keepdims=True) @ v
"""
ORT = """
import numpy as np
import onnxruntime

WRONG = True


def attention(q, k, v):
    q, k, v = (a.numpy().astype(np.float64) for a in (q, k, v))
    s = q @ k.swapaxes(2, 3) * (1 / q.shape[3] if WRONG else q.shape[3] ** -0.5)
    p = np.exp(s - s.max(3, keepdims=True))
    output = (p / p.sum(3, keepdims=True) @ v).astype(np.float32)
    return onnxruntime.OrtValue.ortvalue_from_numpy(output, "cpu")
"""
FRAMEWORKS = {
    "torch": (TORCH, {"layout": "BSHD"}, "causal-square", "bfloat16"),
    "jax": (JAX, {}, "lengths", "float64"),
    "onnxruntime": (ORT, {}, "plain", "float32"),
}
INSTALLED = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]


@dataclass(frozen=True)
class Run:
    """Scripts by what they are of, and what came of them while the functions were wrong and once they were mended."""

    scripts: dict[str, Written]
    wrong: dict[str, Ran]
    mended: dict[str, Ran]


def kernels(folder: Path) -> Path:
    """The functions that are wrong in each way, as a user's file."""
    file = folder / "kernels.py"
    file.write_text(KERNELS, encoding="utf-8")
    return file


def mend(file: Path) -> None:
    """Make every function of a file right."""
    file.write_text(file.read_text(encoding="utf-8").replace("WRONG = True", "WRONG = False"), encoding="utf-8")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every way to fail and every framework that is installed; the files are mended after the scripts were run."""
    folder = tmp_path_factory.mktemp("kernels")
    file = kernels(folder)
    jobs: dict[str, Job] = {name: (plug_in(f"{file}:{name}"), case, "float32") for name, case, _ in WAYS}
    for name in INSTALLED:
        source, attributes, case, dtype = FRAMEWORKS[name]
        own = folder / f"{name}_kernel.py"
        own.write_text(source, encoding="utf-8")
        jobs[name] = (with_attributes(plug_in(f"{own}:attention@{name}"), attributes), case, dtype)
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
    """Otherwise the other tests would say nothing about it."""
    assert everything.scripts[name].result.failure is failure


@each_script
def test_a_script_fails_as_long_as_the_function_does(everything: Run, name: str) -> None:
    """Exit code 1, and no OK."""
    assert everything.wrong[name].code == 1, everything.wrong[name].printed
    assert "OK" not in everything.wrong[name].printed


@each_script
def test_a_script_passes_once_the_function_is_mended(everything: Run, name: str) -> None:
    """Exit code 0, and OK."""
    assert everything.mended[name].code == 0, everything.mended[name].printed
    assert "OK" in everything.mended[name].printed


@each_script
def test_a_script_finds_the_values_that_were_judged(everything: Run, name: str) -> None:
    """Wrong by the same numbers."""
    assert everything.wrong[name].values == [shown(each) for each in everything.scripts[name].elements]


def test_a_script_dies_with_the_function(tmp_path: Path) -> None:
    """By the same signal; and it passes once the function is mended."""
    file, pool = kernels(tmp_path), Pool(in_process=False)
    script = written(pool, plug_in(f"{file}:by_dying"), "plain", "float32", tmp_path / "scripts")
    pool.close()
    assert script is not None
    assert script.result.failure is Failure.CRASHED
    assert alone(script.path) == -signal.SIGABRT
    mend(file)
    assert alone(script.path) == 0


def test_a_script_hangs_with_the_function(tmp_path: Path) -> None:
    """It does not end; and it does once the function is mended."""
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
    script = written(pool, plug_in("conformance.faults:causal_bottom_right"), "causal-more-keys", "float32", tmp_path)
    pool.close()
    assert script is not None
    assert alone(script.path) == 1
