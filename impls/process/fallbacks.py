"""Fallbacks of a library: its messages when it quietly takes another path than the requested one.

``torch.compile`` runs a function uncompiled once it has compiled it for ``recompile_limit`` forms (8), says so once,
and stays with it in this process.  ONNX Runtime continues with another execution provider where a run fails in one, and
opens a session without a provider that it lacks; JAX takes the CPU where it finds no accelerator.  Then another
implementation is judged.  jax.nn does not report its choice between its implementations, so it cannot be detected.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from types import TracebackType

from attention_conformance.impls.process.noise import grown, sizes

#: Where a message comes from, if not from a logger.
WARNED, PRINTED = "a warning", "printed"


@dataclass(frozen=True)
class Signal:
    """Signal of a fallback: a text that its message holds."""

    #: The logger, or one above it; or WARNED or PRINTED.
    where: str
    text: str
    #: Whether earlier calls may decide it, so that a fresh process need not have it.
    earlier: bool


SIGNALS = (
    Signal("torch._dynamo", "hit config.", earlier=True),
    Signal(PRINTED, "EP Error: ", earlier=True),  # ONNX Runtime, where a run fails in a provider
    Signal(WARNED, "is not in available provider names", earlier=False),  # the same, as a session is opened
    Signal(PRINTED, "Failed to create CUDAExecutionProvider", earlier=False),
    Signal("jax._src.xla_bridge", "Falling back to", earlier=False),
)

LOGGERS = tuple({one.where: None for one in SIGNALS if one.where not in (WARNED, PRINTED)})

#: Beginning of a warning that is looked at although a library's warnings are not results.
WARNING = "Specified provider"

#: Characters of the message that are kept, and bytes of the printed text that are looked at.
QUOTED, READ = 120, 2**16


class Fallbacks(logging.Handler):
    """A context manager around a call and its preparation.

    ``found`` is the first fallback that earlier calls may have decided, ``side_effects`` has the others.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found = ""
        self._others: dict[str, None] = {}
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def side_effects(self) -> tuple[str, ...]:
        """Fallbacks that any process has, in words."""
        return tuple(f"fell back: {text}" for text in self._others)

    def look(self, where: str, text: str) -> None:
        """Keep the line of a message that reports a fallback."""
        for one in SIGNALS:
            if not where.startswith(one.where) or one.text not in text:
                continue
            line = next(each for each in text.splitlines() if one.text in each).strip()[:QUOTED]
            if not one.earlier:
                self._others[line] = None
            elif not self.found:
                self.found = line

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a message of a logger."""
        self.look(record.name, record.getMessage())

    def warned(self, message: Warning | str) -> None:
        """Look at a warning."""
        self.look(WARNED, str(message))

    def __enter__(self) -> Fallbacks:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        self._sizes = sizes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        for descriptor, before, _ in grown(self._sizes):
            self.look(PRINTED, re.sub(r"\x1b\[\d*m", "", _read(descriptor, before)))


def _read(descriptor: int, start: int) -> str:
    try:
        return os.pread(descriptor, READ, start).decode(errors="replace")
    except OSError:  # a file that may only be written
        return ""
