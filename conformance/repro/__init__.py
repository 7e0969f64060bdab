"""A failed case as a script of its own: the framework and NumPy, no import of this suite, exit code 1 while it fails.

It can be pasted into an upstream issue.
"""

from __future__ import annotations

from attention_conformance.conformance.repro.checks import Element, worst_elements, wrong_elements
from attention_conformance.conformance.repro.compose import file_name, text, write

__all__ = ["Element", "file_name", "text", "worst_elements", "write", "wrong_elements"]
