"""A failure as pytest shows it: the whole message once, and its first words in the list of what failed.

Pytest takes the list's text from ``reprcrash.message`` and, where ``CI`` is set or with ``-vv``, prints all of it, so
that a CI job would show every message twice.  JUnit files take their short message from the same place.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest


class FailureText:
    """What a report shows of a failure.

    The message's first line, after its last colon, says what went wrong; its second begins with the clause, if one is
    broken.
    """

    def __init__(self, message: str) -> None:
        self.message = message
        first, *others = message.split("\n", 2)
        clause = re.match(r"[A-Z]+-\d+(?= )", others[0]) if others else None
        kind = first.rpartition(": ")[2]
        self.reprcrash = SimpleNamespace(message=f"{kind}, {clause[0]}" if clause else kind)

    def __str__(self) -> str:
        return self.message

    def toterminal(self, terminal: Any) -> None:
        """Write the whole message (pytest calls this)."""
        terminal.line(self.message)


def shorten(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Show what ``pytest.fail(message, pytrace=False)`` raised as a FailureText; other failures stay as they are."""
    error = call.excinfo.value if call.excinfo else None
    if report.failed and isinstance(error, pytest.fail.Exception) and not error.pytrace and error.msg:
        report.longrepr = FailureText(error.msg)  # type: ignore[assignment]  # pytest takes any such object
