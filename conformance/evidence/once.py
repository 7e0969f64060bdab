"""Cases of random problems: their inputs, expected results and bounds are forgotten when newer ones need the room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.cases.store import RANDOM


class Drawn(Protocol):
    """A random problem."""

    def case(self) -> AnyCase:
        """The problem as a case, for every dtype."""


def once(problem: Drawn, dtype: str) -> Any:
    """The case of a problem, in one dtype."""
    return replace(problem.case(), dtypes=(dtype,), store=RANDOM)
