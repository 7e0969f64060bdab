"""Fallbacks of a library: what it logs when it quietly takes another path than the one that it was asked for.

``torch.compile`` runs a function uncompiled once it has compiled it for ``recompile_limit`` forms (8), says so once,
and stays with it in this process: what is judged then is another implementation.
"""

from __future__ import annotations

import logging
from types import TracebackType

#: What a message holds that tells of a fallback, by the logger that it comes from.
TELLING = {"torch._dynamo": "hit config."}

#: Characters of the message that are kept.
QUOTED = 120


class Fallbacks(logging.Handler):
    """A context manager around a call and its preparation; ``found`` is the first fallback, "" for none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a message that tells of a fallback."""
        text = record.getMessage()
        if not self.found and any(telling in text for telling in TELLING.values()):
            self.found = text.splitlines()[0][:QUOTED]

    def __enter__(self) -> Fallbacks:
        for name in TELLING:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in TELLING:
            logging.getLogger(name).removeHandler(self)
