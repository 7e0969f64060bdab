"""How many threads the linear algebra libraries of this process use: asked of those that it has loaded.

A library that was loaded with a framework is not linked to Python, so its functions are found by its file.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

from impls.state import Setting

#: Names of functions that get and set the number of threads, by what a library's file name contains.
_FUNCTIONS = {
    "openblas": (
        ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),  # NumPy's own
        ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
        ("openblas_get_num_threads", "openblas_set_num_threads"),
    ),
    "omp": (("omp_get_max_threads", "omp_set_num_threads"),),
    "mkl_rt": (("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),),
}

#: The libraries that this process has mapped (Linux).
_MAPS = Path("/proc/self/maps")

_LIBRARY = re.compile(r"(/\S*/lib(?:scipy_openblas|openblas|gomp|iomp5|omp|mkl_rt)[\w.+-]*)\s*$", re.MULTILINE)


@functools.cache
def thread_settings() -> tuple[Setting, ...]:
    """A setting for each library that is loaded by now; none where the system does not tell what is."""
    try:
        mapped = _MAPS.read_text(errors="replace")
    except OSError:
        return ()
    return tuple(found for path in dict.fromkeys(_LIBRARY.findall(mapped)) if (found := _setting(path)) is not None)


def _setting(path: str) -> Setting | None:
    name = Path(path).name
    try:
        library: Any = ctypes.CDLL(path)  # it is loaded, so this loads nothing
    except OSError:  # its file was replaced
        return None
    for part, pairs in _FUNCTIONS.items():
        for get, put in pairs:
            if part in name and hasattr(library, get) and hasattr(library, put):
                return Setting(f"threads of {re.split(r'[-.]', name)[0]}", getattr(library, get), getattr(library, put))
    return None
