"""A program in any language as an implementation: one process for each call, and files between.

``program DIR`` reads ``DIR/input.safetensors`` and writes ``DIR/result.safetensors`` (impls.foreign.exchange).  Its
exit status says what came of it: 0 done, 77 unsupported, any other an error; what it printed is the reason.
``program --describe`` may print what it has as JSON: operator, keywords, dtypes, profiles, layout.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from impls.contract import Call, Function, ImplementationError
from impls.foreign import exchange
from impls.foreign.declared import Declared, Foreign, known_keywords, known_operator
from impls.loading import nearest
from impls.process.pool import STDERR_LINES, Crashed, cause
from impls.process.worker import SCRATCH

#: The status of a call that the program does not support; test programs say "skipped" with it in GNU's tools.
UNSUPPORTED = 77

#: Seconds that ``--describe`` may take.
DESCRIBE_TIMEOUT = 30.0

#: What ``--describe`` may say.
_KEYS = ("operator", "keywords", "dtypes", "profiles", "layout")

#: Signals of programs that broke down, which a shell tells as 128 + the number: no program says with them that it
#: refuses its input.
_BROKEN = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL)


class Program(Foreign):
    """A command and what it says of itself."""

    def __init__(self, command: tuple[str, ...], declared: Declared) -> None:
        super().__init__(declared)
        self.command = command
        self.who = Path(command[0]).name

    def prepared(self, call: Call) -> Function:
        """The function that runs the program once."""

        def run(**arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            with tempfile.TemporaryDirectory(prefix="attention-", dir=os.environ.get(SCRATCH)) as name:
                folder = Path(name)
                exchange.write(folder, arrays, call)
                status, printed = _run((*self.command, name))
                _judge(status, printed, self.who)
                try:
                    return exchange.read(folder, call.results())
                except ValueError as error:  # no refusal of the input: it said that it was done
                    raise Crashed(f"{self.who} ended with status 0: {error}", printed) from None

        return run


def program(command: str) -> Program:
    """The program of a command line.  Raises ImplementationError if it cannot be run, or says what is not known."""
    words = tuple(shlex.split(command))
    return Program(words, _described(words))


def _described(words: tuple[str, ...]) -> Declared:
    """What ``--describe`` prints, or what is assumed without it: sdpa in float32 and no keyword."""
    who = Path(words[0]).name
    try:
        done = subprocess.run(  # noqa: S603  (what the user plugs in is run)
            [*words, "--describe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DESCRIBE_TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise ImplementationError(f"{who} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ImplementationError(f"{who} --describe did not end within {DESCRIBE_TIMEOUT:g} s") from None
    try:
        said = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        said = None
    return _declared(f"{who} --describe", said) if isinstance(said, dict) else Declared()


def _declared(who: str, said: dict[str, Any]) -> Declared:
    for key in said:
        if key not in _KEYS:
            raise ImplementationError(f"{who}: {key!r} is not known{nearest(key, _KEYS)}")
    operator = known_operator(who, str(said.get("operator", "sdpa")))
    for key in ("keywords", "dtypes"):
        if not isinstance(said.get(key, []), list) or not all(isinstance(each, str) for each in said.get(key, [])):
            raise ImplementationError(f"{who}: {key} is {said[key]!r}, expected a list of texts")
    return Declared(
        operator,
        known_keywords(who, operator, said.get("keywords", [])),
        tuple(said.get("dtypes", Declared.dtypes)),
        said.get("profiles", {}),
        said.get("layout", Declared.layout),
    )


def _run(words: tuple[str, ...]) -> tuple[int, str]:
    """The exit status, and the last lines that were printed.

    They go into a file: a pipe would be waited for as long as any process that the program left behind holds it.
    The process stays in the worker's session, so it ends with it.
    """
    with tempfile.TemporaryFile() as printed:
        status = subprocess.call(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)  # noqa: S603
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    return status, "\n".join([line for line in text.splitlines() if line.strip()][-STDERR_LINES:])


def _judge(status: int, printed: str, who: str) -> None:
    """Raise what an exit status stands for."""
    status = 128 - status if status - 128 in _BROKEN else status
    rest, _, last = printed.rpartition("\n")
    if status == UNSUPPORTED:
        raise NotImplementedError(last or f"{who} gives no reason")
    if status < 0:
        raise Crashed(f"{who}: {cause(status)}", printed)
    if status:
        raise RuntimeError(f"{who} ended with exit status {status}: {last or 'it printed nothing'}\n{rest}".strip())
