"""State of a process that a call may leave changed: settings that later calls depend on, compared before and after it.

The settings here are those of the process for any framework: random numbers, floating-point mode (of the calling
thread; threads that a library keeps have their own), folder, environment, signals, threads of the linear algebra
libraries.  A framework's own settings are in its ``arrays``.  Changes are undone, so that the next case finds what this
one found.
"""

from __future__ import annotations

import ctypes
import functools
import locale
import os
import random
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attention_conformance.impls.process.threads import libraries

#: Numbers that the floating-point mode shows in; variables, as Python computes with constants when it compiles.
_ONE, _TINY, _SMALLEST_NORMAL, _SUBNORMAL, _HALF = 1.0, 2.0**-60, 2.0**-1022, 2.0**-1074, 0.5

#: Bytes that hold any system's ``fenv_t`` (glibc: 32 on x86-64, 8 on aarch64).
_ENVIRONMENT_BYTES = 256

#: Bytes of the state of NumPy's default generator: 624 words, and the place of the next one.
_MT19937_BYTES = 625 * 4

#: Signals that libraries are known to take: those of Ctrl-C, of timers, of children, and of arithmetic.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGFPE", "SIGUSR1", "SIGUSR2")

_C: Any = ctypes.CDLL(None)


def arrow(before: Any, after: Any) -> str:
    """A change in words."""
    return f"{before} → {after}"


def random_state_change(before: Any, after: Any) -> str:
    """A change of the state of random numbers, whose values mean nothing to a reader.

    Parameters
    ----------
    before, after
        Two different values of the setting.

    Returns
    -------
    str
        The words of a message for it.
    """
    return "moved on or seeded"


@dataclass(frozen=True)
class Setting:
    """One setting of the whole process: how to read it, and how to restore it."""

    name: str
    #: A value that stays the same when the setting changes, and can be compared.
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    words: Callable[[Any, Any], str] = arrow
    #: No result depends on it, so that a change is reported and fails nothing.
    harmless: bool = False
    #: Drawing random numbers moves it, as building a layer does; a second call shows whether a result depends on it.
    random: bool = False


@dataclass(frozen=True)
class Moved:
    """A state of random numbers as a call left it, and the change in words."""

    setting: Setting
    value: Any
    text: str


@dataclass(frozen=True)
class Unreadable:
    """Placeholder of a value that cannot be read: the folder that the process was in is gone."""

    why: str

    def __str__(self) -> str:
        return self.why


class Watch:
    """A context manager around a call; its findings are set at its end."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._settings = settings
        self._before: list[Any] = []
        #: Changes that matter, and harmless ones, "name: from → to" each.
        self.changed: tuple[str, ...] = ()
        self.side_effects: tuple[str, ...] = ()
        #: Changed states of random numbers.
        self.moved: tuple[Moved, ...] = ()
        #: Names of settings that could not be restored.
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
        self.side_effects = tuple(f"{s.name}: {s.words(was, now)}" for s, was, now in found if s.harmless)
        self.moved = tuple(Moved(s, now, f"{s.name}: {s.words(was, now)}") for s, was, now in found if s.random)
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


@dataclass(frozen=True)
class FloatMode:
    """Floating-point mode of this thread: how it rounds, and what it does with subnormal numbers."""

    rounding: str
    flushes: bool
    #: The C library's record of it, from which it is restored.
    environment: bytes = field(compare=False, default=b"")

    def __str__(self) -> str:
        return f"rounds {self.rounding}, {'flushes' if self.flushes else 'keeps'} subnormal numbers"


def float_mode() -> FloatMode:
    """The floating-point mode, found by computing: there is no portable query."""
    buffer = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _C.fegetenv(buffer)
    if _ONE + _TINY > _ONE:
        rounding = "up"
    elif -_ONE - _TINY < -_ONE:
        rounding = "down"
    else:
        rounding = "to zero" if _ONE - _TINY < _ONE else "to nearest"
    flushes = _SMALLEST_NORMAL * _HALF == 0 or _SUBNORMAL == 0
    return FloatMode(rounding, flushes, buffer.raw)


def _set_float_mode(mode: FloatMode) -> None:
    _C.fesetenv(ctypes.create_string_buffer(mode.environment, _ENVIRONMENT_BYTES))


@dataclass
class _NumpyRandom:
    """NumPy's global random numbers.  Reading their state takes 50 µs, so it is read only where its memory changed."""

    _memory: bytes = b""
    _state: tuple[Any, ...] = ()

    def get(self) -> tuple[Any, ...]:
        generator = np.random.mtrand.get_bit_generator()
        if type(generator) is not np.random.MT19937:  # a call put another one there, whose draws are not seen
            return (type(generator).__name__,)
        memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        if memory != self._memory:
            name, keys, *rest = np.random.get_state(legacy=True)
            self._memory, self._state = memory, (name, np.asarray(keys).tobytes(), *rest)
        return self._state


def _set_numpy_random(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


def _names(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Names of the entries that differ; the values of an environment are private."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    texts = []
    for name in changed:
        how = "removed" if name not in after else "changed" if name in before else "added"
        texts.append(f"{os.fsdecode(name)} {how}")
    return ", ".join(texts)


def _environment() -> dict[bytes, bytes]:
    """A copy at once, from where Python keeps it: entry by entry it takes 0.1 ms, most of the time spent here."""
    return dict(os.environb._data)  # type: ignore[attr-defined]


def _set_environment(values: Mapping[bytes, bytes]) -> None:
    for name in os.environb.keys() - values.keys():
        del os.environb[name]
    os.environb.update({name: value for name, value in values.items() if os.environb.get(name) != value})


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(getattr(signal, name)) for name in _SIGNALS if hasattr(signal, name)}


def _set_handlers(handlers: Mapping[str, Any]) -> None:
    for name, handler in handlers.items():
        number = getattr(signal, name)
        if handler is not None and signal.getsignal(number) != handler:  # None: not set by Python, so not by us
            signal.signal(number, handler)


#: A library that compiles sets variables for its compiler: that is reported, and is not a failure.
_SETTINGS = (
    Setting("floating-point mode", float_mode, _set_float_mode),
    Setting("random numbers of Python", random.getstate, random.setstate, random_state_change, random=True),
    Setting("random numbers of NumPy", _NumpyRandom().get, _set_numpy_random, random_state_change, random=True),
    Setting("error state of NumPy", np.geterr, lambda state: np.seterr(**state)),
    Setting("working directory", os.getcwd, os.chdir),
    Setting("locale", lambda: locale.setlocale(locale.LC_ALL), lambda text: locale.setlocale(locale.LC_ALL, text)),
    Setting("signal handlers", _handlers, _set_handlers, _names),
    Setting("environment", _environment, _set_environment, _names, harmless=True),
)


def settings() -> tuple[Setting, ...]:
    """The settings of this process.

    Returns
    -------
    tuple[Setting, ...]
        Settings that a call must leave unchanged, with how each is read and restored.
    """
    return (*_SETTINGS, *thread_settings())


@functools.cache
def thread_settings() -> tuple[Setting, ...]:
    """Threads of each linear algebra library and OpenMP runtime that is loaded by now."""
    return tuple(
        Setting(
            f"threads of {re.split(r'[-.]', Path(each.filepath).name)[0]}", each.get_num_threads, each.set_num_threads
        )
        for each in libraries().lib_controllers
    )
