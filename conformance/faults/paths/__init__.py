"""Faults on paths: right everywhere except where a real kernel takes a separate path (cases/kernel_paths.py).

They are kept apart from the other faults because cases at the sizes of kernels catch them (cases/kernels.py), while
small cases do not.  Each can be plugged in like the others:
``attention_conformance.conformance.faults:fa2_width_64_window_later_tiles``.
"""

from __future__ import annotations

from attention_conformance.conformance.faults.models.on_path import Mistake, bound
from attention_conformance.conformance.faults.models.sdpa import Attention
from attention_conformance.conformance.faults.paths.table import TABLE
from attention_conformance.conformance.faults.registry import FAULTS, PATH, Fault, kebab

__all__ = ["PATH_FAULTS"]


def _faults() -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for path, make, threads in TABLE:
        name = f"{path}-{kebab(make.__name__)}"
        if name in found:
            raise ValueError(f"fault {name}: registered twice")
        on_path = bound(path, make, "".join(part.capitalize() for part in name.split("-")))
        clause, title = _said(make)
        text = f"{title} ({on_path.path.kernel}, {path})"
        found[name] = Fault(name, clause, text, (f"{PATH} {path}", *threads), on_path)
    return found


def _said(make: type[Attention]) -> tuple[str, str]:
    """The clause that a mistake breaks, and its title; a fault that exists without a path keeps its own."""
    if issubclass(make, Mistake):
        return make.clause, make.title
    known = FAULTS[kebab(make.__name__)]
    return known.clause, known.title


#: Every fault on a path, by its name.
PATH_FAULTS: dict[str, Fault] = _faults()
