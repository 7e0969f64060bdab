"""A failed case as a script of its own: the framework and NumPy, no import of this suite, exit code 1 while it fails.

It can be pasted into an upstream issue.
"""

from __future__ import annotations

from conformance.script.compose import file_name, text, write
from conformance.script.elements import Element, worst_elements

__all__ = ["Element", "file_name", "text", "worst_elements", "write"]
