"""What a call may leave behind in its process: settings that later calls depend on, looked at before and after it.

A framework's own settings are in its ``arrays``; those of the process are in ``impls.process``.  What changed is put
back, so that the next case finds what this one found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any


def arrow(before: Any, after: Any) -> str:
    """A change in words."""
    return f"{before} → {after}"


def moved(before: Any, after: Any) -> str:
    """A change of what nobody can read: the state of random numbers."""
    return "moved on or set anew"


@dataclass(frozen=True)
class Setting:
    """One thing that holds for the whole process: how to read it, and how to put it back."""

    name: str
    #: A value that stays what it is when the setting changes, and can be compared.
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    words: Callable[[Any, Any], str] = arrow
    #: No result depends on it, so that a change is told and fails nothing.
    harmless: bool = False


@dataclass(frozen=True)
class Unreadable:
    """In the place of a value that cannot be read: the folder that the process was in is gone."""

    why: str

    def __str__(self) -> str:
        return self.why


class Watch:
    """A context manager around a call; what it found is there when it is left."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._settings = settings
        self._before: list[Any] = []
        #: What changed and matters, and what changed besides, "name: from → to" each.
        self.changed: tuple[str, ...] = ()
        self.remarks: tuple[str, ...] = ()
        #: Names of settings that could not be put back.
        self.stuck: tuple[str, ...] = ()

    def __enter__(self) -> Watch:
        self._before = [_read(setting) for setting in self._settings]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = [_read(setting) for setting in self._settings]
        found = [each for each in zip(self._settings, self._before, after, strict=True) if each[1] != each[2]]
        self.changed = tuple(f"{s.name}: {s.words(was, now)}" for s, was, now in found if not s.harmless)
        self.remarks = tuple(f"{s.name}: {s.words(was, now)}" for s, was, now in found if s.harmless)
        self.stuck = tuple(setting.name for setting, was, _ in found if not _put_back(setting, was))


def _read(setting: Setting) -> Any:
    try:
        return setting.get()
    except Exception as error:
        return Unreadable(f"{type(error).__name__}: {error}")


def _put_back(setting: Setting, value: Any) -> bool:
    """Whether the setting has its value again."""
    try:
        setting.put(value)
    except Exception:
        return False
    return bool(_read(setting) == value)
