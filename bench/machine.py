"""What a timing depends on besides the code: the machine, its settings, the libraries; and its mark, to tell two apart.

Two runs are comparable if they agree in MUST_AGREE: the processor and what it may use, the GPU and its driver, the
settings of threads.  Of these the ``id`` is a hash.  Versions, BLAS, Python and kernel are recorded and are not in it,
as their change is what a comparison asks about.  What a system does not tell is "" or None.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.memory import groups
from impls import allocator, cores

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

#: How the names of variables begin that decide how many threads the libraries use, how those wait, which kernels they
#: choose, and what becomes of freed memory.  Folders of caches and installations are not among them.
SETTINGS = (
    *("MALLOC_", "GLIBC_TUNABLES", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_"),
    *("NPY_DISABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY", "ONEDNN_", "DNNL_", "XLA_FLAGS", "LD_PRELOAD"),
    *("NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64"),
)

#: Fields in which two runs have to agree to be compared.
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
    "freed_memory",
    "turns_begin",
)

#: Hexadecimal digits of an id: equal by chance for two of ten thousand machines once in 5 million.
DIGITS = 12

#: Lines of /proc/cpuinfo that tell processors of one name apart, which a virtual machine's often have; x86 and Arm.
STEPPING = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")

#: Seconds that a program may take that is asked for the hardware.
PATIENCE = 10


def usable_cores() -> int:
    """Cores that this process, and so its workers, may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fingerprint(versions: Mapping[str, str]) -> dict[str, Any]:
    """The entries that the suite adds to pytest-benchmark's own; ``versions`` of the libraries that took part."""
    return {
        "usable_cores": usable_cores(),
        "threads": {name: os.environ.get(name, "not set") for name in THREADS},
        "libraries": dict(sorted(versions.items())),
    }


def describe(
    versions: Mapping[str, str], in_force: Mapping[str, int] | None = None, root: Path = Path("/")
) -> dict[str, Any]:
    """The fingerprint of a run: ``versions`` of the libraries that took part, ``in_force`` the threads of each.

    ``root`` is where the file system of the kernel's numbers begins.
    """
    gpu, driver = _gpu()
    processors = root / "sys/devices/system/cpu"
    found = {
        "cpu": _cpu(root),
        "cores_usable": usable_cores(),
        "cores_total": os.cpu_count() or 1,
        "quota": _quota(root),
        "smt": _read(processors / "smt/control"),
        "governor": ", ".join(sorted({_read(p) for p in processors.glob("cpu[0-9]*/cpufreq/scaling_governor")})),
        "boost": _read(processors / "cpufreq/boost"),
        "virtual": _virtual(root),
        "memory_bytes": _memory(),
        "gpu": gpu,
        "driver": driver,
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "freed_memory": allocator.description(),
        "turns_begin": cores.description(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": dict(sorted(versions.items())),
        "blas": blas(),
        "threads": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
        "in_force": dict(sorted((in_force or {}).items())),
    }
    return found | {"id": mark(found)}


def mark(fingerprint: Mapping[str, Any]) -> str:
    """The id: a hash of what has to agree.  A field that a fingerprint lacks counts as None."""
    agreed = json.dumps([(name, fingerprint.get(name)) for name in MUST_AGREE], sort_keys=True)
    return hashlib.sha256(agreed.encode()).hexdigest()[:DIGITS]


def differing(
    one: Mapping[str, Any], other: Mapping[str, Any], fields: Sequence[str] = MUST_AGREE
) -> dict[str, tuple[Any, Any]]:
    """The fields in which two fingerprints differ, with both values; none if their runs may be compared."""
    pairs = {name: (one.get(name), other.get(name)) for name in fields}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def load_average() -> float | None:
    """Processes that wanted a core in the last minute; more than the workers means that something else ran."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def blas() -> str:
    """Name and version of the library that NumPy was built to multiply matrices with."""
    built: Mapping[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', '')} {found.get('version', '')}".strip()


def _cpu(root: Path) -> str:
    """The processor's name, and what tells it from others of that name."""
    lines = [line.split(":", 1) for line in _read(root / "proc/cpuinfo").splitlines() if ":" in line]
    said = {name.strip(): value.strip() for name, value in reversed(lines)}  # the first core's
    name = said.get("model name") or asked("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    parts = ", ".join(f"{part} {said[part]}" for part in STEPPING if part in said)
    return f"{name} ({parts})" if parts else name


def _virtual(root: Path) -> bool | None:
    """Whether this is a virtual machine, which x86 processors tell; None elsewhere."""
    flags = [line for line in _read(root / "proc/cpuinfo").splitlines() if line.startswith("flags")]
    return "hypervisor" in flags[0].split() if flags else None


def _quota(root: Path) -> float | None:
    """Cores' worth of time that the narrowest control group may use, None if none has a limit (version 2 and 1)."""
    limits = []
    for folder in groups(root, "cpu"):
        first = [_read(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        allowed, _, period = (_read(folder / "cpu.max") or " ".join(first)).partition(" ")
        if allowed.isdigit() and period.isdigit():  # "max" and -1 are no limit
            limits.append(int(allowed) / int(period))
    return min(limits, default=None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not this system
        return None


@functools.cache
def _gpu() -> tuple[str, str]:
    """Names of the NVIDIA GPUs, and the driver's version."""
    lines = asked("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    pairs = [line.rpartition(", ") for line in lines]
    return ", ".join(name for name, _, _ in pairs), ", ".join(sorted({driver for _, _, driver in pairs}))


def asked(program: str, *arguments: str) -> str:
    """What a program says; "" if there is none, or it fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
