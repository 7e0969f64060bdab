"""Ranks of torch.distributed: processes that find each other by a file, a group over gloo on the loopback device."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch.distributed as dist

from attention_conformance.impls.contract import Function, Implementation
from attention_conformance.impls.ranks import lengths

#: The group of the current calls.
_GROUP: list[Any] = []
_RENEWED = [0]


def entered(rank: int, ranks: int, meeting: str) -> Any:
    """Make this process a rank of the world; returns the function that binds others to it."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    _GROUP[:] = [dist.group.WORLD]
    return bind


def renew(failures: int) -> None:
    """Make another group once a call has failed: messages of that call may be in flight in the last one."""
    if _RENEWED[0] != failures:
        _GROUP[:], _RENEWED[0] = [dist.new_group()], failures


def bind(function: Function, implementation: Implementation) -> Function:
    """A function with its group, and the lengths if it has the parameter."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def bound(*arguments: Any, **keywords: Any) -> Any:
        extras = {"group": _GROUP[0], "lengths": lengths()}
        return function(*arguments, **keywords, **{n: v for n, v in extras.items() if n in parameters})

    return bound
