"""The file of ``attention-conformance kill-matrix``: which cases catch which known fault."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

#: Kind and version that a kill matrix names.
FORMAT = "attention-conformance faults 1"


class Fault(TypedDict):
    """A fault of the file: ``sources`` are links by thread, ``caught`` are dtypes by case, smallest case first."""

    name: str
    operator: NotRequired[str]
    group: str
    clause: str
    title: str
    when: NotRequired[str]
    sources: dict[str, str]
    smallest: str
    caught: dict[str, str]


class KillMatrix(TypedDict):
    """The file; its faults are judged one by one."""

    format: str
    cases: Annotated[int, Meta(ge=0)]
    faults: list[Any]
