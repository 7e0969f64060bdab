"""JSON that says one thing: no key of an object twice, and no deeper than Python reads."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str) -> Any:
    """The value that the text says.  Raises ValueError with a short reason; NaN and Infinity are read as numbers."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, line {error.lineno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {again[:80]!r} stands twice in one object")
    return found
