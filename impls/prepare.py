"""The plainest way to prepare a call: bind its options."""

from __future__ import annotations

import functools

from impls.contract import Call, Function


def partial(function: Function, call: Call) -> Function:
    """Bind the plain keywords; nothing is compiled, nothing is cached."""
    return functools.partial(function, **call.static)
