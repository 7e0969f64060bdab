"""How many threads a library may use: equal for all, said by the environment of the process that it is imported in."""

from __future__ import annotations

import os

#: How many threads the libraries of this process are to use; those that read no variable of their own read this.
VARIABLE = "ATTENTION_CONFORMANCE_THREADS"

#: What the libraries read: OpenMP's runtimes, MKL, OpenBLAS, Accelerate, NumExpr, and XLA's pool (its NPROC).
VARIABLES = (
    VARIABLE,
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NPROC",
)


def environment(threads: int) -> dict[str, str]:
    """The variables of a process whose libraries are to use so many threads."""
    return dict.fromkeys(VARIABLES, str(threads))


def wanted() -> int:
    """How many threads this process's libraries are to use; 0 leaves it to them."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() else 0
