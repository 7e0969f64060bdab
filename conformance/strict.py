"""JSON that says one thing: no key of an object twice, numbers that are numbers, and no deeper than Python reads."""

from __future__ import annotations

import json
import math
from typing import Any


class StrictError(ValueError):
    """Text that is not strict JSON; the text of the error is a short reason."""


class NotJson(StrictError):
    """No JSON in UTF-8, nested too deeply, or an integer too long to read; ``reason`` is what the decoder said."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class KeyTwice(StrictError):
    """An object with a key twice, of which readers would disagree which one counts."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:80]!r} stands twice in one object")
        self.key = key


class NotFinite(StrictError):
    """NaN, an infinity, or a number beyond float64, as it was written."""

    def __init__(self, number: str) -> None:
        super().__init__(f"{number[:80]} is no number")
        self.number = number


def loads(text: str | bytes, finite: bool = True) -> Any:
    """The value that the text says.  Raises StrictError; without ``finite``, NaN and infinities are numbers."""
    number = _finite if finite else None
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=_once, parse_float=number, parse_constant=number)
    except StrictError:
        raise
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON ({error.msg}, line {error.lineno})", str(error)) from None
    except RecursionError as error:
        raise NotJson("nested too deeply", str(error)) from None
    except ValueError as error:  # not UTF-8, or an integer too long to read
        raise NotJson(f"not JSON ({error})", str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyTwice(next(name for name in names if names.count(name) > 1))
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotFinite(text)
    return value
