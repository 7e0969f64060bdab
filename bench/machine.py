"""What a timing depends on besides the code: cores, thread settings, libraries.  Goes into ``machine_info``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

#: Environment variables that decide how many threads the libraries use and how those wait.
THREADS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "XLA_FLAGS",
)


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


def load_average() -> float | None:
    """Processes that wanted a core in the last minute; more than the workers means that something else ran."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
