"""Machine of a timing: processor, settings, libraries, all that a time depends on except the code; and its id.

Two runs are comparable if they agree in MUST_AGREE: the processor and its usable part, the GPU and its driver, the
settings of threads.  The ``id`` is a hash of these.  Versions, BLAS, Python and kernel are recorded but are not in it,
as comparisons study changes of them.  What a system does not report is "" or None.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from attention_conformance.impls.process import allocator, limits, threads

#: Environment variables that decide how many threads the libraries use and how those wait, for ``machine_info``.
THREADS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "XLA_FLAGS",
)

#: Prefixes of variables that decide how many threads the libraries use, how those wait, which kernels they
#: choose, and what becomes of freed memory.  Folders of caches and installations are not among them.
SETTINGS = (
    *("MALLOC_", "GLIBC_TUNABLES", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_"),
    *("NPY_DISABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY", "ONEDNN_", "DNNL_", "XLA_FLAGS", "LD_PRELOAD"),
    *("NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64"),
)

#: Fields in which two runs must agree to be compared.
MUST_AGREE = (
    "cpu",
    "cores_usable",
    "cores_total",
    "quota",
    "smt",
    "governor",
    "boost",
    "virtual",
    "gpu",
    "driver",
    "system",
    "threads",
    "allocator_retention",
    "rounds_begin",
)

#: Hexadecimal digits of an id: two of ten thousand machines share one by chance once in 5 million.
DIGITS = 12

#: Fields that distinguish processors of one name, which is common on virtual machines: for x86 py-cpuinfo's names with
#: ours, and for Arm, where py-cpuinfo has none, the names of /proc/cpuinfo.
STEPPING = {"family": "cpu family", "model": "model", "stepping": "stepping"}
ARM = ("CPU implementer", "CPU part", "CPU variant")

#: Time limit, in seconds, of a program that reports the hardware.
PATIENCE = 10


def fingerprint(versions: Mapping[str, str]) -> dict[str, Any]:
    """The entries that the suite adds to pytest-benchmark's own; ``versions`` are those of the libraries in the run."""
    return {
        "usable_cores": threads.usable_cores(),
        "threads": {name: os.environ.get(name, "not set") for name in THREADS},
        "libraries": dict(sorted(versions.items())),
    }


def describe(
    versions: Mapping[str, str], in_force: Mapping[str, int] | None = None, root: Path = Path("/")
) -> dict[str, Any]:
    """The fingerprint of a run: ``versions`` of the libraries in the run, ``in_force`` the threads of each.

    ``root`` is the root of the file system that has the kernel's /proc and /sys.
    """
    gpu, driver = _gpu()
    processors, info = root / "sys/devices/system/cpu", _cpuinfo()
    found = {
        "cpu": _cpu(info, root),
        "cores_usable": threads.usable_cores(),
        "cores_total": os.cpu_count() or 1,
        "quota": limits.cpu_quota(root),
        "smt": limits.system_file(processors / "smt/control"),
        "governor": ", ".join(
            sorted({limits.system_file(p) for p in processors.glob("cpu[0-9]*/cpufreq/scaling_governor")})
        ),
        "boost": limits.system_file(processors / "cpufreq/boost"),
        "virtual": "hypervisor" in info.get("flags", ()) if info.get("arch", "").startswith("X86") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": gpu,
        "driver": driver,
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "allocator_retention": allocator.description(),
        "rounds_begin": threads.description(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": dict(sorted(versions.items())),
        "blas": blas(),
        "threads": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
        "in_force": dict(sorted((in_force or {}).items())),
    }
    return found | {"id": mark(found)}


def mark(fingerprint: Mapping[str, Any]) -> str:
    """The id: a hash of the fields that must agree.  A missing field counts as None."""
    agreed = json.dumps([(name, fingerprint.get(name)) for name in MUST_AGREE], sort_keys=True)
    return hashlib.sha256(agreed.encode()).hexdigest()[:DIGITS]


def load_average() -> float | None:
    """Processes that wanted a core in the last minute; more than the workers means that something else ran."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def blas() -> str:
    """Name and version of the library that NumPy was built to multiply matrices with."""
    built: Mapping[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', '')} {found.get('version', '')}".strip()


@functools.cache
def _cpuinfo() -> dict[str, Any]:
    """Findings of py-cpuinfo, which needs up to a second; empty for a processor that it does not know."""
    from cpuinfo import get_cpu_info

    try:
        return dict(get_cpu_info())
    except Exception:
        return {}


def _cpu(info: Mapping[str, Any], root: Path) -> str:
    """The processor's name, with the fields that distinguish it from others of that name."""
    lines = [line.partition(":") for line in limits.system_file(root / "proc/cpuinfo").splitlines()]
    arm = {name.strip(): value.strip() for name, _, value in reversed(lines) if name.startswith("CPU ")}  # first core's
    said = {STEPPING.get(name, name): value for name, value in (dict(info) | arm).items()}
    name = info.get("brand_raw") or platform.processor()
    parts = ", ".join(f"{part} {said[part]}" for part in (*STEPPING.values(), *ARM) if part in said)
    return f"{name} ({parts})" if parts else name


@functools.cache
def _gpu() -> tuple[str, str]:
    """Names of the NVIDIA GPUs, and the driver's version."""
    lines = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    pairs = [line.rpartition(", ") for line in lines]
    return ", ".join(name for name, _, _ in pairs), ", ".join(sorted({driver for _, _, driver in pairs}))


def output_of(program: str, *arguments: str) -> str:
    """Output of a program; "" if there is none, or it fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
