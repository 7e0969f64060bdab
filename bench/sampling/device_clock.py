"""Device clock: the functions of torch that time calls on a GPU, as they were before foreign code was loaded.

``torch.cuda`` is a module that any code in the process can change.  A replaced function of it is detected, as one of
``time`` is (impls.process.clocks).
"""

from __future__ import annotations

import sys
from typing import Any

#: Functions of ``torch.cuda`` that impls.torch.arrays times and waits by, and methods of its events.
FUNCTIONS = ("synchronize", "Event", "_sleep")
METHODS = ("record", "query", "synchronize", "elapsed_time")

_BOUND: dict[str, Any] = {}


def bind() -> None:
    """Remember the functions, where torch is imported and has a GPU; must be called before foreign code is loaded.

    Functions that were remembered before are kept.
    """
    if not _BOUND:
        _BOUND.update(_now())


def replaced() -> str:
    """Sentence that names the functions that were replaced.

    Returns
    -------
    str
        One sentence, or "" if none is, or none was remembered.
    """
    now = _now() if _BOUND else {}
    names = [name for name, function in _BOUND.items() if now.get(name) is not function]
    return f"the clock was changed: {', '.join(names)} replaced by foreign code" if names else ""


def _now() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    found = {f"torch.cuda.{name}": getattr(torch.cuda, name, None) for name in FUNCTIONS}
    event = found["torch.cuda.Event"]
    return found | {f"torch.cuda.Event.{name}": getattr(event, name, None) for name in METHODS}
